"""Fit the constants of programs to the measured runs that come with the project.

    python scripts/fit_constants.py [megatron_a100]

With a word only Megatron's constants are fitted anew, and the others stay.

Writes ``resources/performance/constants.yaml`` in some minutes, with the errors on rows
left out, and ``left_out.csv`` beside it: the numbers fitted without them, with which
``railx.performance.validation`` finds these errors again.
"""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from railx.io import write_text
from railx.performance.fits import digest_of, fit, fit_gains
from railx.performance.programs import FITTED, Constants
from railx.performance.resources import catalogue
from railx.performance.validation import Case, predict, read_set
from railx.places import CODE

MEASURED = CODE / "resources" / "measured"
_FOLDER = CODE / "resources" / "performance"
#: Rows of one node that Megatron's constants are fitted on, and the seed of the draw.
ONE_NODE_ROWS, SEED = 144, 1
#: Parts of a set of which each is left out once.
FOLDS = 8
_HOST = ("forward_host_s", "step_s")
_ROOFS = ("matmul_share", "matmul_tile", "memory_share")
#: Where fits begin: shares of usual kernels, a launch of some ten kernels a layer.
_START: dict[str, Any] = {
    "matmul_share": 0.8,
    "matmul_tile": 128.0,
    "memory_share": 0.7,
    "attention_share": 0.5,
    "forward_host_s": 5e-4,
    "backward_host_s": 5e-4,
    "collective_host_s": 3e-5,
    "step_s": 5e-3,
}
#: Ten kernels of a layer that take 10 us to start. Only Megatron's are fitted: other
#: programs take over llm-foundry's shares of the H100, not its kernels.
_KERNELS_S = 1e-4
#: Megatron reads the sizes of each micro-batch's tokens back from the device
#: (megatron/core/tensor_parallel/data.py, sizes_cuda.cpu()), so that a step's data take
#: time for each micro-batch, and none besides.
_BEGIN_S = 2e-3
_HEADER = """\
# Fitted constants of programs on devices, written by scripts/fit_constants.py.
# Fields and units: railx/performance/programs.py, Constants. `fitted` says which numbers
# were fitted, `rows` on what; the others are starting values or shared.
"""


#: File, row numbers, and the constants that were fitted without these rows.
_LEFT_OUT: list[tuple[str, list[int], Constants]] = []


def main() -> None:
    """Fit all, or Megatron's alone, and write the files."""
    if sys.argv[1:] == ["megatron_a100"]:
        fitted = _megatron()
        stored = catalogue("constants.yaml", Constants)
        with (_FOLDER / "left_out.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                values = {name: float(row[name]) for name in FITTED if name in row}
                if row["constants"] != fitted.name:
                    before = replace(stored[row["constants"]], **values)
                    _LEFT_OUT.append((row["file"], [*map(int, row["rows"].split())], before))
        _write([fitted, *(stored[name] for name in stored if name != fitted.name)])
        return
    entries = [_megatron(), *(_llm_foundry(family) for family in ("a100", "h100"))]
    # torchtitan's rows of 16 bits are three: the H100 is as llm-foundry finds it, and
    # recipes differ by a gain.
    torchtitan = _cases("torchtitan.csv")
    start = replace(entries[-1], name="torchtitan_h100", program="torchtitan", gains={})
    compiled = [n for n, case in enumerate(torchtitan) if case.recipe == "bf16 compiled"]
    rest = [case for case in torchtitan if case.recipe != "bf16 compiled"]
    entries.append(
        replace(
            fit_gains(rest, start),
            fitted=("gains",),
            rows="torchtitan.csv",
            digest=digest_of(rest),
            errors=_rounded({"all": _error("torchtitan.csv", torchtitan, compiled, start)}),
            largest_run_devices=_largest([torchtitan[number] for number in compiled]),
        )
    )
    entries += [_megatron_bridge(device, start) for device in ("b200", "h100_80gb")]
    _write(entries)


def _write(entries: list[Constants]) -> None:
    text = _HEADER + yaml.safe_dump({e.name: _entry(e) for e in entries}, sort_keys=False)
    write_text(_FOLDER / "constants.yaml", text)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["file", "constants", "rows", *FITTED])
    for file, numbers, constants in _LEFT_OUT:
        rows = " ".join(map(str, sorted(numbers)))
        values = [getattr(constants, name) for name in FITTED]
        writer.writerow([file, constants.name, rows, *values])
    write_text(_FOLDER / "left_out.csv", table.getvalue())


def _megatron() -> Constants:
    single, multi = "vtrain_single.csv", "vtrain_multi.csv"
    one, several = _cases(single), _cases(multi)
    order = np.random.default_rng(SEED).permutation(len(one)).tolist()
    fitted = [one[number] for number in order[:ONE_NODE_ROWS]]
    start = Constants(
        "megatron_a100",
        "a100_80gb",
        "megatron",
        **{**_START, "step_s": 0.0},
        forward_kernels_s=_KERNELS_S,
        begin_s=_BEGIN_S,
    )
    host = ("forward_host_s", "forward_kernels_s", "begin_s", "backward_host_s")
    names = (*_ROOFS, *host, "collective_host_s")

    def without(left_out: list[int]) -> float:
        rest = [case for number, case in enumerate(several) if number not in left_out]
        return _error(multi, several, left_out, fit(fitted + rest, start, names, values))

    # Every row of several nodes left out alone; those of t = 16 together.
    wide = [number for number, case in enumerate(several) if case.plan.tensor > 8]
    values = fit(fitted + several, start, names)
    errors = {
        "one_node": _error(single, one, order[ONE_NODE_ROWS:], values),
        "tensor_across_nodes": without(wide),
        "several_nodes": float(np.mean([without([number]) for number in range(len(several))])),
    }
    rows = f"{single} ({ONE_NODE_ROWS} rows drawn by seed {SEED}), {multi}"
    largest = _largest(one + several)
    return replace(values, rows=rows, errors=_rounded(errors), largest_run_devices=largest)


def _llm_foundry(family: str) -> Constants:
    file = "mosaic_fsdp.csv"
    cases = _cases(file)
    rows = [n for n, case in enumerate(cases) if case.device.startswith(family)]
    exact = [number for number in rows if not cases[number].recipe]
    device = cases[exact[0]].device
    start = Constants(f"llm_foundry_{family}", device, "llm_foundry", **_START)
    names = (*_ROOFS, "attention_share", *_HOST, "slow_share")
    values = fit([cases[number] for number in exact], start, names)
    errors: dict[str, list[float]] = {"one_node": [], "several_nodes": []}
    order = np.random.default_rng(SEED).permutation(exact)
    for fold in np.array_split(order, FOLDS):
        rest = [cases[number] for number in exact if number not in fold]
        fitted = fit(rest, start, names)
        _LEFT_OUT.append((file, fold.tolist(), fitted))
        for number in fold:
            key = "several_nodes" if cases[number].plan.devices > 8 else "one_node"
            errors[key].append(_relative([cases[number]], fitted)[0])
    means = {key: float(np.mean(values)) for key, values in errors.items()}
    largest = _largest([cases[number] for number in exact])
    values = replace(values, errors=_rounded(means), largest_run_devices=largest)
    values = fit_gains([cases[number] for number in rows if cases[number].recipe], values)
    return replace(values, rows=f"{file}, {family}")


def _megatron_bridge(device: str, start: Constants) -> Constants:
    """Shares of Transformer Engine's FP8 products and attention, else ``start``."""
    file = "mlperf_gpt3_175b.csv"
    cases = [case for case in _cases(file) if case.device == device]
    name = f"megatron_bridge_{device.partition('_')[0]}"
    start = replace(start, name=name, device=device, program="megatron_bridge", gains={})
    fitted = fit(cases, start, ("matmul_share", "attention_share"))
    return replace(fitted, rows=f"{file}, {device}", errors={}, largest_run_devices=0)


def _cases(file: str) -> list[Case]:
    return read_set(Path(MEASURED / file))[1]


def _error(file: str, cases: list[Case], left_out: list[int], constants: Constants) -> float:
    """Mean error of rows that ``constants`` were fitted without; both are recorded."""
    _LEFT_OUT.append((file, left_out, constants))
    return float(np.mean(_relative([cases[number] for number in left_out], constants)))


def _relative(cases: list[Case], constants: Constants) -> list[float]:
    """Absolute relative errors of the seconds of cases."""
    seconds, _ = predict(cases, [constants] * len(cases))
    return [
        abs(ours / (case.seconds or np.nan) - 1) for ours, case in zip(seconds, cases, strict=True)
    ]


def _largest(cases: list[Case]) -> int:
    return max(case.plan.devices for case in cases)


def _rounded(errors: dict[str, float]) -> dict[str, float]:
    return {name: round(error, 4) for name, error in errors.items()}


def _entry(constants: Constants) -> dict[str, object]:
    values = asdict(constants)
    del values["name"]
    return {**values, "fitted": list(constants.fitted)}


if __name__ == "__main__":
    main()
