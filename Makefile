# The door. `make help` lists what is behind it.
.DEFAULT_GOAL := help
SHELL := /bin/bash

EXPERIMENT ?= paper
OVERRIDES ?=
CORES ?= all
WORKERS ?= 2
GENERATED ?= 20
SEED ?= 1
STATES ?= 1000000
SOAK_S ?= 600
RUNS ?= 5
KILLS ?= 10
export TORCH_INDEX
export PYTHON ?= python3

BIN := .venv/bin
READY := .venv/.ready
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

CONFIG = --config "experiment=$(EXPERIMENT)" $(if $(strip $(OVERRIDES)),hydra="$(OVERRIDES)")
# The folder of the run: overrides may name it anew.
NAMED = $(or $(lastword $(patsubst name=%,%,$(filter name=%,$(OVERRIDES)))),$(EXPERIMENT))
PURELIB = import sysconfig; print(sysconfig.get_path("purelib"))
SNAKEMAKE = $(BIN)/snakemake --cores "$(CORES)" $(CONFIG)

.PHONY: help setup reproduce figure claim findings report pdf sync schemas test test-system coverage test-slow test-torch test-clients test-oldest-torch mutants mistakes explore kill-test test-kubernetes test-slurm soak bench bench-planners bench-sizes wheel wheel-test container gpu gpu-folder gpu-record steady site notebooks lint lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make reproduce EXPERIMENT=quick                       minutes, no GPU needed"
	@echo "  make reproduce OVERRIDES='topologies.torus_2d.n=3'     change one thing, rerun what depends on it"

$(READY): requirements.lock requirements-torch.txt pyproject.toml scripts/setup.sh
	@scripts/setup.sh
	@touch $@

setup: $(READY) ## make .venv with the locked packages and torch as this machine has it

reproduce: $(READY) ## run the whole chain: results/EXPERIMENT/report.html (PROFILE=slurm or kubernetes: docs/clusters.md)
	@$(if $(PROFILE),$(BIN)/python -m workflow.cluster "$(PROFILE)" > /dev/null)
	@$(if $(PROFILE),PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake --workflow-profile workflow/profiles/$(PROFILE) $(CONFIG),$(SNAKEMAKE))
	@$(BIN)/railx summary --experiment "$(EXPERIMENT)" --overrides "$(OVERRIDES)"

pdf: $(READY) ## the page of a finished run as PDF, by an installed Chromium: results/EXPERIMENT/report.pdf
	@$(BIN)/railx pdf --experiment "$(EXPERIMENT)" --overrides "$(OVERRIDES)"

figure: $(READY) ## one figure and what it needs, e.g. FIGURE=cost: results/EXPERIMENT/figure/cost.svg and .png
	@test -n "$(FIGURE)" || { echo "error: FIGURE: is missing; allowed: a name under figures in conf/experiment/$(EXPERIMENT).yaml" >&2; exit 2; }
	@$(BIN)/snakemake --cores "$(CORES)" "results/$(NAMED)/figure/$(FIGURE).svg" $(CONFIG)

claim: $(READY) ## make what one claim needs and print its verdict, e.g. CLAIM=railx_absolute_cost
	@test -n "$(CLAIM)" || { echo "error: CLAIM: is missing; allowed: the id of a claim in resources/claims" >&2; exit 2; }
	@$(BIN)/railx claim "$(CLAIM)" $(OVERRIDES) --experiment "$(EXPERIMENT)" --cores "$(CORES)"

findings: $(READY) ## write the numbers of docs/findings anew from recorded tables (RECORD=rails first takes that run's)
	@$(BIN)/railx findings $(if $(RECORD),--record "$(RECORD)",--write)

report: $(READY) ## Snakemake's own report of a finished run: results/EXPERIMENT/snakemake-report.html
	@$(SNAKEMAKE) --report results/$(NAMED)/snakemake-report.html

sync: $(READY) ## upload the W&B runs that were written offline, each once (needs `wandb login`)
	@$(BIN)/railx sync

schemas: $(READY) ## refresh what make setup wrote about conf/: JSON Schemas for editors, a page of every key (resources/schemas/conf)
	@$(BIN)/python -m workflow.schemas

test: $(READY) ## the static checks and the test suite (WORKERS=2 processes)
	@$(MAKE) --no-print-directory lint
	@$(PYTEST) -m "not slow and not system"

test-system: $(READY) ## the tests that start processes: training, pipelines, servers, browsers (minutes)
	@$(PYTEST) -m "system and not slow"

coverage: $(READY) ## the tests of both with the lines and branches that they run (half as long again)
	@$(PYTEST) -m "not slow" --cov --cov-report=term:skip-covered

test-slow: $(READY) ## the tests that take minutes
	@$(BIN)/python -m pytest -m slow

test-torch: $(READY) ## torch's own tests of torch.distributed over railx, held against gloo: docs/torch_suite.md (minutes)
	@PYTHONPATH="$(CURDIR)" $(BIN)/python -m tests.railx_torch.torch_suite

test-clients: .venv-clients/ready ## Lightning Fabric, accelerate and the Hugging Face Trainer over railx, in .venv-clients
	@env -u PYTHONDONTWRITEBYTECODE .venv-clients/bin/python -m pytest -q tests/railx_torch/test_clients.py

.venv-clients/ready: pyproject.toml $(READY)
	@$(BIN)/python -m venv --clear $(@D)
	@$(BIN)/python -c '$(PURELIB)' > "$$($(@D)/bin/python -c '$(PURELIB)')/project.pth"
	@$(@D)/bin/pip --quiet install --no-compile $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["clients"])')
	@touch $@

test-oldest-torch: ## the backend's tests on the oldest supported torch, in .venv-oldest (TORCH_INDEX for its CPU build)
	@scripts/oldest_torch.sh

mutants: $(READY) ## break a room's code on purpose and see whether its tests notice, e.g. ROOM=evidence (minutes)
	@test -n "$(ROOM)" || { echo "error: ROOM: is missing; allowed: planning, fabric, safety, network, performance, design, evidence, replay, steps, economics, training, input, exchange, cluster, package" >&2; exit 2; }
	@$(BIN)/python scripts/mutants.py $(ROOM) --generated $(GENERATED) --seed $(SEED)

mistakes: $(READY) ## every setting of every experiment with values that nobody can mean: each must be refused in one line
	@PYTHONPATH="$(CURDIR)" $(BIN)/python -m tests.workflow.mistakes

explore: $(READY) ## every state of small jobs on the optical control plane, with its faults (minutes; STATES=1000000)
	@PYTHONPATH="$(CURDIR)" $(BIN)/python -m tests.fabric.explore --states $(STATES)

kill-test: $(READY) ## kill RUNS=5 quick runs KILLS=10 times each (SEED=1): what is not measured comes out byte for byte the same (40 minutes; STAGES="metrics corpus" for these alone)
	@$(BIN)/python scripts/kill_test.py --runs $(RUNS) --kills $(KILLS) --seed $(SEED) $(if $(STAGES),--stages $(STAGES))

test-kubernetes: $(READY) ## the Kubernetes profile with pods that are processes here, training on two network namespaces (root, iproute2)
	@$(BIN)/python -m pytest -m slow tests/cluster/test_kubernetes.py

test-slurm: $(READY) ## the Slurm profile on a real Slurm that the test starts and stops (root, slurm-wlm and munge)
	@$(BIN)/python -m pytest -m slow tests/cluster/test_slurm.py

soak: $(READY) ## the control plane under load and faults (10 minutes: SOAK_S=600, SEED=1, more by SOAK=--help)
	@$(BIN)/python scripts/soak --seconds $(SOAK_S) --seed $(SEED) $(SOAK)

bench: $(READY) ## all benchmarks, held against those stored for this kind of machine (ONLY=replay,controller FAIL=1 STORE=1)
	@$(BIN)/python benchmarks/run.py $(if $(ONLY),--only $(ONLY)) $(if $(FAIL),--fail) $(if $(STORE),--store) $(if $(LONG),--long)

bench-planners: $(READY) ## make the stored table of planners, benchmarks/planners.csv (hours; a killed run goes on, ANEW=1 starts over)
	@$(BIN)/python benchmarks/planners.py store $(if $(ANEW),--anew)

bench-sizes: $(READY) ## our planner on 64 to 8,192 devices, and its figure: docs/images/planner_sizes.svg (a minute)
	@$(BIN)/python benchmarks/planners.py sizes
	@$(BIN)/python benchmarks/planners.py figure

gpu-folder: $(READY) ## everything that a bare machine with one GPU needs: results/gpu_folder (docs/gpu.md)
	@$(BIN)/python scripts/gpu folder results/gpu_folder --cores $(CORES)

gpu: gpu-folder ## take every measurement on one GPU: results/gpu_steps (STEPS=1, 2, 3 or names; DRY=1 on the CPU)
	@$(BIN)/python scripts/gpu run results/gpu_folder --out results/gpu_steps$(if $(DRY),_dry) --steps $(STEPS) $(if $(DRY),--dry-run) $(if $(AGAIN),--again)

gpu-record: $(READY) ## keep what `make gpu` found on a GPU, with its provenance: results/recorded/gpu (NAME=)
	@$(BIN)/python scripts/gpu record results/gpu_steps $(if $(NAME),--name $(NAME))

steady: $(READY) ## train for the measured claims idle and beside a busy loop, and compare the verdicts (docs/measuring.md)
	@$(BIN)/python scripts/steady.py --experiment $(EXPERIMENT) --cores $(CORES) $(OVERRIDES)

site: $(READY) ## the docs as pages that fetch nothing, all links checked: site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "site/index.html, with a search: $(BIN)/python -m http.server -d site"

notebooks: $(READY) ## run the notebooks of docs/ and store what they print (after `make reproduce EXPERIMENT=quick`)
	@set -e; for notebook in docs/notebooks/*.ipynb; do $(BIN)/python scripts/notebooks.py write $$notebook; done

lint: $(READY) ## ruff, mypy (strict) and the walls between the rooms
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

lock: $(READY) ## resolve the dependencies anew into requirements.lock (needs uv)
	@printf '%s\n' filelock fsspec jinja2 setuptools sympy typing-extensions > .venv/torch-needs.in
	@uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	  --extra dev --extra site pyproject.toml .venv/torch-needs.in --output-file requirements.lock $(LOCK_OPTIONS)

wheel: $(READY) schemas ## the package as a wheel: dist/railx_lab-VERSION-py3-none-any.whl
	@rm -rf build dist
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist .

wheel-test: $(READY) ## install the wheel into an empty environment and reproduce there what is quickest (a minute)
	@$(BIN)/python -m pytest -m slow tests/package

container: wheel ## the wheel in a container, built and tried (podman; CONTAINER_OPTIONS= for its build, RUN_OPTIONS= for its runs)
	@RUN_OPTIONS="$(RUN_OPTIONS)" container/build.sh $(CONTAINER_OPTIONS)

clean: ## remove results (recorded measurements stay)
	@find results -mindepth 1 -maxdepth 1 ! -name recorded -exec rm -rf {} +
