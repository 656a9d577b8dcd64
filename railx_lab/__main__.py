"""Run a module of an installed lab: ``python -m railx_lab training.run --help``.

In the checkout ``python -m training.run`` does the same.
"""

from __future__ import annotations

import runpy
import sys

from railx_lab import search_root

if len(sys.argv) < 2:
    sys.exit("railx_lab: MODULE: is missing; allowed: a module, e.g. training.run")
search_root()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
