"""``railx compare-network``: one network beside all of the arena at its size."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.errors import UserError
from workflow.commands.shared import add_flag, command, print_answer

if TYPE_CHECKING:
    from railx.design.settings import ArenaSettings

_EPILOG = """\
examples:
  railx compare-network mine.graphml topology.chips_per_node=8
  railx compare-network topology=railx_hyperx topology.m=4 topology.n=4
  railx compare-network topology=torus_2d arena=small --html torus.html
  railx compare-network mine.graphml arena.point.devices=b200 --json

A file is read as topology=imported. The other networks, jobs, prices and faults are those of
arena (beside by default, in conf/arena/full.yaml). A network without a bill of materials has
no price."""
#: Rows of the other networks of the last few comparisons.
_CACHE = "beside"


def add(commands: Any) -> None:
    """Add ``railx compare-network`` to the commands."""
    line = "one network beside all others at its size"
    parser = command(commands, "compare-network", line, f"{line.capitalize()}.", _EPILOG)
    parser.add_argument("network", metavar="FILE | topology=NAME", help="the network")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="changes to conf/")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page")
    add_flag(parser, "--json", "print one JSON object")
    parser.set_defaults(action=_compare)


def _compare(options: argparse.Namespace) -> None:
    from railx.design.comparison import compare_network, comparison_lines, write_page
    from railx.families import check_topology
    from railx.progress import told
    from railx.settings import to_dict
    from workflow.compilation import announce_compilation
    from workflow.config import compose_stage
    from workflow.stages import named_files
    from workflow.stages.design import rate_store

    name, words = _named(options.network)
    asked = [*words, *options.settings]
    if not any(word.startswith("arena=") for word in asked):
        asked.append("arena=beside")
    composed = compose_stage(asked, ["topology", "arena", "seed"])
    arena, seed = composed["arena"], composed["seed"]
    # Before its file is digested, whose errors do not name the key.
    check_topology(composed["topology"])
    if not arena.jobs or not arena.networks:
        raise UserError("arena: got no jobs or no networks; allowed: beside, small, full")
    arena.check_names("arena")
    announce_compilation("compare-network")
    with told("compare-network"):
        comparison = compare_network(
            "mine" if name in arena.networks else name,
            composed["topology"],
            arena,
            seed,
            rate_store(named_files(to_dict(composed))),
            _kept(arena, seed),
        )
    if options.html is not None:
        write_page(options.html, comparison, arena)
    print_answer(comparison.as_dict(), comparison_lines(comparison), options)


def _named(word: str) -> tuple[str, list[str]]:
    key, separator, value = word.partition("=")
    if separator:
        if key != "topology" or not value:
            raise UserError(f"{word}: got no network; allowed: a FILE, or topology=NAME")
        return "mine" if value == "imported" else value, [word]
    path = Path(word)
    if not path.is_file():
        raise UserError(f"{word}: got no such file; allowed: a network's FILE, or topology=NAME")
    quoted = str(path).replace("'", "\\'")
    return path.stem, ["topology=imported", f"topology.path='{quoted}'"]


def _kept(arena: ArenaSettings, seed: int) -> Callable[[str, Callable[[], list[Any]]], list[Any]]:
    from railx.file_cache import cached
    from railx.places import cache, in_repository
    from railx.settings import to_dict
    from workflow.cache_keys import cache_key
    from workflow.digest import code_digest
    from workflow.stages.arena import arena_files

    code, folder = code_digest("railx.design.arena"), cache(_CACHE)
    files = [in_repository(file) for file in arena_files(to_dict(arena))]

    def rows(name: str, compute: Callable[[], list[Any]]) -> list[Any]:
        return cached(folder, cache_key([code, repr(arena), name, str(seed)], files), compute)

    return rows
