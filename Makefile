# make run   trains the main job end to end; make test   checks everything.
# Both make what they need: a virtual environment with pinned dependencies.

PYTHON ?= python3
VENV := .venv
VENV_GRPC := .venv-flwr-1.34
BIN := $(VENV)/bin
JOBS ?= 2
PYTEST := -m pytest --numprocesses $(JOBS) --dist loadgroup
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: run test lint types unit grpc bench edge-bench chaos soak edge-test setup clean

run: setup
	$(BIN)/python scripts/flwr_run.py . \
	    --run-config "out-dir='$(CURDIR)/runs/main'" \
	    --federation-config "num-supernodes=104 client-resources-num-cpus=1"

test: lint types unit grpc

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python $(PYTEST)

# The same Flower-facing tests on 1.34.0, the last release whose transport is gRPC.
grpc: $(VENV_GRPC)/ready
	$(VENV_GRPC)/bin/python $(PYTEST) tests/server tests/client tests/simulation \
	    tests/e2e tests/device tests/docker tests/wire tests/fuzz tests/test_composition.py tests/test_strategy.py

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
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e ".[dev,examples,fast,vision]"
	$(BIN)/python scripts/mend_torchvision.py
	touch $@

$(VENV_GRPC)/ready: pyproject.toml constraints-flwr-1.34.txt
	$(PYTHON) -m venv $(VENV_GRPC)
	$(VENV_GRPC)/bin/python $(PIP_INSTALL) -c constraints-flwr-1.34.txt -e ".[dev,examples,fast,vision]"
	$(VENV_GRPC)/bin/python scripts/mend_torchvision.py
	touch $@

clean:
	rm -rf $(VENV) $(VENV_GRPC) build dist runs
