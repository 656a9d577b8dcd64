"""``railx fabric``: the controller of the switches, with the choices of conf/fabric."""

from __future__ import annotations

from typing import Any

from railx.fabric.command import LINE, add_actions, epilog
from workflow.commands.shared import command


def add(commands: Any) -> None:
    program = "railx fabric"
    group = command(commands, "fabric", LINE, f"{LINE.capitalize()}.", epilog(program))
    line = "choice of conf/fabric: switch technology or driver (default: rails)"
    add_actions(group, command, program, line, _rails)


def _rails(name: str | None) -> dict[str, Any]:
    from railx.settings import SettingsError
    from workflow.choices import is_choice
    from workflow.composer import compose_choice
    from workflow.mounts import CONF, choices

    name = "rails" if name is None else name
    if not is_choice(CONF, "fabric", name):
        allowed = ", ".join(choices("fabric"))
        raise SettingsError("--fabric", f"got {name!r}; allowed: {allowed}")
    return compose_choice(CONF, "fabric", name)
