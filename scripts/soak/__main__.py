"""``python scripts/soak``: the control plane under load and faults; see ``--help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python put this folder itself on the path, where its modules would hide others.
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent), *(path for path in sys.path if Path(path).resolve() != here)]
    from soak.cli import main

    sys.exit(main())
