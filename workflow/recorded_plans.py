"""Plans that take long, recorded in git: their files, and the code behind them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from railx.places import in_repository

#: A file for each plan, with a line for each of its batches.
PLANS = Path("resources/recorded/plans")


def record_of(plan: str) -> Path:
    """The file of a plan's records."""
    return in_repository(PLANS / f"{plan}.jsonl")


def planner_code(planner: type) -> str:
    """A short SHA-256 over the code that decides a planner's plans.

    That is its module and those of ``railx.planning`` that form groups, without
    docstrings. Cost models and batches have digests of their values.
    """
    from workflow.digest import code_modules, module_digest

    counted = ("railx.planning.sequence.", "railx.planning.groups")
    modules = [name for name in code_modules(planner.__module__) if name.startswith(counted)]
    text = "".join(f"{name}={module_digest(name)}\n" for name in modules)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
