"""What pairs join, by union-find: importing scipy takes longer than most graphs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def roots(names: Iterable[N], pairs: Iterable[Iterable[N]]) -> dict[N, N]:
    """The root of each name, the same for all that ``pairs`` join.

    A pair puts the root of its second below that of its first.
    """
    above = {name: name for name in names}

    def root(name: N) -> N:
        while above[name] != name:
            above[name] = name = above[above[name]]
        return name

    for first, second in pairs:
        above[root(second)] = root(first)
    return {name: root(name) for name in above}
