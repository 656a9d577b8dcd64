#!/usr/bin/env bash
# Makes .venv: the pinned packages of requirements.lock, torch as this machine has it, and this project itself. Safe to run again.
#   PYTHON       the interpreter to build on (default: python3; 3.11 or newer)
#   TORCH_INDEX  an extra package index that offers the torch build you want, if yours is not on the default one
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=.venv

say() { printf 'setup: %s\n' "$*"; }

# Any interpreter of 3.11 or newer will do; the first one found is used.
usable() { command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
if ! usable "$PYTHON"; then
  for candidate in python3.13 python3.12 python3.11; do
    if usable "$candidate"; then PYTHON=$candidate; break; fi
  done
fi
usable "$PYTHON" || { echo "setup: Python 3.11 or newer with the venv module is needed; name one with PYTHON=/path/to/python3.11" >&2; exit 1; }

# A node that already has a torch of its own (2.11 or newer) keeps it: it fits the machine's driver.
options=()
if "$PYTHON" - <<'CHECK' 2>/dev/null
import sys, torch
major, minor = (int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
sys.exit((major, minor) < (2, 11))
CHECK
then
  say "using the torch that $PYTHON already has"
  options+=(--system-site-packages)
fi

if ! [ -x "$VENV/bin/python" ] || ! "$VENV/bin/python" -c '' 2>/dev/null; then
  say "creating $VENV with $("$PYTHON" --version)"
  "$PYTHON" -m venv --clear ${options[@]+"${options[@]}"} "$VENV"
fi

pip() { "$VENV/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

say "installing the locked packages (a few minutes the first time)"
# The lock is complete: nothing is left to resolve. Bytecode comes last, on all cores.
pip install --no-compile --no-deps --require-hashes -r requirements.lock

if ! "$VENV/bin/python" -c 'import torch' 2>/dev/null; then
  index=()
  if [ -n "${TORCH_INDEX:-}" ]; then index=(--extra-index-url "$TORCH_INDEX"); fi
  torch=$(grep '^torch==' requirements-torch.txt)
  # The lock only constrains what it names; torch's CUDA packages are pinned by torch itself.
  grep -E '^[a-zA-Z0-9._-]+==' requirements.lock | sed 's/ \\$//' > "$VENV/constraints.txt"
  installed=
  if ! command -v nvidia-smi >/dev/null 2>&1; then
    say "no GPU found: looking for the CPU build of $torch"
    if pip install --no-compile ${index[@]+"${index[@]}"} -c "$VENV/constraints.txt" "$torch+cpu" 2>"$VENV/torch.log"; then installed=yes; fi
  fi
  if [ -z "$installed" ]; then
    say "installing $torch from the configured index"
    pip install --no-compile ${index[@]+"${index[@]}"} -c "$VENV/constraints.txt" "$torch"
  fi
fi

pip install --no-deps --no-build-isolation --editable .
# Tests of packages are never imported; some packages have files of other Pythons, which do not compile.
"$VENV/bin/python" -m compileall -qq -j 0 -x '/tests?/' "$VENV/lib" || true
# For editors and readers: the schemas of conf/ and a page of every key. Not in git; `make schemas` refreshes them.
"$VENV/bin/python" -m workflow.schemas > /dev/null
say "compiling the loops of planners and loads (half a minute)"
"$VENV/bin/python" scripts/compile_loops.py
"$VENV/bin/python" - <<'CHECK'
import torch
device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU only"
print(f"setup: ready, torch {torch.__version__} ({device})")
CHECK
