# make run   trains the main job end to end; make test   checks everything.
# Both make what they need: a virtual environment with pinned dependencies.

# With it, each of the gate's processes would compile anew all the tests that it reads.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
VENV_GRPC := .venv-flwr-1.34
BIN := $(VENV)/bin
FLOWER_FACING := $(addprefix tests/,server completeness client simulation e2e device \
    docker wire fuzz test_app_imports.py app/test_client_app.py flower_internals fleet \
    strategy)
# What they are about is the same on any Flower: in the gate on the newest one.
ONCE_IN_THE_GATE := $(addprefix tests/,client/test_lora.py client/test_personal.py \
    client/test_personal_adapters.py fleet \
    e2e/test_layerwise.py flower_internals/test_exits.py fuzz \
    server/test_assignment.py server/test_averaging.py server/test_dead_workers.py \
    docker/test_certificates.py docker/test_certificates_folder.py \
    docker/test_files.py \
    server/test_buffered_reference.py server/test_liars.py server/test_loop_machine.py \
    server/test_reference.py server/test_unreliable_fleets.py \
    simulation/test_bn_statistics.py simulation/test_gpus.py \
    simulation/test_local_grid_workers.py simulation/test_packed_on_the_way.py \
    simulation/test_ray_cluster.py simulation/test_safe_path.py \
    simulation/test_task_queue.py simulation/test_worker_pool.py \
    strategy/test_codecs.py strategy/test_fits.py strategy/test_frozen.py)
# Nor by night: what codes numbers, and what watches processes, has nothing of Flower's.
ONCE := tests/wire/codec tests/simulation/test_liveness.py
BY_NIGHT = $(shell grep -rlE --include='test_*.py' \
    'from tests\.nightly import .*(NIGHTLY|nightly|by_night)' tests)
E2E = $(shell grep -rl --include='test_*.py' 'mark\.e2e' tests)
IGNORE = $(addprefix --ignore=,$(1))
MODELS := $(addprefix tests/,submodel zoo)
APPS := $(addprefix tests/,app benchmarks cli doctor examples report)
# On a terminal pip shows what it downloads and installs, with bars.
PIP_INSTALL := -m pip install $(if $(MAKE_TERMOUT),,--quiet) --disable-pip-version-check

.PHONY: run test lint types docs package unit unit-models unit-apps unit-runs e2e \
    grpc-unit grpc-e2e nightly nightly-grpc nightly-chaos bench edge-bench chaos soak \
    edge-test setup clean

run: setup
	$(BIN)/python scripts/flwr_run.py . \
	    --run-config "out-dir='runs/main' overwrite=true" \
	    --federation-config "num-supernodes=104 client-resources-num-cpus=1"
	@echo
	@echo "Look at  runs/main/run.png"
	@echo "Then try asyncdrop report runs/main --out runs/main-report"
	@echo "         asyncdrop compare --algos fedavg,fedbuff,hetero-asyncdrop --seeds 0-2 --out runs/compared"
	@echo "         asyncdrop report runs/compared --out runs/report"
	@echo "(after   . $(VENV)/bin/activate)"

# Three at a time, the longest first: tests that start real Flower processes wait a lot,
# and have limits of time. What runs prints when it is done.
test:
	$(MAKE) --jobs 2 setup $(VENV_GRPC)/ready
	$(MAKE) lint
	$(MAKE) --jobs 3 --output-sync e2e unit-runs unit-apps unit-models grpc-unit \
	    grpc-e2e docs types

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# The site, in build/site: pages, API, and every link checked.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and sdist in dist, checked, and the wheel tried in a fresh environment.
package: setup
	rm -rf dist
	$(BIN)/python $(PIP_INSTALL) twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m scripts.try_wheel dist

unit: unit-models unit-apps unit-runs

unit-models: setup
	$(BIN)/python -m pytest -m "not e2e" $(MODELS)

unit-apps: setup
	$(BIN)/python -m pytest -m "not e2e" $(APPS)

unit-runs: setup
	$(BIN)/python -m pytest -m "not e2e" $(call IGNORE,$(MODELS) $(APPS))

e2e: setup
	$(BIN)/python -m pytest -m e2e $(E2E)

# The Flower-facing ones on 1.34.0, the last release whose transport is gRPC: those that
# Flower's version makes a difference to. `make nightly-grpc` runs all of them.
grpc-unit: $(VENV_GRPC)/ready
	$(VENV_GRPC)/bin/python -m pytest -m "not e2e" \
	    $(call IGNORE,$(ONCE) $(ONCE_IN_THE_GATE)) \
	    $(filter-out $(ONCE_IN_THE_GATE),$(FLOWER_FACING))

grpc-e2e: $(VENV_GRPC)/ready
	$(VENV_GRPC)/bin/python -m pytest -m e2e \
	    $(filter-out $(ONCE_IN_THE_GATE),$(filter $(addsuffix %,$(FLOWER_FACING)),$(E2E)))

# What bears a mark of tests/nightly.py: submodels of every model of the zoo, a disk that
# fails at every write, a frozen backbone on a real SuperLink, a Ray cluster whose nodes
# die. All examples of every property, 2,000 random modules, 100,000 damaged tensors, the
# tests on Flower 1.34.0, then broken fleets: about two hours.
nightly: setup
	ASYNCDROP_NIGHTLY=1 $(BIN)/python -m pytest $(BY_NIGHT)
	ASYNCDROP_NIGHTLY=1 $(BIN)/python -m pytest -m hypothesis
	$(BIN)/python -m tests.submodel.fuzzing.modules --count 2000
	$(BIN)/python -m tests.wire.codec.mutations --count 100000
	$(MAKE) nightly-grpc
	$(MAKE) nightly-chaos

# All Flower-facing tests on 1.34.0, but for those that are by night alone: they are about
# Ray, or about what a device keeps.
nightly-grpc: $(VENV_GRPC)/ready
	ASYNCDROP_NIGHTLY=1 $(VENV_GRPC)/bin/python -m pytest $(call IGNORE,$(ONCE)) \
	    --ignore=tests/e2e/test_frozen.py --ignore=tests/e2e/test_ray_machine_killed.py \
	    -k "not ten_times_and_more and not differs_is_refused and not head_is_killed" \
	    $(FLOWER_FACING)

# The fleets of `make chaos` ten times, over HTTP and over gRPC. Two fleets, ten times
# each: runs_survived is to be 20 for either.
nightly-chaos: setup $(VENV_GRPC)/ready
	$(BIN)/python -m benchmarks.chaos --part fleet --times 10
	$(VENV_GRPC)/bin/python -m benchmarks.chaos --part fleet --times 10

bench: setup
	$(BIN)/python -m benchmarks

# From pushing a task to having its reply, with Flower's SuperNode and with ours, on a
# real SuperLink over gRPC: about six minutes. Over HTTP: .venv/bin/python -m benchmarks.edge
edge-bench: $(VENV_GRPC)/ready
	$(VENV_GRPC)/bin/python -m benchmarks.edge

# Breaks runs on purpose, on LocalGrid and on a real SuperLink: about five minutes.
chaos: setup
	$(BIN)/python -m benchmarks.chaos

# The memory of a run of 20,000 updates.
soak: setup
	$(BIN)/python -m benchmarks.soak

# The compose files' fleets: in containers where podman runs, else as processes.
edge-test: setup $(VENV_GRPC)/ready
	$(BIN)/python $(PIP_INSTALL) podman-compose
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m scripts.edge $(EDGE)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(VENV_GRPC)/bin/python -m scripts.edge $(EDGE)

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/it ..."; exit 1; }
	@echo "Making the environment $(VENV): some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e ".[dev,docs,examples]"
	$(BIN)/python scripts/mend_torchvision.py
	touch $@

$(VENV_GRPC)/ready: pyproject.toml constraints-flwr-1.34.txt
	$(PYTHON) -m venv $(VENV_GRPC)
	$(VENV_GRPC)/bin/python $(PIP_INSTALL) -c constraints-flwr-1.34.txt -e ".[dev,examples]"
	$(VENV_GRPC)/bin/python scripts/mend_torchvision.py
	touch $@

clean:
	rm -rf $(VENV) $(VENV_GRPC) build dist runs
