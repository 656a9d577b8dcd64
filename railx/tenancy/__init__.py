"""Jobs and failures on a reconfigurable grid.

The modules place jobs, set their circuits, find the largest usable job, simulate
streams of jobs and measure degraded lines. The package exports the settings alone, so
that checking an experiment loads no solver.
"""

from railx.tenancy.settings import GridJobSettings, TenancySettings, check_job

__all__ = ["GridJobSettings", "TenancySettings", "check_job"]
