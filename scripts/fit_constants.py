"""Fit the constants of programs to the measured runs that come with the project.

    python scripts/fit_constants.py

Writes ``resources/performance/constants.yaml``. Which numbers are fitted, on which rows and
from which start is the table below; ``docs/performance.md`` has the errors on rows left out.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import yaml

from railx.io import write_text
from railx.performance.fits import fit, fit_gains
from railx.performance.programs import Constants
from railx.performance.validation import Case, read_set
from railx.places import CODE

MEASURED = CODE / "resources" / "measured"
#: Rows of one node that constants of Megatron are fitted on, and the seed of their draw.
ONE_NODE_ROWS, SEED = 144, 1
_HOST = ("forward_host_s", "step_s")
_ROOFS = ("matmul_share", "matmul_tile", "memory_share")
#: Where fits begin: shares of usual kernels, a launch of some ten kernels a layer.
_START = {
    "matmul_share": 0.8,
    "matmul_tile": 128.0,
    "memory_share": 0.7,
    "attention_share": 0.5,
    "forward_host_s": 5e-4,
    "backward_host_s": 5e-4,
    "collective_host_s": 3e-5,
    "step_s": 5e-3,
}
_HEADER = """\
# Fitted constants of programs on devices, written by scripts/fit_constants.py.
# Fields and units: railx/performance/programs.py, Constants. `fitted` says which numbers
# were fitted, `rows` on what; the others are starting values or shared.
"""


def main() -> None:
    """Fit all and write the file."""
    one, several = (_cases(f"vtrain_{part}.csv") for part in ("single", "multi"))
    drawn = np.random.default_rng(SEED).permutation(len(one))[:ONE_NODE_ROWS]
    mosaic, torchtitan = _cases("mosaic_fsdp.csv"), _cases("torchtitan.csv")
    megatron = replace(
        fit(
            [one[number] for number in drawn] + several,
            Constants("megatron_a100", "a100_80gb", "megatron", **_START),
            (*_ROOFS, *_HOST, "backward_host_s", "collective_host_s", "slow_share"),
        ),
        rows=f"vtrain_single.csv ({ONE_NODE_ROWS} rows drawn by seed {SEED}), vtrain_multi.csv",
    )
    entries = [megatron]
    for family, device in (("a100", "a100_80gb"), ("h100", "h100_80gb")):
        rows = [case for case in mosaic if case.device.startswith(family)]
        start = Constants(f"llm_foundry_{family}", device, "llm_foundry", **_START)
        names = (*_ROOFS, "attention_share", *_HOST, "slow_share")
        values = fit([case for case in rows if not case.recipe], start, names)
        values = fit_gains([case for case in rows if case.recipe], values)
        entries.append(replace(values, rows=f"mosaic_fsdp.csv, {family}"))
    # torchtitan's rows of 16 bits are three: the H100 is as llm-foundry finds it, recipes
    # differ by a gain.
    h100 = entries[-1]
    torchtitan_h100 = replace(h100, name="torchtitan_h100", program="torchtitan", gains={})
    rows = [case for case in torchtitan if case.recipe != "bf16 compiled"]
    entries.append(
        replace(fit_gains(rows, torchtitan_h100), fitted=("gains",), rows="torchtitan.csv")
    )
    write_text(
        CODE / "resources" / "performance" / "constants.yaml",
        _HEADER + yaml.safe_dump({e.name: _entry(e) for e in entries}, sort_keys=False),
    )


def _cases(file: str) -> list[Case]:
    return read_set(Path(MEASURED / file))[1]


def _entry(constants: Constants) -> dict[str, object]:
    values = asdict(constants)
    del values["name"]
    return {**values, "fitted": list(constants.fitted)}


if __name__ == "__main__":
    main()
