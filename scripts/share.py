"""The build step of the wheel: what lies beside the packages comes along.

The files keep their places below ``railx_lab``, so that they refer to one another as in
the checkout (``railx.places`` finds them). The packages ``training`` and ``workflow``
are among them: at the top level their names would hide modules of others. An editable
install has the checkout itself and gets no copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools.command.build_py import build_py

__all__ = ["SHARE", "BuildShare", "shared_files"]

ROOT = Path(__file__).resolve().parent.parent
#: Where the files lie in the wheel.
SHARE = Path("railx_lab")
_FILES = ("Snakefile",)
_FOLDERS = ("conf", "resources", "training", "workflow")


def shared_files(root: Path = ROOT) -> Iterator[Path]:
    """The files that travel, by their places in the checkout, sorted in each folder."""
    yield from map(Path, _FILES)
    for folder in _FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
            if path.is_file() and not hidden:
                yield name


class BuildShare(build_py):
    """setuptools' ``build_py``, and the copies."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        share = Path(self.build_lib) / SHARE
        # What an earlier build left behind is no part of this one.
        for folder in _FOLDERS:
            shutil.rmtree(share / folder, ignore_errors=True)
        for name in shared_files():
            (share / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, share / name)  # with its mode

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        share = Path(self.build_lib) / SHARE
        return [
            *super().get_outputs(include_bytecode),
            *(str(share / name) for name in shared_files()),
        ]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *map(str, shared_files())]
