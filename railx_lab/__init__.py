"""The command ``railx``, and the folder of an installed lab's other packages.

The packages ``training`` and ``workflow`` have names that programs of others have, too.
So the wheel installs neither: it holds them in the folder of this package, beside
Snakefile, conf/ and resources/, with the layout of the checkout. Only the lab's own
processes search that folder for modules.
"""

from __future__ import annotations

import sys

try:
    import os
    from pathlib import Path
except KeyboardInterrupt:
    # Before this Python itself starts, in which no code of a package can speak.
    sys.exit(130)

__all__ = ["ROOT", "main", "search_root"]

_HERE = Path(__file__).resolve().parent
#: The folder with training/, workflow/, conf/ and resources/: this one in an installed
#: package, else the checkout.
ROOT = _HERE if (_HERE / "workflow").is_dir() else _HERE.parent


def search_root() -> None:
    """Let this process and its children import the packages of :data:`ROOT`."""
    root = str(ROOT)
    if root not in sys.path:
        sys.path.insert(0, root)
    searched = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    if root not in searched:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *searched])


def main() -> int:
    """The command ``railx``; returns its exit code."""
    try:
        search_root()
        from workflow.cli import main as command

        return command()
    except KeyboardInterrupt:
        # While the command was loaded.
        print("interrupted", file=sys.stderr)
        return 130
