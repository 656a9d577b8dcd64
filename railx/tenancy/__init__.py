"""Jobs and failures on a reconfigurable grid.

Placement, circuits, the largest usable job, streams of jobs, degraded lines. The
package exports the settings alone, so that checking an experiment loads no solver.
"""

from railx.tenancy.settings import (
    GridJobSettings,
    StreamJobSettings,
    StreamSettings,
    TenancySettings,
    check_job,
)

__all__ = [
    "GridJobSettings",
    "StreamJobSettings",
    "StreamSettings",
    "TenancySettings",
    "check_job",
]
