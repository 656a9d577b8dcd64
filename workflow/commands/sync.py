"""``railx sync``: upload the W&B runs that were written offline."""

from __future__ import annotations

import argparse
from typing import Any

from railx.errors import UserError
from workflow.commands.shared import add_flag, add_results, command


def add(commands: Any) -> None:
    parser = command(
        commands,
        "sync",
        "upload W&B runs that were written offline, each once",
        "Upload the runs, the workspace and the report that W&B does not have yet. It needs a"
        " network and a login (`wandb login`); a second call finds nothing to do.",
        "example:\n  railx sync --dry-run",
    )
    add_results(parser)
    add_flag(parser, "--dry-run", "only say what is pending")
    parser.set_defaults(action=_sync)


def _sync(options: argparse.Namespace) -> None:
    from railx.tracking.sync import pending_runs, pending_views, sync

    if options.dry_run:
        runs, views = pending_runs(options.results), pending_views(options.results)
        print(f"pending: {len(runs)} runs, {len(views)} views")
        return
    try:
        sent = sync(options.results)
    except RuntimeError as error:
        raise UserError(str(error)) from None
    if not any(sent.values()):
        print("nothing to upload")
    else:
        print(f"uploaded: {sent['runs']} runs, {sent['views']} views")
