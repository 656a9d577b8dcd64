"""Provenance of results: commit, code, config, inputs, versions and hardware.

Only the standard library is used, so that a bare GPU node can record the same; the
RO-Crate of a run needs ``rocrate`` and is built by :mod:`railx.provenance.crate`.
"""

from railx.provenance.jobs import collect_provenance, digest_of, job_record

__all__ = ["collect_provenance", "digest_of", "job_record"]
