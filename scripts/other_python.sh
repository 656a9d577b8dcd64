#!/usr/bin/env bash
# Runs the static checks and the tests that need no torch on the newest supported Python besides that of .venv, in .venv-other.
# Where there is none, it says so and ends well.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=.venv-other
# What is imported is compiled once; most of the packages never are.
unset PYTHONDONTWRITEBYTECODE
TESTS=(tests/ground tests/vocabulary tests/fabric/test_fuzz.py tests/exchange tests/economics tests/tenancy)

say() { printf 'other python: %s\n' "$*"; }
version() { "$1" -c 'import sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

FIRST=$(version .venv/bin/python)
OTHER=
for wanted in 3.13 3.12 3.11; do
  for candidate in "python$wanted" "$(pyenv root 2>/dev/null || true)"/versions/"$wanted".*/bin/python; do
    if [ -z "$OTHER" ] && [ "$wanted" != "$FIRST" ] && [ "$(version "$candidate")" = "$wanted" ]; then OTHER=$candidate; fi
  done
done
if [ -z "$OTHER" ]; then
  say "skipped: no Python 3.11 to 3.13 besides $FIRST here"
  exit
fi

say "$("$OTHER" --version)"
"$OTHER" -m venv --clear "$VENV"
"$VENV/bin/python" -m pip --quiet --disable-pip-version-check install --no-compile --no-deps --require-hashes -r requirements.lock
# mypy reads torch's types where the first Python has them; nothing imports that torch.
mkdir "$VENV/types"
ln -s "$(.venv/bin/python -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])')" "$VENV/types/torch"
PYTHONPATH="$VENV/types" "$VENV/bin/mypy" --cache-dir "$VENV/mypy"
"$VENV/bin/lint-imports" --no-cache
"$VENV/bin/python" -m pytest -q -m "not slow" -p no:cacheprovider "${TESTS[@]}"
