"""``railx completion``: shell completion of commands, options and choices.

argcomplete asks the command itself at every key, so that what it offers is what conf/
holds at that moment; it has bash, zsh and fish.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from workflow.commands.shared import command

SHELLS = ("bash", "zsh", "fish")
#: Set by the shell while it asks.
_ASKED = "_ARGCOMPLETE"


def add(commands: Any) -> None:
    parser = command(
        commands,
        "completion",
        "the shell script that completes railx",
        "Print the lines that make a shell complete railx: commands, options, experiments,"
        " claims and the choices of conf/.",
        "example:\n"
        '  eval "$(railx completion bash)"                              # in ~/.bashrc\n'
        '  eval "$(railx completion zsh)"                               # in ~/.zshrc\n'
        "  railx completion fish > ~/.config/fish/completions/railx.fish",
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.set_defaults(action=_completion)


def _completion(options: argparse.Namespace) -> None:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["railx"], shell=options.shell))


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell where it asks, which ends the process; else do nothing."""
    if _ASKED not in os.environ:
        return
    import argcomplete

    _teach(parser, {})
    argcomplete.autocomplete(parser)


def _teach(parser: argparse.ArgumentParser, defaults: dict[str, Any]) -> None:
    defaults = {**defaults, **parser._defaults}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _teach(below, defaults)
            continue
        completer = _completer(action, defaults)
        if completer is not None:
            # argcomplete looks for it there; argparse has no place for it.
            vars(action)["completer"] = completer


def _completer(
    action: argparse.Action, defaults: dict[str, Any]
) -> Callable[..., Iterable[str]] | None:
    from workflow.mounts import choices
    from workflow.resources import all_claims

    if action.dest == "overrides":
        by_hand = defaults.get("by_hand")
        groups = None if by_hand is None else by_hand.groups
        return lambda prefix, **_: override_choices(prefix, groups)
    if action.dest == "experiment":
        return lambda **_: choices("experiment")
    if action.dest in ("id", "claim"):
        return lambda **_: [claim.id for claim in all_claims()]
    return None


def override_choices(prefix: str, groups: Iterable[str] | None = None) -> Iterator[str]:
    """``group=`` for every group of conf/; ``group=choice`` once one is typed."""
    from workflow.choices import groups_of
    from workflow.mounts import CONF, choices

    folders = groups_of(CONF)
    offered = folders if groups is None else [group for group in folders if group in groups]
    group = prefix.partition("=")[0]
    if "=" in prefix and group in offered:
        yield from (f"{group}={name}" for name in choices(group))
    else:
        yield from (f"{group}=" for group in offered)
