"""``railx STAGE``: any stage by hand, as in the pipeline, beside the other commands."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from railx import __version__
from railx.errors import UserError, allowed_names, is_explained
from railx.places import check_writable
from workflow.commands import completion, shared
from workflow.stage import ByHand, Config, Stage, Summary
from workflow.stages import STAGES, stage_of

#: The exit code after Ctrl-C, as a shell has it.
INTERRUPTED = 130

#: What each stage that can be run by hand takes, by its name.
BY_HAND: dict[str, ByHand] = {
    name: stage.by_hand for name, stage in STAGES.items() if stage.by_hand is not None
}

#: The modules of the other commands, in the order of the list.
_COMMANDS = (
    *("init", "reproduce", "sweep", "listing", "completion", "advise", "design", "compare_network"),
    *("validate", "replay", "schedule", "train", "claim", "verdicts", "findings"),
    *("compare", "summary", "fabric", "export", "import_"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, 2 with one line on standard error, or 1 where a bug ended it."""
    parser = _parser()
    options: argparse.Namespace | None = None
    completion.complete(parser)
    try:
        options = _parsed(parser, arguments)
        _check_results(options)
        _check_page(options)
        return int(options.action(options) or 0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough (`railx ... | head`); nothing is left
        # to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError as error:
        print(f"error: memory: {error or 'used up'}; allowed: smaller settings", file=sys.stderr)
        return 2
    except Exception as error:
        return _failed(error, debug=options is not None and options.debug)


def _failed(error: Exception, *, debug: bool) -> int:
    """Say in one line how a command failed: 2 for a user's mistake, 1 for a bug."""
    if debug:
        traceback.print_exc()
    if is_explained(error):
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 2
    line = " ".join(f"{type(error).__name__}: {error}".split())
    print(f"error: {line}{'' if debug else '; its traceback: --debug'}", file=sys.stderr)
    return 1


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; settings may stand behind them too, which argparse leaves over."""
    options, others = parser.parse_known_args(arguments)
    words = [name for name in ("overrides", "settings") if hasattr(options, name)]
    unknown = [word for word in others if word.startswith("-") or not words]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if others:
        setattr(options, words[0], [*getattr(options, words[0]), *others])
    return options


def _one_line(error: Exception) -> str:
    """What went wrong, in one line; of the system's errors the file and the reason."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return " ".join(str(error).split()) or type(error).__name__


def _check_results(options: argparse.Namespace) -> None:
    """Refuse a results folder that is a file, or missing and not the usual one."""
    folder = getattr(options, "results", None)
    if not isinstance(folder, Path) or folder.is_dir():
        return
    if folder.exists():
        raise UserError(f"--results: got {folder}, a file; allowed: a folder")
    if folder != shared.RESULTS:
        allowed = "a folder that holds results"
        raise UserError(f"--results: got {folder}, which is not there; allowed: {allowed}")


def _check_page(options: argparse.Namespace) -> None:
    """Refuse a page that cannot be written before anything is computed."""
    page = getattr(options, "html", None)
    if not isinstance(page, Path):
        return
    if page.is_dir():
        raise UserError(f"--html: got {page}, a folder; allowed: a file")
    check_writable(page, page.parent, "--html")


#: What argparse says, and the same as all other mistakes are said.
_SAID = (
    (r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", r"\1: got \2; allowed: \3"),
    (r"argument (.+?): invalid (\w+) value: (.*)", r"\1: got \3; allowed: \2"),
    (r"argument (.+?): ignored explicit argument (.*)", r"\1: got \2; allowed: no value"),
    (r"argument (.+?): expected (.*)", r"\1: is missing; allowed: \2"),
    (r"argument (\S+): not allowed with argument (\S+)", r"\1: got \2, too; allowed: one of them"),
    (r"the following arguments are required: (.*)", r"\1: is missing; allowed: what --help lists"),
    (r"unrecognized arguments: (.*)", r"\1: is not known; allowed: what --help lists"),
)


def _path(text: str) -> Path:
    """A path that an option names; an empty one would be the current folder."""
    if not text:
        raise ValueError
    return Path(text)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    #: Writes the epilog once help is asked for: choices without files cost imports.
    make_epilog: Callable[[], str] | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.register("type", Path, _path)

    def format_help(self) -> str:
        if self.make_epilog is not None:
            self.epilog = self.make_epilog()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        for pattern, words_for_it in _SAID:
            if found := re.fullmatch(pattern, message, re.DOTALL):
                message = found.expand(words_for_it)
                before, allowed, choices = message.partition("allowed: ")
                names = choices.replace("'", "").split(", ")
                got = before.partition("got ")[2].strip("'; ")
                message = before + allowed + allowed_names(got, names)
                break
        self.exit(2, f"error: {' '.join(message.split())}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="railx",
        description="Run an experiment or one of its stages; ask, compare and exchange results.",
        epilog=f"example:\n  {BY_HAND['topology'].example}\n\n"
        "the whole pipeline:\n  railx reproduce quick",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"railx-lab {__version__}")
    shared.add_debug(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in BY_HAND:
        _add_stage(commands, STAGES[name], BY_HAND[name])
    for module in _COMMANDS:
        import_module(f"workflow.commands.{module}").add(commands)
    return parser


def _add_stage(commands: Any, stage: Stage, by_hand: ByHand) -> None:
    parser = shared.command(commands, stage.name, stage.help, stage.help, "")
    vars(parser)["make_epilog"] = partial(_epilog, by_hand)
    shared.add_overrides(parser, "Hydra override, e.g. group=choice or group.key=value")
    parser.add_argument("--out", type=Path, help=by_hand.out)
    shown = parser.add_mutually_exclusive_group()
    shared.add_flag(shown, "--json", "print one JSON object, units in the key names")
    if by_hand.formats:
        shown.add_argument(
            "--format", choices=by_hand.formats, help="print it for another program, or write --out"
        )
    parser.set_defaults(action=_run_stage, stage=stage, by_hand=by_hand)


def _epilog(by_hand: ByHand) -> str:
    from workflow.mounts import choices

    lines = ["example:", f"  {by_hand.example}", "", "config groups:"]
    for group in by_hand.groups:
        names = ", ".join(choices(group)) or "VALUE"
        text = f"  {group}={names}"
        lines.append(textwrap.fill(text, 76, subsequent_indent="    ", break_on_hyphens=False))
    return "\n".join(lines)


def _run_stage(options: argparse.Namespace) -> None:
    from railx.effort import estimate, gathered
    from railx.progress import told
    from railx.settings import to_dict
    from workflow.compilation import announce_compilation
    from workflow.config import compose_stage
    from workflow.digest import package_versions

    by_hand: ByHand = options.by_hand
    with gathered() as costs:
        chosen = to_dict(compose_stage(options.overrides, by_hand.groups, by_hand.primary))
    name = options.stage.name
    if words := estimate(costs):
        print(f"{name}: {words}", file=sys.stderr, flush=True)
    if "numba" in package_versions(f"workflow.stages.{name}"):
        announce_compilation(name)
    # What a library prints belongs beside the result, not into it.
    if getattr(options, "format", None):
        _export(options, chosen)
        return
    with redirect_stdout(sys.stderr), _naming(options.out), told(name):
        summary = _by_hand(options.stage, by_hand, chosen, options.out)
    shared.print_summary(summary, options)


def _export(options: argparse.Namespace, chosen: Config) -> None:
    from railx.progress import told
    from workflow.commands.export import write_exported

    by_hand: ByHand = options.by_hand
    assert by_hand.export is not None
    assert by_hand.writes is not None
    if options.out is not None:
        check_writable(options.out, options.out.parent)
    with (
        redirect_stdout(sys.stderr),
        told(options.stage.name),
        tempfile.TemporaryDirectory(prefix="railx-") as scratch,
    ):
        path = Path(scratch) / f"made{next(iter(by_hand.writes))}"
        _by_hand(options.stage, by_hand, chosen, path)
        exported = by_hand.export(path, options.format)
    write_exported(exported, options.out)


def _by_hand(stage: Stage, by_hand: ByHand, chosen: Config, out: Path | None) -> Summary:
    """Make what the stage reads, then run it, in ``out`` or in a scratch folder."""
    outputs = stage.outputs if by_hand.outputs is None else by_hand.outputs
    own = replace(stage, outputs=outputs, run=by_hand.run or stage.run)
    with tempfile.TemporaryDirectory(prefix="railx-") as scratch:
        if by_hand.writes is not None:
            folder, written = Path(scratch), _written(by_hand.writes, out)
        else:
            if out is not None:
                if out.exists() and not out.is_dir():
                    raise UserError(f"--out: got {out}, a file; allowed: a folder")
                check_writable(out, out)
            folder = out if out is not None else Path(scratch)
            written = {name: folder / Path(own.pattern(name)).name for name in outputs}
        return _make(own, by_hand, chosen, written, folder, {})


def _make(
    stage: Stage,
    by_hand: ByHand,
    chosen: Config,
    written: Mapping[str, Path],
    folder: Path,
    made: dict[str, Path],
) -> Summary:
    """Run a stage after those that it reads from, each once; ``made`` are there."""
    # What the stage itself refuses ends the command before anything is made.
    settings = by_hand.settings(chosen) if by_hand.settings else chosen[stage.name]
    for output in by_hand.before.values():
        if output not in made:
            before, key = stage_of(output), output.partition(".")[2]
            path = folder / f"{before.name}{Path(before.pattern(key)).suffix}"
            _make(before, BY_HAND[before.name], chosen, {key: path}, folder, made)
            made[output] = path
    return stage.make(
        settings,
        item=by_hand.item(chosen),
        inputs={name: made[output] for name, output in by_hand.before.items()},
        outputs=written,
    )


def _written(writes: Mapping[str, str], out: Path | None) -> dict[str, Path]:
    """The output that ``--out`` takes, by the ending of its name."""
    if out is None:
        return {}
    if out.suffix not in writes:
        endings = " or ".join(writes)
        raise UserError(f"--out: got {out}; allowed: a file that ends in {endings}")
    if out.is_dir():
        raise UserError(f"--out: got {out}, a folder; allowed: a file")
    check_writable(out, out.parent)
    return {writes[out.suffix]: out}


@contextmanager
def _naming(out: Path | None) -> Iterator[None]:
    """What the system refuses when ``out`` is written is said of ``--out``."""
    try:
        yield
    except OSError as error:
        name = error.filename
        if out is None or not isinstance(name, str) or Path(name).parent != out.parent:
            raise
        allowed = f"a place that can be written ({error.strerror})"
        raise UserError(f"--out: got {out}; allowed: {allowed}") from None


if __name__ == "__main__":
    sys.exit(main())
