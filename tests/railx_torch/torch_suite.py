"""Torch's tests of torch.distributed over railx, held against plain gloo.

``python -m tests.railx_torch.torch_suite`` (``make test-torch``) runs all of them over
gloo and railx, on demand and provisioned, and writes docs/torch_suite.md; it ends with
1 where a test that passes over gloo does not pass over railx.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.commands import ROOT, environment

__all__ = ["PAGE", "SETTINGS", "page", "run", "worse"]

PROGRAM = Path(__file__).with_name("torch_suite_program.py")
PAGE = ROOT / "docs" / "torch_suite.md"
SETTINGS = ("gloo", "on_demand", "provisioned")

#: By test: its outcome, the reason and the seconds.
Outcomes = dict[str, dict[str, Any]]

_HEAD = """\
# Torch's own tests

`make test-torch` runs the tests of `torch.testing._internal.distributed.distributed_test`, torch
{torch}, with three ranks on the CPU: over gloo, and over `railx` with emulated switches of 1 ms, on
demand and provisioned. Torch decides for itself which tests a machine without GPUs skips; over
`railx` it runs the same ones as over gloo. The command writes this page.

"""


def run(setting: str, names: Sequence[str] = (), *, show: bool = False) -> Outcomes:
    """The outcomes of tests, all by default; RuntimeError where the program fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "outcomes.json")
        done = subprocess.run(
            [sys.executable, str(PROGRAM), setting, str(out), *names],
            env=environment(),
            stdout=None if show else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        outcomes: Outcomes = json.loads(out.read_text())
        return outcomes


def worse(outcomes: Outcomes, of_gloo: Outcomes) -> dict[str, str]:
    """The tests that pass over gloo and not here, with the reason."""
    return {
        name: outcome["reason"] or outcome["outcome"]
        for name, outcome in outcomes.items()
        if of_gloo[name]["outcome"] == "passed" and outcome["outcome"] != "passed"
    }


def page(found: dict[str, Outcomes], torch: str) -> str:
    """docs/torch_suite.md: counts by setting, and the tests that ran."""
    heading = " | ".join(setting.replace("_", " ") for setting in SETTINGS)
    lines = [f"| outcome | {heading} |", "|---" * (len(SETTINGS) + 1) + "|"]
    for word in ("passed", "failed", "skipped"):
        counts = [
            Counter(outcome["outcome"] for outcome in found[setting].values())[word]
            for setting in SETTINGS
        ]
        lines.append(f"| {word} | {' | '.join(map(str, counts))} |")
    outcomes = {
        name.removeprefix("test_"): [found[setting][name]["outcome"] for setting in SETTINGS]
        for name in sorted(found["gloo"])
    }
    ran = {name: words for name, words in outcomes.items() if set(words) != {"skipped"}}
    everywhere = [name for name, words in ran.items() if set(words) == {"passed"}]
    differing = [
        f"| {name} | {' | '.join(words)} |" for name, words in ran.items() if name not in everywhere
    ]
    if differing:
        lines += ["", f"| test | {heading} |", "|---" * (len(SETTINGS) + 1) + "|", *differing]
    names = textwrap.fill(", ".join(everywhere), 82, break_on_hyphens=False)
    lines += ["", "## Passed in every setting", "", f"```text\n{names}\n```"]
    reasons = Counter(
        outcome["reason"] for outcome in found["gloo"].values() if outcome["outcome"] == "skipped"
    )
    frequent = [(reason, count) for reason, count in reasons.most_common() if count > 4]
    rare = len(reasons) - len(frequent)
    if rare:
        frequent.append((f"{rare} other reasons", reasons.total() - sum(n for _, n in frequent)))
    lines += ["", "| torch's reason to skip | tests |", "|---|---|"]
    # mkdocs reads braces as attributes.
    lines += [f"| {reason.replace('{', '&#123;')} | {count} |" for reason, count in frequent]
    return _HEAD.format(torch=torch) + "\n".join([*lines, ""])


def main() -> int:
    """Run everything and write the page; the exit code."""
    import torch

    found = {setting: run(setting, show=True) for setting in SETTINGS}
    PAGE.write_text(page(found, torch.__version__.partition("+")[0]))
    lost = {setting: worse(found[setting], found["gloo"]) for setting in SETTINGS}
    for setting, tests in lost.items():
        for name, reason in tests.items():
            print(f"{setting}: {name}: {reason}", file=sys.stderr)
    return int(any(lost.values()))


if __name__ == "__main__":
    sys.exit(main())
