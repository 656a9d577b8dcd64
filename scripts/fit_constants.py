"""Fit the constants of programs to the measured runs that come with the project.

    python scripts/fit_constants.py

Writes ``resources/performance/constants.yaml`` in some minutes, with the errors on rows
left out. ``docs/performance.md`` explains both.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import yaml

from railx.io import write_text
from railx.performance.fits import cross_validated, digest_of, fit, fit_gains
from railx.performance.programs import Constants
from railx.performance.validation import Case, predict, read_set
from railx.places import CODE

MEASURED = CODE / "resources" / "measured"
#: Rows of one node that Megatron's constants are fitted on, and the seed of the draw.
ONE_NODE_ROWS, SEED = 144, 1
#: Parts of a set of which each is left out once.
FOLDS = 8
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
    start = Constants("megatron_a100", "a100_80gb", "megatron", **_START)
    names = (*_ROOFS, *_HOST, "backward_host_s", "collective_host_s", "slow_share")
    fitted = [one[number] for number in drawn]
    megatron = fit(fitted + several, start, names)
    left_out = [case for number, case in enumerate(one) if number not in set(drawn.tolist())]
    wide = np.array([case.plan.tensor > 8 for case in several])
    # Every row of several nodes left out alone; those of t = 16 together.
    alone = [
        _error([case], fit(fitted + [c for c in several if c is not case], start, names))
        for case in several
    ]
    narrow = fit(fitted + [c for c, w in zip(several, wide, strict=True) if not w], start, names)
    errors = {
        "one_node": _error(left_out, megatron),
        "several_nodes": float(np.mean(alone)),
        "tensor_across_nodes": _error([c for c, w in zip(several, wide, strict=True) if w], narrow),
    }
    rows = f"vtrain_single.csv ({ONE_NODE_ROWS} rows drawn by seed {SEED}), vtrain_multi.csv"
    entries = [replace(megatron, rows=rows, errors=_rounded(errors))]
    for family, device in (("a100", "a100_80gb"), ("h100", "h100_80gb")):
        rows = [case for case in mosaic if case.device.startswith(family)]
        start = Constants(f"llm_foundry_{family}", device, "llm_foundry", **_START)
        names = (*_ROOFS, "attention_share", *_HOST, "slow_share")
        exact = [case for case in rows if not case.recipe]
        values = fit(exact, start, names)
        seconds = cross_validated(exact, start, names, FOLDS, SEED)
        ratios = np.abs(seconds / [case.seconds or np.nan for case in exact] - 1)
        several_nodes = np.array([case.plan.devices > 8 for case in exact])
        errors = {
            "one_node": float(ratios[~several_nodes].mean()),
            "several_nodes": float(ratios[several_nodes].mean()),
        }
        values = replace(values, errors=_rounded(errors))
        values = fit_gains([case for case in rows if case.recipe], values)
        entries.append(replace(values, rows=f"mosaic_fsdp.csv, {family}"))
    # torchtitan's rows of 16 bits are three: the H100 is as llm-foundry finds it, and
    # recipes differ by a gain.
    h100 = entries[-1]
    torchtitan_h100 = replace(h100, name="torchtitan_h100", program="torchtitan", gains={})
    compiled = [case for case in torchtitan if case.recipe == "bf16 compiled"]
    rest = [case for case in torchtitan if case.recipe != "bf16 compiled"]
    entries.append(
        replace(
            fit_gains(rest, torchtitan_h100),
            fitted=("gains",),
            rows="torchtitan.csv",
            digest=digest_of(rest),
            errors=_rounded({"all": _error(compiled, torchtitan_h100)}),
        )
    )
    write_text(
        CODE / "resources" / "performance" / "constants.yaml",
        _HEADER + yaml.safe_dump({e.name: _entry(e) for e in entries}, sort_keys=False),
    )


def _cases(file: str) -> list[Case]:
    return read_set(Path(MEASURED / file))[1]


def _error(cases: list[Case], constants: Constants) -> float:
    """Mean absolute relative error of the seconds of cases."""
    seconds, _ = predict(cases, [constants] * len(cases))
    return float(np.abs(seconds / [case.seconds or np.nan for case in cases] - 1).mean())


def _rounded(errors: dict[str, float]) -> dict[str, float]:
    return {name: round(error, 4) for name, error in errors.items()}


def _entry(constants: Constants) -> dict[str, object]:
    values = asdict(constants)
    del values["name"]
    return {**values, "fitted": list(constants.fitted)}


if __name__ == "__main__":
    main()
