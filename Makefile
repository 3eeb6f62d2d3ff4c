# Every command makes what it needs on a machine that has only Python 3.11 to 3.13, and make.

PYTHON ?= python3
# More options for pip. For a torch without CUDA, several gigabytes smaller, on Linux:
#   make test PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Python compiles the modules that are imported. pip would compile every module, for half a minute.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --prefer-binary --no-compile $(PIP_FLAGS)
QUICKSTART_READY := $(VENV)/.ready-quickstart
TEST_READY := $(VENV)/.ready-test
BACKENDS := torch tensorflow jax
WORKERS ?= 2
# Files are started in the order of the folders below, which have the longest files first.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The folders of tests/ that each backend runs in `make test`; `make test-all` sets ALL=1.
#   conformance   what can differ between backends
#   library       everything else that needs Keras
#   export        what TensorFlow traces
#   other folders what needs no backend, or any one
TESTS_torch := tests/conformance tests/service tests/hostile tests/commands tests/library \
	tests/examples tests/runtime tests/test_docs.py tests/test_house.py
TESTS_tensorflow := tests/export tests/conformance $(if $(ALL),tests/library tests/examples)
TESTS_jax := tests/conformance $(if $(ALL),tests/library tests/examples)
QUICK := tests/test_house.py tests/runtime $(addprefix tests/library/test_,$(addsuffix .py, \
	attention bahdanau bridge cells decoder encoder generation losses masking readout recurrence search))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TF_CPP_MIN_LOG_LEVEL ?= 3
export GRPC_VERBOSITY ?= ERROR
# Container images often set this. Without bytecode every process compiles TensorFlow's 3,000 modules
# again, which takes 4 to 5 seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart test test-all test-quick test-soak lint bench clean $(BACKENDS:%=test-%)

help: ## List these commands
	@echo "Usage: make COMMAND"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Also: make test-tensorflow, make test-jax, make test-torch for one backend."

quickstart: $(QUICKSTART_READY) ## Train, export and run a small model: dates in many languages
	KERAS_BACKEND=tensorflow $(BIN)/keras-bahdanau quickstart

# A failing backend does not stop the others. The summary has one line per backend.
test: lint ## Check everything on torch, and on TensorFlow and JAX what depends on the backend
	@summary=$$(mktemp) && status=0; \
	for backend in $(BACKENDS); do \
		TEST_SUMMARY=$$summary $(MAKE) --no-print-directory test-$$backend || status=1; \
		grep -q "^$$backend:" $$summary || echo "$$backend: did not finish" >> $$summary; \
	done; \
	echo; cat $$summary; rm -f $$summary; exit $$status

test-all: ## Check everything on every backend, with more attacks and corrupted artifacts
	@MUTATIONS=$${MUTATIONS:-2000} REPLACEMENTS=$${REPLACEMENTS:-20} REQUESTS=$${REQUESTS:-1000} \
		CLIENTS=$${CLIENTS:-500} $(MAKE) --no-print-directory test ALL=1

# For a longer run: MUTATIONS=200000.
test-soak: $(TEST_READY) ## Corrupt 20,000 artifacts, kill a run 50 times, flood a service
	MUTATIONS=$${MUTATIONS:-20000} KILLS=$${KILLS:-50} REPLACEMENTS=$${REPLACEMENTS:-50} \
		REQUESTS=$${REQUESTS:-10000} CLIENTS=$${CLIENTS:-2000} KERAS_BACKEND=torch \
		$(PYTEST) tests/hostile tests/service

test-quick: $(TEST_READY) ## Check the core on torch, in under a minute
	KERAS_BACKEND=torch $(PYTEST) $(QUICK)

$(BACKENDS:%=test-%): test-%: $(TEST_READY)
	KERAS_BACKEND=$* $(PYTEST) $(TESTS_$*)

lint: $(TEST_READY) ## Check style and types: ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(TEST_READY) ## Measure training, attention, search and export on this machine
	$(BIN)/python benchmarks/bench_training.py
	$(BIN)/python benchmarks/bench_attention.py
	$(BIN)/python benchmarks/bench_source_length.py
	$(BIN)/python benchmarks/bench_search.py
	$(BIN)/python benchmarks/bench_export.py

clean: ## Remove the environment, caches and build products
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is the last thing that venv puts in place: without it the environment is not whole.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Python 3.11 to 3.13 is needed; name one with make PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(QUICKSTART_READY): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing Keras, TensorFlow and the ONNX tools into $(VENV) (once, a minute or two)"
	@$(PIP_INSTALL) -e ".[tensorflow,export,runtime,cli,plot]" -c constraints.txt
	@touch $@

$(TEST_READY): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing every backend and the test tools into $(VENV) (once, some minutes)"
	@$(PIP_INSTALL) -e ".[test]" -c constraints.txt
	@touch $@
