"""Says that Numba compiles; apart from :mod:`railx.progress`, which needs no Numba."""

from __future__ import annotations

import sys
from collections.abc import Callable


def announce_compilation(name: str, say: Callable[[str], None] | None = None) -> None:
    """Say once when Numba compiles (not: loads), by ``say`` or on standard error."""
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        announced = False

        def on_start(self, event: object) -> None:
            if not self.announced:
                self.announced = True
                line = f"{name}: compiles its loops, once on this machine"
                say(line) if say else print(line, file=sys.stderr, flush=True)

        def on_end(self, event: object) -> None:
            pass

    event.register("numba:compile", Listener())
