"""Paths of the code, of the shipped files and of the working folder.

In a checkout all three are the checkout. An installed package has the shipped files
(conf/, resources/, the packages training and workflow) in ``railx_lab``, with the
layout of the checkout, and the working folder is one that ``railx init`` has created.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from railx.errors import UserError

#: The folder with the packages railx, railx_torch and railx_lab.
CODE = Path(__file__).resolve().parent.parent
_SHARE = CODE / "railx_lab"
#: The folder with the files that come with the code: Snakefile, conf/, resources/,
#: training/ and workflow/.
SHIPPED = _SHARE if (_SHARE / "conf").is_dir() else CODE


def is_checkout() -> bool:
    """Whether the code runs from a checkout, not from an installed package."""
    return SHIPPED == CODE


def package_folder(name: str) -> Path:
    """The folder of one of the project's packages, by its name."""
    return next(path for path in (SHIPPED / name, CODE / name) if path.is_dir())


def is_work(folder: Path) -> bool:
    """Whether a folder has a Snakefile and conf/, as ``railx init`` writes them."""
    return (folder / "Snakefile").is_file() and (folder / "conf" / "config.yaml").is_file()


#: The folder whose conf/ is used: the current folder if it is a working folder, else
#: the shipped files.
WORK = Path.cwd() if is_work(Path.cwd()) else SHIPPED


def in_repository(path: str | Path) -> Path:
    """A path as given where it exists, else the shipped file of that path."""
    given = Path(path)
    return next(
        (candidate for candidate in (given, SHIPPED / given, CODE / given) if candidate.exists()),
        given,
    )


def shipped_name(path: Path) -> str:
    """The name of a file in a record: its path in the checkout for shipped files, its
    file name for other absolute paths.
    """
    if not path.is_absolute():
        return path.as_posix()
    for folder in (SHIPPED, CODE):
        if path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return path.name


def cache(name: str) -> Path:
    """A cache folder: in the working folder, never in the installed package."""
    if is_checkout() or WORK != SHIPPED:
        return WORK / ".cache" / name
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "railx-lab" / name


def check_writable(out: Path, folder: Path, key: str = "--out") -> None:
    """Refuse to write ``out`` where no file can be made in ``folder``, there or not.

    UserError names ``key``; to be called before anything is computed.
    """
    while not folder.exists():
        folder = folder.parent
    if out.exists() and not out.is_dir() and not (out.is_file() and os.access(out, os.W_OK)):
        raise UserError(f"{key}: got {out}; allowed: a file that can be written")
    try:
        # By its permissions alone root could write to /proc or a read-only disk.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        raise UserError(
            f"{key}: got {out}; allowed: a place that can be written, unlike {folder}"
        ) from None
