"""Plans as a product: PLANNER_SETTING_CORPUS.

A setting (conf/setting) is a machine, a model, its cost model and a batch. Each planner
and each corpus gives a plan in it, e.g. ``flexsp_7b_192k_wikipedia``. Two tables of a
setting, which it inherits like its other keys, say what names stand for there:

* ``planners``: by PLANNER or PLANNER_CORPUS, the choice of conf/planner where it has
  another name, or keys of such plans on top of the setting's; the second wins.
* ``corpora``: the corpus of the experiment where it has another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from railx.errors import allowed_names
from railx.settings import SettingsError
from workflow.choices import BASE, choice_content, choices, group_files

#: Keys of a setting that are no keys of its plans.
TABLES = ("planners", "corpora")
#: Keys of a product in an experiment.
CROSS = ("cross", "except", "with")
#: What makes a plan's name, in this order.
_PARTS = ("planner", "setting", "corpus")


@dataclass(frozen=True)
class PlanParts:
    """What the name of a plan says."""

    planner: str
    setting: str
    corpus: str

    def content(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of the plan, as a file would hold them; ``setting``: composed."""
        planners = setting.get("planners", {})
        choice = self.planner
        keys: dict[str, Any] = {}
        for label in (self.planner, f"{self.planner}_{self.corpus}"):
            entry = planners.get(label, {})
            entry = {"planner": entry} if isinstance(entry, str) else entry
            choice = entry.get("planner", choice)
            keys |= {key: value for key, value in entry.items() if key != "planner"}
        return {
            "defaults": [{"/setting@_here_": self.setting}, {"/planner@planner": choice}],
            **keys,
            "corpus": setting.get("corpora", {}).get(self.corpus, self.corpus),
        }


class PlanNames:
    """The names of plans that the planners, settings and corpora of a conf/ make."""

    def __init__(self, conf: Path) -> None:
        self._conf = conf

    def parts(self, name: str) -> PlanParts | None:
        """What makes a name; None where it is none of the product."""
        for setting in self.settings:
            planner, between, corpus = name.partition(f"_{setting}_")
            if between and planner in self.planners and corpus in self.corpora:
                return PlanParts(planner, setting, corpus)
        return None

    @cached_property
    def settings(self) -> list[str]:
        """The settings, longer names first: one name may end with another."""
        return sorted(choices(self._conf, "setting"), key=len, reverse=True)

    @cached_property
    def planners(self) -> set[str]:
        """The names of planners that a plan may begin with."""
        return {*choices(self._conf, "planner"), *self._labels("planners")}

    @cached_property
    def corpora(self) -> set[str]:
        """The names of corpora that a plan may end with."""
        return {*choices(self._conf, "corpus"), *self._labels("corpora")}

    def _labels(self, table: str) -> Iterator[str]:
        files = group_files(self._conf, "setting")
        bases = (name for layer in files for name in layer if name.startswith(BASE))
        for setting in (*bases, *self.settings):
            yield from choice_content(self._conf, "setting", setting).get(table) or ()


def crossed(item: Mapping[str, Any]) -> list[str]:
    """The plans of ``{cross: {setting: [...], planner: [...], corpus: [...]}}``.

    The last of the keys changes fastest. ``except`` lists names or patterns (``*``) of
    plans that are left out; each must leave out one at least. ``with`` holds keys of
    all of them, on top of their choices.
    """
    cross, left_out, changes = item["cross"], item.get("except", []), item.get("with", {})
    if not isinstance(cross, Mapping) or set(cross) != set(_PARTS):
        allowed = f"a mapping of {', '.join(_PARTS)} to names"
        raise SettingsError("plans", f"got cross: {cross!r}; allowed: {allowed}")
    if set(item) - set(CROSS) or not _is_names(left_out) or not isinstance(changes, Mapping):
        allowed = "cross, a list except and a mapping with"
        raise SettingsError("plans", f"got {dict(item)!r}; allowed: {allowed}")
    lists = [[names] if isinstance(names, str) else names for names in cross.values()]
    if not all(map(_is_names, lists)):
        raise SettingsError("plans", f"got cross: {cross!r}; allowed: a name or a list of them")
    names = [
        "_".join(dict(zip(cross, values, strict=True))[part] for part in _PARTS)
        for values in product(*lists)
    ]
    for pattern in left_out:
        if not any(fnmatchcase(name, pattern) for name in names):
            allowed = allowed_names(pattern, names)
            raise SettingsError("plans", f"got except: {pattern}; allowed: {allowed}")
    return [name for name in names if not any(fnmatchcase(name, pattern) for pattern in left_out)]


def _is_names(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(name, str) for name in value)
