"""Opus' steps with optical switching: simulations, a smoke run, runs on Perlmutter."""

from __future__ import annotations

from railx.figures.tables import Tables
from railx.figures.types import DataFrame

__all__ = ["PUBLISHED_STEPS", "published_steps"]

#: Inputs of a figure that calls :func:`published_steps`.
PUBLISHED_STEPS = {
    "perlmutter": "opus_perlmutter_iteration_latency.csv: case mode reconfig_latency_ms"
    " mean_iteration_latency_s std_iteration_latency_s",
    "simulation": "opus_simulation_latency.csv: figure platform gpus system reconfig_latency_ms"
    " step_latency_s",
    "smoke": "opus_simulation_smoke.csv: reconfig_latency_ms eps_step_s on_demand_step_s"
    " provision_step_s",
}


def published_steps(tables: Tables) -> DataFrame:
    """Published steps by source, setting, mode and latency, in the order of the tables.

    ``base_s`` is the step without switching, ``spread_s`` the standard deviation.
    """
    return tables.query(
        """
        with modes(mode, system, position) as (
            values ('on_demand', 'opus_on_demand', 0), ('provisioned', 'opus_provision', 1)
        ), steps as (
            select 0 as part, s.rowid_ as number, 'simulation' as source, figure as setting,
                concat(platform, ', ', gpus, ' GPUs (', replace(figure, 'fig', 'fig. '), ')')
                    as words,
                mode, s.reconfig_latency_ms::double as latency_ms, s.step_latency_s as seconds,
                base.step_latency_s as base_s, null as spread_s
            from simulation s join modes using (system)
            join simulation base using (figure, platform, gpus)
            where base.system = 'eps_full_bw_analytical'
            union all
            select 1, 2 * rowid_ + position, 'simulation', 'smoke', 'smoke run of 8 GPUs', mode,
                reconfig_latency_ms,
                if(mode = 'on_demand', on_demand_step_s, provision_step_s), eps_step_s, null
            from smoke, modes
            union all
            select 2, p.rowid_, 'perlmutter', "case", "case",
                if(p.mode = 'on_demand', 'on_demand', 'provisioned'), p.reconfig_latency_ms,
                p.mean_iteration_latency_s, alone.mean_iteration_latency_s,
                p.std_iteration_latency_s
            from perlmutter p join perlmutter alone using ("case")
            where p.mode != 'no_controller' and alone.mode = 'no_controller'
        )
        select * exclude (part, number) from steps order by part, number
        """
    )
