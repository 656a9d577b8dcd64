"""``railx init``: a folder to work in, with choices to change and a Snakefile."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.places import CODE, SHIPPED
from workflow.commands.shared import add_flag, command

__all__ = ["SNAKEFILE", "add"]

#: The Snakefile of a folder of work: the pipeline itself stays with the code.
SNAKEFILE = """\
# What a run makes: the pipeline of the installed railx-lab, with the choices of conf/ here.
#
#   railx reproduce quick
#   snakemake --config experiment=quick tracking=off hydra="topologies.torus_2d.n=3 seed=3"
#
# Rules of your own go below; what is to be made on every run becomes an input of `everything`.

from railx.places import SHIPPED


include: str(SHIPPED / "Snakefile")


localrules:
    everything,


rule everything:
    default_target: True
    input:
        rules.all.input,
"""
#: What is written, by its place here: the folder that it is copied from.
_COPIED = {
    "conf": "conf",
    "profiles": "workflow/profiles",
}
_SHOWN = 3


def add(commands: Any) -> None:
    """Add ``railx init`` to the commands."""
    parser = command(
        commands,
        "init",
        "a folder to work in: conf/, profiles/ and a Snakefile",
        "Write conf/ (every choice, to change), profiles/ (how Snakemake runs) and a Snakefile"
        " into a folder. Files that are there and differ stay as they are, and nothing is written.",
        "example:\n  railx init study && cd study && railx reproduce quick",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder; made if missing")
    add_flag(parser, "--force", "write over files that differ")
    add_flag(parser, "--resources", "claims, published numbers and prices too, to add to them")
    parser.set_defaults(action=_init)


def _init(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    _check(folder)
    from workflow.schemas import generated_files  # imports every settings class

    copied = dict(_files(resources=options.resources))
    generated = {name: text.encode() for name, text in generated_files().items()}
    contents = {**copied, **generated}
    outdated = [name for name, content in contents.items() if _differs(folder / name, content)]
    differ = [name for name in outdated if name not in generated]
    if differ and not options.force:
        shown = ", ".join(map(str, differ[:_SHOWN])) + (", ..." if len(differ) > _SHOWN else "")
        raise UserError(
            f"DIR: {folder} has {len(differ)} of these files with another content ({shown});"
            " allowed: --force to write over them, or another folder"
        )
    written: dict[str, int] = {}
    for name, content in contents.items():
        path = folder / name
        if path.is_file() and name not in outdated:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise UserError(
                f"DIR: got {folder}; allowed: a place that can be written"
                f" ({error.filename}: {error.strerror})"
            ) from None
        if content.startswith(b"#!"):
            path.chmod(0o755)
        written[name.parts[0]] = written.get(name.parts[0], 0) + 1
    for part, count in written.items():
        is_file = (folder / part).is_file()
        print(f"written: {folder / part}" + ("" if is_file else f"/ ({count} files)"))
    if not written:
        print(f"nothing to write: {folder} has it all")
    print(f"\nnext:\n  cd {folder}\n  railx reproduce quick")
    return 0


def _check(folder: Path) -> None:
    """Refuse a place that holds the code itself, or where nothing can be written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"DIR: got {folder}, a file; allowed: a folder")
    if folder.resolve() in (CODE, SHIPPED):
        raise UserError(f"DIR: got {folder}, where the code is; allowed: another folder")
    above = folder.absolute()
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"DIR: got {folder}; allowed: a place that can be written, unlike {above}")


def _files(*, resources: bool) -> Iterator[tuple[Path, bytes]]:
    """The contents of the folder that are copied, by path."""
    yield Path("Snakefile"), SNAKEFILE.encode()
    copied = _COPIED | ({"resources": "resources"} if resources else {})
    for here, there in copied.items():
        source = SHIPPED / there
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                # Profiles name files and one another by their place in a checkout.
                content = path.read_bytes()
                if here == "profiles":
                    content = content.replace(b"workflow/profiles", b"profiles")
                yield Path(here) / path.relative_to(source), content


def _differs(path: Path, content: bytes) -> bool:
    return path.exists() and not (path.is_file() and path.read_bytes() == content)
