"""The processes of a pipeline that runs in a folder."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["PATIENCE_S", "jobs_of", "living", "ranks_of", "until"]

#: How long anything may take on a machine that is busy with other things.
PATIENCE_S = 900.0


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def living(folder: Path) -> dict[int, str]:
    """The processes that work in a folder, by id, with their commands."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (place / "cwd").resolve() == folder.resolve():
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(place.name)] = words
    return found


def parent_of(process: int) -> int:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        return int(words[1])
    return 0


def jobs_of(folder: Path) -> list[int]:
    """The processes that do the work of jobs, not those that watch them."""
    scripts = {key for key, words in living(folder).items() if ".snakemake/scripts/" in words}
    return [process for process in scripts if parent_of(process) in scripts]


def ranks_of(folder: Path) -> list[int]:
    """The ranks of a training run that was started plainly or by torchrun."""
    found = living(folder)
    server = [key for key, words in found.items() if "multiprocessing.forkserver" in words]
    plain = [key for key in server if parent_of(key) in server]
    agents = [key for key, words in found.items() if "torch.distributed.run" in words]
    return plain + [key for key in found if parent_of(key) in agents]
