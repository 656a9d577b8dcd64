"""``railx init``: a working folder with the choices of a study and a Snakefile."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from railx.errors import UserError, allowed_names
from railx.places import CODE, SHIPPED, WORK, is_work
from workflow.commands.shared import add_flag, command

#: The Snakefile and the experiment of a new folder; the pipeline stays with the code.
_STUDY = SHIPPED / "workflow" / "study"
_CONF = SHIPPED / "conf"
_PROFILES = "profiles"
_SHOWN = 3


def add(commands: Any) -> None:
    parser = command(
        commands,
        "init",
        "a folder to work in: an experiment, its choices and a Snakefile",
        "Write an experiment, the choices that it names, a Snakemake profile and a Snakefile"
        " into a folder. What it lacks is read from the package, and --copy brings it there."
        " Files that are there and differ stay as they are; in a folder of work schemas for"
        " editors are refreshed.",
        "examples:\n  railx init study && cd study && railx reproduce study\n"
        "  railx init --copy topology/railx_hyperx --copy profiles/slurm",
    )
    parser.add_argument(
        *("folder",),
        metavar="DIR",
        type=Path,
        nargs="?",
        help="the folder; made if missing (default with --copy: this one)",
    )
    parser.add_argument(
        "--copy",
        metavar="GROUP/NAME",
        action="append",
        default=[],
        help="a choice of conf/ to change, or profiles/NAME; may be repeated",
    )
    add_flag(parser, "--force", "write over files that differ")
    add_flag(parser, "--resources", "claims, published numbers and prices too, to add to them")
    parser.set_defaults(action=_init)


def _init(options: argparse.Namespace) -> None:
    if options.folder is None and not options.copy:
        raise UserError("DIR: is missing; allowed: a folder, e.g. railx init study")
    folder: Path = options.folder or Path()
    _check(folder)
    new = not is_work(folder)
    contents: dict[Path, bytes] = {}
    if new or (options.force and not options.copy):
        contents |= dict(_study())
    if options.resources:
        contents |= dict(_below("resources", SHIPPED / "resources"))
    for name in options.copy:
        contents |= dict(_copied(name))
    differ = [name for name, content in contents.items() if _differs(folder / name, content)]
    if differ and not options.force:
        shown = ", ".join(map(str, differ[:_SHOWN])) + (", ..." if len(differ) > _SHOWN else "")
        got = f"DIR: {folder} has {len(differ)} of these files with another content ({shown})"
        raise UserError(f"{got}; allowed: --force to write over them, or another folder")
    written = _write(folder, contents | _schemas(folder, contents))
    for name in written:
        print(f"written: {folder / name}")
    for name in contents.keys() - set(written) if options.copy else ():
        print(f"there already: {folder / name}")
    if not written and not options.copy:
        print(f"nothing to write: {folder} has it all")
    if new:
        print(f"\nnext:\n  cd {shlex.quote(str(folder))}\n  railx reproduce study")


def _write(folder: Path, contents: Mapping[Path, bytes]) -> list[Path]:
    written = []
    for name, content in contents.items():
        path = folder / name
        if path.is_file() and path.read_bytes() == content:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            allowed = f"a place that can be written ({error.filename}: {error.strerror})"
            raise UserError(f"DIR: got {folder}; allowed: {allowed}") from None
        if content.startswith(b"#!"):
            path.chmod(0o755)
        written.append(name)
    return written


def _check(folder: Path) -> None:
    """Refuse the folder of the code and folders without write access."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"DIR: got {folder}, a file; allowed: a folder")
    if folder.resolve() in (CODE, SHIPPED):
        raise UserError(f"DIR: got {folder}, where the code is; allowed: another folder")
    above = folder.absolute()
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"DIR: got {folder}; allowed: a place that can be written, unlike {above}")


def _study() -> Iterator[tuple[Path, bytes]]:
    import yaml

    config = (_CONF / "config.yaml").read_text(encoding="utf-8")
    config = config.replace("experiment: paper", "experiment: study")
    yield Path("conf/config.yaml"), config.encode()
    yield from _below("", _STUDY)
    yield from _copied(f"{_PROFILES}/default")
    experiment = (_STUDY / "conf" / "experiment" / "study.yaml").read_text(encoding="utf-8")
    for group, name in _named(yaml.safe_load(experiment)):
        yield from _copied(f"{group}/{name}")


def _named(chosen: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from workflow.choices import file_of
    from workflow.settings import LISTED

    for key, names in chosen.items():
        group = LISTED.get(key, key)
        for name in [names] if isinstance(names, str) else names if key in LISTED else ():
            if file_of(_CONF, group, name) is not None:
                yield group, name


def _copied(name: str) -> Iterator[tuple[Path, bytes]]:
    """The files of GROUP/NAME in the package, by their path in a folder of work.

    A variant comes with its file; a choice of a class alone gets a file.
    """
    from workflow.choices import choice_content, choices, file_of, groups_of

    group, _, choice = name.partition("/")
    profiles = SHIPPED / "workflow" / _PROFILES
    groups = [_PROFILES, *groups_of(_CONF)]
    if group not in groups:
        got = f"--copy: got {name!r}"
        raise UserError(f"{got}; allowed: GROUP/NAME with one of {allowed_names(group, groups)}")
    names = (
        sorted(path.name for path in profiles.iterdir())
        if group == _PROFILES
        else choices(_CONF, group)
    )
    if choice not in names:
        allowed = allowed_names(choice, names)
        raise UserError(f"--copy: got {name!r}; allowed: {group}/ with {allowed}")
    if group == _PROFILES:
        # Profiles name files and one another by their place in a checkout.
        for path, content in _below(f"{_PROFILES}/{choice}", profiles / choice):
            yield path, content.replace(b"workflow/profiles", b"profiles")
        return
    file = file_of(_CONF, group, choice)
    if file is not None:
        yield file.relative_to(SHIPPED), file.read_bytes()
        return
    mark = f"# yaml-language-server: $schema=../../resources/schemas/conf/{group}.schema.json\n"
    keys = "".join(f"{k}: {v}\n" for k, v in choice_content(_CONF, group, choice).items())
    yield Path("conf") / group / f"{choice}.yaml", (mark + keys).encode()


def _below(here: str, source: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield Path(here) / path.relative_to(source), path.read_bytes()


def _schemas(folder: Path, contents: Iterable[Path]) -> dict[Path, bytes]:
    """The schemas that files of the folder name, as its choices are now.

    Those that are there are refreshed from within: elsewhere its choices are not read.
    """
    from workflow.schemas import SCHEMAS, generated_files, schema_name

    conf = folder / "conf"
    there = {path.relative_to(folder) for path in conf.rglob("*.yaml")}
    files = there | {path for path in contents if path.parts[0] == "conf"}
    needed = {SCHEMAS / f"{schema_name(_CONF.parent / path)}.schema.json" for path in files}
    here = folder.resolve() == WORK
    return {
        name: text.encode()
        for name, text in generated_files().items()
        if name in needed and (here or not (folder / name).exists())
    }


def _differs(path: Path, content: bytes) -> bool:
    return path.exists() and not (path.is_file() and path.read_bytes() == content)
