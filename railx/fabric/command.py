"""``railx fabric``: the controller of the switches, for any torch program, and what
people ask of it. Where the backend is installed alone, it is called ``railx-fabric``.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import secrets
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from railx.errors import UserError, is_explained

LINE = "serve the optical fabric to any torch program, and look at it"
#: Adds a command to others: its name, line of help, description and epilog.
Add = Callable[[Any, str, str, str, str], argparse.ArgumentParser]
#: The plain settings of the rails from the value of ``--fabric``, None by default.
Rails = Callable[[str | None], dict[str, Any]]

_EPILOG = """\
example, in two terminals:
  {program} serve --ranks 4 --latency-ms 10
  (export the variables that it prints, then)  torchrun --nproc-per-node 4 script.py

where script.py calls torch.distributed.init_process_group("railx"). For ranks on other
hosts:
  {program} serve --ranks 16 --gpus-per-server 8 --host 0.0.0.0 --port 29700"""

_ASKING = """\
example, with the variables that `{program} serve` printed exported:
  {program} {name} $RAILX_CONTROLLER{options}"""


def epilog(program: str) -> str:
    """The examples below the help of the command ``program``."""
    return _EPILOG.format(program=program)


def add_actions(group: Any, add: Add, program: str, fabric_help: str, rails: Rails) -> None:
    """Add the actions of the command ``program`` to its parser."""
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_serve(actions, add, program, fabric_help, rails)
    ask = functools.partial(_add_asking, actions, add, program)
    line = "show rails, circuits, leases, queue, ranks, refusals and failures"
    status = ask("status", line, _status)
    status.add_argument("--json", action="store_true", help="print all of it as JSON")
    metrics = ask("metrics", "print the counters in the text format of Prometheus", _metrics)
    metrics.add_argument(
        "--serve",
        type=int,
        metavar="PORT",
        help="serve them to Prometheus at http://127.0.0.1:PORT/metrics until Ctrl-C; 0: any port",
    )
    example = " 3.right --reason 'dirty connector'"
    fail = ask("fail-port", "have the emulated switch lose ports", _fail_port, example)
    line = "have the emulated switch bring lost ports back"
    restore = ask("restore-port", line, _restore_port, " 3.right")
    for parser in (fail, restore):
        parser.add_argument("ports", nargs="+", metavar="PORT", help="GPU.left or GPU.right")
    line = "have the emulated switch fail its next commands"
    commanded = ask("fail-command", line, _fail_command, " --count 2")
    commanded.add_argument("--count", type=int, default=1, help="how many (default: 1)")
    for parser in (fail, commanded):
        parser.add_argument("--reason", default="on order", help="what ranks are told")
    ask("stop", "end the controller", _stop)
    replay = add(
        actions,
        "replay-log",
        "give a controller's journal to a fresh core and compare what it answers",
        "Give the events of a controller's journal to a fresh core and say whether it does"
        " what the controller did. Ends with 1 where it does not.",
        f"example:\n  {program} replay-log events.jsonl",
    )
    replay.add_argument("path", type=Path, metavar="PATH", help="journal of a controller")
    replay.add_argument("--json", action="store_true", help="print the counts as JSON")
    replay.set_defaults(action=_replay_log)


def _add_asking(
    actions: Any, add: Add, program: str, name: str, line: str, action: Any, options: str = ""
) -> argparse.ArgumentParser:
    """A command that asks a running controller; ``options``: those of its example."""
    said = f"{line[0].upper()}{line[1:]}."
    example = _ASKING.format(program=program, name=name, options=options)
    parser = add(actions, name, line, said, example)
    parser.add_argument(
        "address", metavar="ADDRESS", help="of the controller: host:port or unix:/path"
    )
    parser.add_argument("--token", help="token of the controller (default: RAILX_TOKEN)")
    parser.set_defaults(action=action)
    return parser


def _add_serve(actions: Any, add: Add, program: str, fabric_help: str, rails: Rails) -> None:
    parser = add(
        actions,
        "serve",
        "start the controller of the optical switches",
        "Start the controller of the optical switches (emulated ones by default), print the"
        " environment variables that every rank needs, and end on Ctrl-C with the statistics.",
        epilog(program),
    )
    parser.add_argument("--ranks", type=int, required=True, help="number of ranks (GPUs)")
    parser.add_argument("--fabric", metavar="NAME", help=fabric_help)
    parser.add_argument(
        "--mode",
        default="on_demand",
        choices=("on_demand", "provisioned"),
        help="how ranks ask for circuits (default: on_demand)",
    )
    parser.add_argument(
        "--latency-ms",
        type=float,
        metavar="MS",
        help="from a switch command to light (default: the technology's, or 10)",
    )
    of_file = "(default: that of the file)"
    parser.add_argument(
        "--gpus-per-server", type=int, metavar="N", help=f"GPUs that share a server {of_file}"
    )
    parser.add_argument(
        "--host",
        help=f"address to listen on; 0.0.0.0: every one; unix:/path: a socket file {of_file}",
    )
    parser.add_argument("--port", type=int, help=f"port to listen on; 0: any free one {of_file}")
    parser.add_argument(
        "--timeout-s", type=float, metavar="S", help=f"how long a rank waits {of_file}"
    )
    parser.add_argument(
        "--state-file",
        metavar="PATH",
        help="where the emulated switch keeps its light, for a controller that starts anew",
    )
    parser.add_argument(
        "--journal", metavar="PATH", help="where every event is kept, for replay-log"
    )
    parser.add_argument(
        "--address",
        metavar="HOST",
        help="the name under which ranks reach this host (default: found from --host)",
    )
    parser.add_argument(
        "--token",
        help="token of every rank (default: RAILX_TOKEN, or a new one, which is printed)",
    )
    parser.set_defaults(action=functools.partial(_serve, rails))


def _settings(rails: Rails, options: argparse.Namespace) -> Any:
    """The settings of a controller: those of its rails, with the options on top."""
    from railx.fabric.settings import FabricSettings
    from railx.settings import SettingsError, load

    plain = rails(options.fabric)
    plain |= {
        name: getattr(options, name)
        for name in ("gpus_per_server", "host", "port", "timeout_s")
        if getattr(options, name) is not None
    }
    switch = dict(plain["switch"])
    if options.state_file is not None:
        switch["state_file"] = options.state_file
    if options.journal is not None:
        limit_mib = (plain.get("journal") or {"limit_mib": 256})["limit_mib"]
        plain["journal"] = {"path": options.journal, "limit_mib": limit_mib}
    latency_ms = options.latency_ms
    if latency_ms is None:
        latency_ms = switch.get("switching_ms")
    if latency_ms is None:
        # A real switch takes as long as it takes.
        latency_ms = 10.0 if switch["driver"] == "emulated" else 0.0
    plain |= {"switch": switch, "mode": options.mode}
    plain["reconfiguration_latency_ms"] = float(latency_ms)
    settings: FabricSettings = load(FabricSettings, plain, "fabric")
    if options.ranks < 1:
        raise SettingsError("--ranks", f"got {options.ranks}; allowed: at least 1")
    return settings


def _serve(rails: Rails, options: argparse.Namespace) -> int:
    from railx.fabric.controller import TOKEN, ControllerBroken, serve
    from railx.fabric.launch import priority_of
    from railx.fabric.protocol import UNIX, address_of

    settings = _settings(rails, options)
    token = options.token or os.environ.get(TOKEN) or secrets.token_urlsafe(16)

    def ready(host: str, port: int) -> None:
        named = host if host.startswith(UNIX) else options.address or host
        variables = {
            "RAILX_CONTROLLER": address_of(named, port),
            "RAILX_FABRIC": settings.mode,
            "RAILX_GPUS_PER_SERVER": str(settings.gpus_per_server),
            TOKEN: token,
        }
        latency_ms = settings.reconfiguration_latency_ms
        print(
            f"# controller of {options.ranks} ranks, {settings.switch.driver} switches"
            + (f", {latency_ms:g} ms from a command to light" if latency_ms else "")
            + "; every rank needs:"
        )
        if settings.controller_priority != priority_of():
            print("# runs as any process: the system grants no real-time priority (CAP_SYS_NICE)")
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
        print("# Ctrl-C ends it", flush=True)

    try:
        statistics = asyncio.run(serve(settings, options.ranks, token=token, ready=ready))
    except ControllerBroken as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    counts = {
        name.replace("_ns", "_ms"): value / 1e6 if name.endswith("_ns") else value
        for name, value in statistics.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    width = max(map(len, counts))
    for name, count in counts.items():
        print(f"{name:<{width}}  {count:g}")
    sys.stdout.flush()
    return 0


def _asked(options: argparse.Namespace, ask: Callable[[Any], object], answer: str = "") -> int:
    """Ask the controller, and print ``answer`` or what it returned."""
    from railx.fabric.observer import Observer

    with Observer(options.address, options.token) as observer:
        returned = ask(observer)
    print(answer or str(returned).removesuffix("\n"))
    return 0


def _status(options: argparse.Namespace) -> int:
    from railx.fabric.observer import status_text

    text = functools.partial(json.dumps, indent=2) if options.json else status_text
    return _asked(options, lambda observer: text(observer.status()))


def _metrics(options: argparse.Namespace) -> int:
    from railx.fabric.observer import serve_metrics

    if options.serve is None:
        return _asked(options, lambda observer: observer.metrics())
    return serve_metrics(options.address, options.token, options.serve)


def _fail_port(options: argparse.Namespace) -> int:
    ports, reason = _ports(options.ports), options.reason
    said = f"lost: {', '.join(options.ports)} ({reason})"
    return _asked(options, lambda observer: observer.fail_ports(ports, reason), said)


def _restore_port(options: argparse.Namespace) -> int:
    ports, said = _ports(options.ports), f"back: {', '.join(options.ports)}"
    return _asked(options, lambda observer: observer.restore_ports(ports), said)


def _fail_command(options: argparse.Namespace) -> int:
    count, reason = options.count, options.reason
    said = f"the next {count} commands fail ({reason})"
    return _asked(options, lambda observer: observer.fail_commands(count, reason), said)


def _stop(options: argparse.Namespace) -> int:
    said = f"the controller at {options.address} ends"
    return _asked(options, lambda observer: observer.shut_down(), said)


def _ports(names: list[str]) -> Any:
    from railx.fabric.switches import parse_port

    return [parse_port(name) for name in names]


def _replay_log(options: argparse.Namespace) -> int:
    from railx.fabric.journal import replay_journal

    replayed = replay_journal(options.path)
    same = not replayed.different
    facts = {
        "path": str(options.path),
        "events": replayed.events.total(),
        "by_event": dict(replayed.events.most_common()),
        "actions": replayed.kinds.total(),
        "by_action": dict(replayed.kinds.most_common()),
        "different_events": len(replayed.different),
        "first_different_event": min(replayed.different, default=None),
        "torn": replayed.torn,
        "ended": replayed.ended,
    }
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0 if same else 1
    for what, counts in (("events", replayed.events), ("actions", replayed.kinds)):
        listed = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        print(f"{what:<8} {counts.total()}{f' ({listed})' if listed else ''}")
    if replayed.torn:
        print("half a line at the end was left out: the controller was killed while it wrote")
    if replayed.ended is not None:
        print(f"the journal ended before the controller did: {replayed.ended}")
    if same:
        print("same: every event gave the actions that the controller took")
        return 0
    first = min(replayed.different)
    print(f"different: {len(replayed.different)} events, the first is event {first}")
    return 1


#: Emulated switches on this host, every rank a server.
_RAILS = {"gpus_per_server": 1, "host": "127.0.0.1", "port": 0, "timeout_s": 120.0}


def _rails_of_file(path: str | None) -> dict[str, Any]:
    """The settings of rails in a JSON file, on top of the default."""
    if path is None:
        return {**_RAILS, "switch": {"driver": "emulated"}}
    try:
        plain = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--fabric: got {path}: {error}; allowed: a JSON file") from None
    if not isinstance(plain, dict):
        raise UserError(f"--fabric: got {path}, whose JSON is no object; allowed: settings by name")
    return {**_RAILS, "switch": {"driver": "emulated"}, **plain}


def _add(
    commands: Any, name: str, line: str, description: str, examples: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=line,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command ``railx-fabric``; returns its exit code."""
    program = "railx-fabric"
    parser = argparse.ArgumentParser(
        prog=program,
        description=f"{LINE.capitalize()}.",
        epilog=epilog(program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_actions(
        parser, _add, program, "JSON file with the settings of rails and switches", _rails_of_file
    )
    options = parser.parse_args(arguments)
    try:
        return int(options.action(options))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not is_explained(error):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
