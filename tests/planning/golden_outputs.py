"""Outputs of other projects' planners, stored so that ours can be compared with them.

    python -m tests.planning.golden_outputs wlb PLANNER_FOLDER
    python -m tests.planning.golden_outputs dyna_pipe HELPER_FOLDER

writes ``golden/NAME.json`` again; tests read only that. ``PLANNER_FOLDER`` is
``distca/planner`` of a checkout of hao-ai-lab/distca (its ``rich`` must be installed),
a re-implementation of WLB-LLM, whose own code of packing is not public.
``HELPER_FOLDER`` is ``dynapipe/data_opt`` of awslabs'
optimizing-multitask-training-through-dynamic-pipelines after ``make`` there.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

__all__ = ["golden"]

FOLDER = Path(__file__).with_name("golden")
_WLB_SOURCE = (
    "hao-ai-lab/distca, distca/planner/wlb_planner.py, commit"
    " 039f2e4088a627aa2a403c6e776accd0a77c6f26: a re-implementation, not WLB-LLM's own code"
)
_DYNA_PIPE_SOURCE = (
    "awslabs/optimizing-multitask-training-through-dynamic-pipelines,"
    " dynapipe/data_opt/dp_helper.cpp, commit d8666ad4e112d0241cb7fc025ce9bea72c32b924"
)
_COMMAND = "python -m tests.planning.golden_outputs {} FOLDER"
#: Tokens at which attention takes as long as the linear layers, distca's default.
WLB_BREAKPOINT = 128 * 1024


def golden(name: str) -> list[dict[str, Any]]:
    """The stored cases of a planner."""
    cases: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())["cases"]
    return cases


def _wlb(folder: str) -> dict[str, Any]:
    sys.path.insert(0, folder)
    planner: Any = importlib.import_module("wlb_planner")
    cases = []
    for index in range(24):
        rng = random.Random(f"wlb {index}")
        lengths = [
            min(131072, max(64, int(rng.lognormvariate(8.5, 1.4))))
            for _ in range(rng.choice((6, 16, 40, 120)))
        ]
        # No micro-batch stays empty: that code fills it with padding.
        bins = min(rng.choice((2, 4, 8)), len(lengths))
        most = max(max(lengths), int(sum(lengths) / bins * rng.choice((1.0, 1.01, 1.3))))
        _, packed = planner.balance_data_for_wlbllm(bins, 0, 0, 0, [lengths], Lmax=most)
        cases.append({"lengths": lengths, "bins": bins, "most_tokens": most, "packed": packed})
    about = "Lengths in each micro-batch; some are over most_tokens where not all fit."
    return {"about": about, "source": _WLB_SOURCE, "cases": cases}


class _Costs:
    """Work and tokens of neighbours, looked up by the longest and the number of them.

    The public code prices padded samples by these two, which name the neighbours where
    no two lengths are equal.
    """

    def __init__(self, lengths: list[int], works: list[int], constant: int) -> None:
        self.lengths, self.works, self.constant = lengths, works, constant

    def _of(self, values: list[int], longest: int, count: int) -> int:
        end = self.lengths.index(longest) + 1
        return sum(values[end - count : end])

    def get_cost(self, name: str, longest: int, count: int) -> float:
        is_forward = name == "Encoder FW"
        return float(self._of(self.works, longest, count) + self.constant) if is_forward else 0.0

    def get_stored_activation(self, _: str, longest: int, count: int) -> float:
        return float(self._of(self.lengths, longest, count))

    def get_peak_activation(self, *_: Any) -> float:
        return 0.0


def _dyna_pipe(folder: str) -> dict[str, Any]:
    sys.path.insert(0, folder)
    helper: Any = importlib.import_module("dp_helper")
    cases = []
    for index in range(24):
        rng = random.Random(f"dyna_pipe {index}")
        lengths = sorted(rng.sample(range(8, 400), rng.choice((4, 10, 24))))
        # Multiples of ten: the public code takes times within five for equal.
        works = [10 * (length + length**2 // 200) for length in lengths]
        constant = 10 * rng.choice((0, 20, 200))
        stages, replicas = rng.choice((2, 4, 8)), rng.choice((1, 2))
        most = int(max(lengths) * rng.choice((1, 2, 6)))
        found = helper.cpp_consecutive_partition_dp(
            _Costs(lengths, works, constant), stages, 1, 1, replicas, float(most), 1e9,
            [(length, 0, row) for row, length in enumerate(lengths)],
            enable_packing=False, round_seqlen_multiple=1,
        )  # fmt: skip
        case = {
            "lengths": lengths, "works_ms": works, "constant_ms": constant, "stages": stages,
            "replicas": replicas, "most_tokens": most, "objective_ms": found[0][0],
            "micro_batches": [[part[0] for part in micro_batch] for micro_batch in found[1]],
        }  # fmt: skip
        cases.append(case)
    about = "Samples of each micro-batch, and (stages - 1) times the longest plus a replica's sum."
    return {"about": about, "source": _DYNA_PIPE_SOURCE, "cases": cases}


if __name__ == "__main__":
    kind, given = sys.argv[1:]
    made = {"wlb": _wlb, "dyna_pipe": _dyna_pipe}[kind](given)
    head = {key: made[key] for key in ("about", "source")} | {"command": _COMMAND.format(kind)}
    lines = ",\n".join(f"  {json.dumps(case)}" for case in made["cases"])
    text = json.dumps(head, indent=1).removesuffix("\n}") + f',\n "cases": [\n{lines}\n ]\n}}\n'
    (FOLDER / f"{kind}.json").write_text(text, encoding="utf-8")
