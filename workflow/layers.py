"""The files of conf/: those of the folder of work first, then those of the package.

A folder that ``railx init`` made holds what a study changes; every other choice is read
from the package. A file of the folder of work takes the place of the package's file of
the same name, with all its variants.
"""

from __future__ import annotations

from pathlib import Path

from railx import places

__all__ = ["conf_file", "conf_files", "group_files", "groups_of", "is_group", "layers"]


def layers(conf: Path) -> tuple[Path, ...]:
    """The folders behind ``conf``, the one that is read first in front.

    Only the conf/ of a folder of work has the package's behind it.
    """
    shipped = places.SHIPPED / "conf"
    return (conf, shipped) if conf == places.WORK / "conf" != shipped else (conf,)


def conf_file(conf: Path, name: str) -> tuple[Path, Path]:
    """The first file conf/``name``, and the folder that messages name it from.

    Where there is none, its place in ``conf`` itself.
    """
    folder = next((folder for folder in layers(conf) if (folder / name).is_file()), conf)
    return folder / name, folder.parent


def conf_files(conf: Path) -> list[Path]:
    """Every file of all layers, sorted."""
    return sorted(path for folder in layers(conf) for path in folder.rglob("*.yaml"))


def group_files(conf: Path, group: str) -> list[dict[str, Path]]:
    """The files of a group by name, a mapping for each layer.

    Without those that a file of an earlier layer replaces.
    """
    listed: list[dict[str, Path]] = []
    for folder in layers(conf):
        paths = sorted(p for p in (folder / group).glob("*.yaml") if not p.name.startswith("."))
        before = {name for files in listed for name in files}
        listed.append({path.stem: path for path in paths if path.stem not in before})
    return listed


def is_group(conf: Path, group: str) -> bool:
    """Whether a layer has a folder of this name."""
    return any((folder / group).is_dir() for folder in layers(conf))


def groups_of(conf: Path) -> list[str]:
    """The names of all groups, sorted."""
    return sorted(
        {path.name for folder in layers(conf) for path in folder.iterdir() if path.is_dir()}
    )
