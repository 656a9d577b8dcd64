#!/usr/bin/env bash
# Builds the image localhost/railx-lab from the wheel in dist/, and tries it: version, lists, a folder of work, one stage.
# Arguments go to `podman build` (docker's where there is no podman), e.g. --volume $PWD/pip.conf:/etc/pip.conf:ro
#   BASE         the image to build on; default: Python's own, and where no registry is reached one made by debootstrap
#   MIRROR       Debian's mirror for debootstrap (default: its own)
#   RUN_OPTIONS  options of every run of the container
set -euo pipefail
cd "$(dirname "$0")/.."
IMAGE=localhost/railx-lab
FALLBACK=localhost/railx-lab-base

say() { printf 'container: %s\n' "$*"; }
refuse() { echo "container: $*" >&2; exit 2; }

engine=$(command -v podman || command -v docker) || refuse "neither podman nor docker is there; on Debian: apt-get install podman"
ls dist/*.whl >/dev/null 2>&1 || refuse "dist: got no wheel; make one: make wheel"

# A Debian with Python, for machines that reach a mirror but no registry.
make_base() {
  command -v debootstrap >/dev/null || refuse "no image registry is reached; a base of our own needs debootstrap (apt-get install debootstrap)"
  [ "$(id -u)" = 0 ] || refuse "no image registry is reached; debootstrap needs root"
  local root
  root=$(mktemp -d)
  trap 'rm -rf "$root"' RETURN
  say "making $FALLBACK by debootstrap (minutes)"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root/root" ${MIRROR:-} > "$root/log" 2>&1 \
    || { tail -5 "$root/log" >&2; refuse "debootstrap failed"; }
  tar -C "$root/root" -c . | "$engine" import - "$FALLBACK" >/dev/null
}

if [ -z "${BASE:-}" ]; then
  BASE=$(sed -n 's/^ARG BASE=//p' container/Containerfile)
  if "$engine" image inspect "$BASE" >/dev/null 2>&1 || "$engine" pull --quiet "$BASE" >/dev/null 2>&1; then
    say "building on $BASE"
  else
    BASE=$FALLBACK
    "$engine" image inspect "$BASE" >/dev/null 2>&1 || make_base
    say "no image registry is reached: building on $BASE"
  fi
fi

"$engine" build --file container/Containerfile --build-arg BASE="$BASE" --build-arg TORCH_INDEX="${TORCH_INDEX:-}" --tag "$IMAGE" "$@" .

run() { "$engine" run --rm ${RUN_OPTIONS:-} "$@"; }
say "trying it"
run "$IMAGE" --version
run --entrypoint sh "$IMAGE" -c 'railx init study && cd study && railx reproduce quick --until topology && ls results/quick/topology | head -3'
say "built: $engine run --rm -it $IMAGE"
