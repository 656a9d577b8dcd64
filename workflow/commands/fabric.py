"""``railx fabric serve``: the controller of the switches, for any torch program."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shlex
import sys
from typing import Any

from workflow.commands.shared import command

__all__ = ["add"]

_EPILOG = """\
example, in two terminals:
  railx fabric serve --ranks 4 --latency-ms 10
  (export the variables that it prints, then)  torchrun --nproc-per-node 4 script.py

where script.py calls torch.distributed.init_process_group("railx"). For ranks on other
hosts:
  railx fabric serve --ranks 16 --gpus-per-server 8 --host 0.0.0.0 --port 29700"""


def add(commands: Any) -> None:
    """Add ``railx fabric`` to the commands."""
    line = "serve the optical fabric to any torch program"
    group = command(commands, "fabric", line, f"{line.capitalize()}.", _EPILOG)
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    parser = command(
        actions,
        "serve",
        "start the controller of the emulated optical switches",
        "Start the controller of the emulated optical switches, print the environment"
        " variables that every rank needs, and end on Ctrl-C with the statistics.",
        _EPILOG,
    )
    parser.add_argument("--ranks", type=int, required=True, help="number of ranks (GPUs)")
    parser.add_argument(
        "--mode",
        default="on_demand",
        choices=("on_demand", "provisioned"),
        help="how ranks ask for circuits (default: on_demand)",
    )
    parser.add_argument(
        "--latency-ms",
        type=float,
        default=10.0,
        metavar="MS",
        help="from a switch command to light (default: 10)",
    )
    rails = "(default: that of conf/fabric/rails.yaml)"
    parser.add_argument(
        "--gpus-per-server", type=int, metavar="N", help=f"GPUs that share a server {rails}"
    )
    parser.add_argument("--host", help=f"address to listen on; 0.0.0.0: every one {rails}")
    parser.add_argument("--port", type=int, help=f"port to listen on; 0: any free one {rails}")
    parser.add_argument(
        "--timeout-s", type=float, metavar="S", help=f"how long a rank waits {rails}"
    )
    parser.add_argument(
        "--address",
        metavar="HOST",
        help="the name under which ranks reach this host (default: found from --host)",
    )
    parser.add_argument(
        "--token",
        help="what ranks have to know (default: RAILX_TOKEN, or one that is made and printed)",
    )
    parser.set_defaults(action=_serve)


def _serve(options: argparse.Namespace) -> int:
    import yaml

    from railx.fabric.controller import TOKEN, serve
    from railx.fabric.settings import FabricSettings
    from railx.settings import SettingsError, load
    from workflow.mounts import CONF

    plain = yaml.safe_load((CONF / "fabric" / "rails.yaml").read_text())
    given = {
        name: getattr(options, name)
        for name in ("gpus_per_server", "host", "port", "timeout_s")
        if getattr(options, name) is not None
    }
    plain |= given | {"mode": options.mode, "reconfiguration_latency_ms": options.latency_ms}
    settings: FabricSettings = load(FabricSettings, plain, "fabric")
    if options.ranks < 1:
        raise SettingsError("--ranks", f"got {options.ranks}; allowed: at least 1")
    token = options.token or os.environ.get(TOKEN) or secrets.token_urlsafe(16)

    def ready(host: str, port: int) -> None:
        variables = {
            "RAILX_CONTROLLER": f"{options.address or host}:{port}",
            "RAILX_FABRIC": settings.mode,
            "RAILX_GPUS_PER_SERVER": str(settings.gpus_per_server),
            TOKEN: token,
        }
        print(
            f"# controller of {options.ranks} ranks, {settings.reconfiguration_latency_ms:g} ms"
            " from a command to light; every rank needs:"
        )
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
        print("# Ctrl-C ends it", flush=True)

    statistics = asyncio.run(serve(settings, options.ranks, token=token, ready=ready))
    counts = {
        name.replace("_ns", "_ms"): value / 1e6 if name.endswith("_ns") else value
        for name, value in statistics.items()
        if isinstance(value, int)
    }
    width = max(map(len, counts))
    for name, count in counts.items():
        print(f"{name:<{width}}  {count:g}")
    sys.stdout.flush()
    return 0
