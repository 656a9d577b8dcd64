#!/usr/bin/env bash
# Runs the tests of the backend on the oldest torch that is supported, in an environment of its own.
#   PYTHON       the interpreter to build on (default: python3; 3.11 or newer)
#   TORCH_INDEX  an extra package index that offers torch's CPU build (the default one may only have CUDA's, several GB)
#   OLDEST_VENV  where the environment is, or is made (default: .venv-oldest)
# Everything behind it goes to pytest in place of the tests below.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${OLDEST_VENV:-.venv-oldest}
TORCH=$(sed -n 's/^torch = \["torch>=\(.*\)"\]$/\1/p' pyproject.toml).0
TESTS=(tests/training/test_environment.py tests/training/test_backend.py tests/training/test_lanes.py)
TESTS+=(tests/training/test_session.py tests/training/test_coverage.py tests/training/test_example.py)
TESTS+=(tests/railx_torch/test_tools.py tests/railx_torch/test_cuda_design.py)

say() { printf 'oldest torch: %s\n' "$*"; }
has() { "$VENV/bin/python" -c "import torch; assert torch.__version__.split('+')[0] == '$TORCH', torch.__version__" 2>/dev/null; }

if ! has; then
  say "making $VENV with torch $TORCH"
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
  index=()
  if [ -n "${TORCH_INDEX:-}" ]; then index=(--extra-index-url "$TORCH_INDEX"); fi
  # The versions of the lock, but setuptools: this torch wants an older one. Torch's own CUDA packages are pinned by torch.
  grep -E '^[a-zA-Z0-9._-]+==' requirements.lock | grep -v '^setuptools==' | sed 's/ \\$//' > "$VENV/constraints.txt"
  pip() { "$VENV/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
  pip install ${index[@]+"${index[@]}"} -c "$VENV/constraints.txt" "torch==$TORCH+cpu" 2>"$VENV/torch.log" \
    || pip install ${index[@]+"${index[@]}"} -c "$VENV/constraints.txt" "torch==$TORCH"
  pip install -c "$VENV/constraints.txt" numpy pyarrow pytest pytest-timeout hypothesis
  has || { echo "oldest torch: $VENV has another torch; remove it" >&2; exit 1; }
fi

say "$("$VENV/bin/python" -c 'import torch; print("torch", torch.__version__)')"
PYTHONPATH="$PWD" exec "$VENV/bin/python" -m pytest -p no:cacheprovider "${@:-${TESTS[@]}}"
