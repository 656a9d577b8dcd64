"""Where things are: the code, the files that come with it, and the folder of work.

In a checkout all three are the checkout. An installed package holds the files that come
with it (conf/, resources/, the pipeline) in ``railx/_share``, in the same order as the
checkout, and work stands in a folder that ``railx init`` made.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = [
    "CODE",
    "SHIPPED",
    "WORK",
    "cache",
    "in_repository",
    "is_checkout",
    "is_work",
    "shipped_name",
]

#: The folder with the packages railx, railx_torch, training and workflow.
CODE = Path(__file__).resolve().parent.parent
_SHARE = Path(__file__).resolve().parent / "_share"
#: The folder with the files that come with the code: Snakefile, conf/, resources/ ...
SHIPPED = _SHARE if _SHARE.is_dir() else CODE


def is_checkout() -> bool:
    """Whether the code runs from a checkout, not from an installed package."""
    return SHIPPED == CODE


def is_work(folder: Path) -> bool:
    """Whether a folder holds choices and a Snakefile, as ``railx init`` writes them."""
    return (folder / "Snakefile").is_file() and (folder / "conf" / "config.yaml").is_file()


#: The folder whose conf/ counts: the one that the process starts in where it is one for
#: work, else the one that comes with the code.
WORK = Path.cwd() if is_work(Path.cwd()) else SHIPPED


def in_repository(path: str | Path) -> Path:
    """A path as given where it exists, else below what comes with the code.

    Stages so find shipped data from any folder.
    """
    given = Path(path)
    return next(
        (place for place in (given, SHIPPED / given, CODE / given) if place.exists()), given
    )


def shipped_name(path: Path) -> str:
    """How a file is called in a record: by its place in the checkout where it came with
    the code, by its name where it lies elsewhere outside the folder of work.
    """
    if not path.is_absolute():
        return path.as_posix()
    for folder in (SHIPPED, CODE):
        if path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return path.name


def cache(name: str) -> Path:
    """The folder for what can be made again: in the folder of work, never in the
    installed package.
    """
    if is_checkout() or WORK != SHIPPED:
        return WORK / ".cache" / name
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "railx-lab" / name
