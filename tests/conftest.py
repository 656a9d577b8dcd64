"""Properties draw the same examples in every run, whatever the speed of the machine.

A change fails for what it changes. `pytest --hypothesis-profile=random` draws others.
"""

import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from railx import effort

settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("railx", settings.get_profile("random"), derandomize=True)
settings.load_profile("railx")


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests and their processes leave lies in pytest's folder, which it clears."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t")))
        patch.setattr(tempfile, "tempdir", os.environ["TMPDIR"])
        yield


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are those of a machine with 64 GiB, whatever runs the tests."""
    monkeypatch.setattr(effort, "machine_memory_bytes", lambda: 64.0 * 2**30)
