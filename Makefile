# Every command installs what it needs. Only make and Python 3.11 to 3.13 must be installed already.

PYTHON ?= python3
# Additional pip options. On Linux, for torch without CUDA, which is several gigabytes smaller:
#   make test PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Compile modules on import only: compiling all of them at installation takes half a minute.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --prefer-binary --no-compile $(PIP_FLAGS)
QUICKSTART_READY := $(VENV)/.ready-quickstart
TEST_READY := $(VENV)/.ready-test
DOCS_READY := $(VENV)/.ready-docs
WEB_READY := $(VENV)/.ready-web
SITE := docs/_build/html
DATES := docs/_build/dates
DEMO := docs/_build/extra/demo

# The tools of `make dist` have their own environment, because they have many dependencies.
DIST_VENV := build/venv
DIST_READY := $(DIST_VENV)/.ready
# The tests of Ray and Triton, too: Ray has 40 more dependencies, and Triton needs numpy 1.
TEST_TOOLS := pytest pytest-xdist hypothesis "onnx<1.18"
PACKAGES_ray := ".[ray,cli]" $(TEST_TOOLS)
PACKAGES_triton := ".[runtime]" nvidia-pytriton $(TEST_TOOLS)
TESTS_ray := tests/runtime/test_ray_files.py tests/service/test_ray_serve.py tests/hostile/test_ray.py
TESTS_triton := tests/service/test_triton_server.py
BACKENDS := torch tensorflow jax
WORKERS ?= 2
# Test files run in the order of the folders below, so the slowest ones start first.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The folders of tests/ that `make test` runs with each backend. `make test-all` sets ALL=1.
#   conformance     tests whose results may differ between backends
#   library         other tests of the Keras package
#   export          tests that trace with TensorFlow
#   other folders   tests that need no particular backend
TESTS_torch := tests/conformance tests/service tests/hostile tests/commands tests/library \
	tests/examples tests/runtime tests/test_docs.py tests/test_house.py tests/test_packaging.py \
	tests/test_site.py
TESTS_tensorflow := tests/export tests/conformance $(if $(ALL),tests/library tests/examples)
TESTS_jax := tests/conformance $(if $(ALL),tests/library tests/examples)
QUICK := tests/test_house.py tests/runtime $(addprefix tests/library/,$(addsuffix .py, \
	$(addprefix layers/attention/test_,attention bahdanau) \
	$(addprefix layers/test_,bridge cells decoder* encoder readout sequences) \
	losses/test_losses models/test_generation search/test_search))
# The tests of an installed wheel: those of QUICK that do not read the source files.
WHEEL_TESTS := $(filter-out tests/test_house.py,$(QUICK))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TF_CPP_MIN_LOG_LEVEL ?= 3
export GRPC_VERBOSITY ?= ERROR
# Container images often set this. Without bytecode files every process compiles TensorFlow's 3,000
# modules, which takes 4 to 5 seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart test test-all test-quick test-soak lint bench dist docs docs-serve \
	notebooks web clean $(BACKENDS:%=test-%) test-ray test-triton

help: ## List these commands
	@echo "Usage: make COMMAND"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Also: make test-tensorflow, make test-jax, make test-torch for one backend."

quickstart: $(QUICKSTART_READY) ## Train, export and run a small model: dates in many languages
	KERAS_BACKEND=tensorflow $(BIN)/keras-bahdanau quickstart

# Run all backends even if one fails, and print one summary line per backend.
test: lint ## Run lint, all tests on torch, and backend-dependent tests on TensorFlow and JAX
	@summary=$$(mktemp) && status=0; \
	for backend in $(BACKENDS); do \
		TEST_SUMMARY=$$summary $(MAKE) --no-print-directory test-$$backend || status=1; \
		grep -q "^$$backend:" $$summary || echo "$$backend: did not finish" >> $$summary; \
	done; \
	echo; cat $$summary; rm -f $$summary; exit $$status

test-all: ## Run all tests on every backend, with more attacks and corrupted artifacts
	@MUTATIONS=$${MUTATIONS:-2000} REPLACEMENTS=$${REPLACEMENTS:-20} REQUESTS=$${REQUESTS:-1000} \
		CLIENTS=$${CLIENTS:-500} $(MAKE) --no-print-directory test ALL=1; status=$$?; \
	$(MAKE) --no-print-directory test-ray test-triton && exit $$status

# MUTATIONS=200000 makes a longer run.
test-soak: $(TEST_READY) ## Stress test: 20,000 corrupted artifacts, 50 killed runs, 2,000 clients
	MUTATIONS=$${MUTATIONS:-20000} KILLS=$${KILLS:-50} REPLACEMENTS=$${REPLACEMENTS:-50} \
		REQUESTS=$${REQUESTS:-10000} CLIENTS=$${CLIENTS:-2000} KERAS_BACKEND=torch \
		$(PYTEST) tests/hostile tests/service

test-quick: $(TEST_READY) ## Run the core tests on torch, in under a minute
	KERAS_BACKEND=torch $(PYTEST) $(QUICK)

$(BACKENDS:%=test-%): test-%: $(TEST_READY)
	KERAS_BACKEND=$* $(PYTEST) $(TESTS_$*)

test-ray test-triton: test-%: # skipped if the packages cannot be installed
	@$(MAKE) --no-print-directory build/$*/.ready || echo "$*: not installed, its tests are skipped"
	@test ! -e build/$*/.ready || build/$*/bin/python -m pytest $(TESTS_$*)

lint: $(TEST_READY) ## Check style and types with ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(TEST_READY) ## Compare speed and memory with this machine's recorded ratios, in under 15 minutes
	$(BIN)/python benchmarks/bench_ratios.py

docs: $(DOCS_READY) $(WEB_READY) $(DATES)/int8 ## Build the documentation site into docs/_build/html and check it
	rm -rf $(SITE)
	$(BIN)/keras-bahdanau site dates=$(DATES)/int8 --output $(DEMO) --overwrite \
		--runtime $(VENV)/node_modules/onnxruntime-web --example "Thursday, 3 March 1994" \
		--example "le 14 juillet 1989" --example "28 ביוני 2028" --example "1978年10月25日"
	KERAS_BACKEND=tensorflow $(BIN)/python -m sphinx -W --keep-going -n -q -d docs/_build/doctrees docs $(SITE)
	$(BIN)/python docs/check_site.py $(SITE)
	$(BIN)/python docs/check_in_browser.py $(SITE)

# The model of the demo. It is trained once, in about 2 minutes; `make clean` removes it.
$(DATES)/int8: | $(DOCS_READY)
	rm -rf $(DATES)
	KERAS_BACKEND=tensorflow $(BIN)/keras-bahdanau quickstart --output $(DATES)
	KERAS_BACKEND=tensorflow $(BIN)/keras-bahdanau export $(DATES)/run $@ --precision int8 \
		--beam-size 3 --max-length 16 --source $(DATES)/data/validation.source \
		--reference $(DATES)/data/validation.target

notebooks: $(DOCS_READY) ## Run docs/notebooks, whose outputs the next `make docs` shows
	KERAS_BACKEND=tensorflow $(BIN)/python docs/_extensions/notebook_scripts.py docs/notebooks

docs-serve: docs ## Build the site and preview it at http://127.0.0.1:8080
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) 8080

dist: $(TEST_READY) $(DIST_READY) ## Build sdist and wheel, check them, and test the installed wheel
	rm -rf dist
	$(DIST_VENV)/bin/python -m build
	$(DIST_VENV)/bin/python -m twine check --strict dist/*
	KERAS_BACKEND=torch $(BIN)/python .ci/test_wheel.py dist/*.whl $(WHEEL_TESTS)

web: $(WEB_READY) ## Install onnxruntime-web, for the tests of the site in a browser (needs npm)

clean: ## Remove the environment, caches and build products
	rm -rf $(VENV) build dist docs/_build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# venv installs pip last, so an environment without pip is incomplete.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Python 3.11 to 3.13 is required. Select it with make PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(QUICKSTART_READY): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing Keras, TensorFlow and the ONNX tools into $(VENV) (once, 1 to 2 minutes)"
	@$(PIP_INSTALL) -e ".[tensorflow,export,runtime,cli,plot]" -c constraints.txt
	@touch $@

$(TEST_READY): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing every backend and the test tools into $(VENV) (once, several minutes)"
	@$(PIP_INSTALL) -e ".[test]" -c constraints.txt
	@touch $@

$(DOCS_READY): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing Sphinx and what the documented packages import into $(VENV) (once, 1 to 2 minutes)"
	@$(PIP_INSTALL) -e ".[docs]" -c constraints.txt
	@touch $@

$(WEB_READY): export/keras_bahdanau_runtime/site/writer.py | $(BIN)/pip
	@command -v npm > /dev/null || { echo "npm is required: https://nodejs.org" >&2; exit 1; }
	@npm install --silent --no-save --ignore-scripts --prefix $(VENV) \
		onnxruntime-web@$$(sed -n 's/^RUNTIME_VERSION = "\(.*\)"/\1/p' $<)
	@touch $@

$(DIST_READY): constraints.txt
	@$(PYTHON) -m venv $(DIST_VENV)
	@$(DIST_VENV)/bin/python -m pip install --quiet build twine -c constraints.txt
	@touch $@

build/%/.ready: pyproject.toml
	@echo "Installing what the tests of $* need into build/$* (once, 1 to 2 minutes)"
	@$(PYTHON) -m venv build/$*
	@build/$*/bin/python -m pip install --quiet --prefer-binary --no-compile $(PACKAGES_$*)
	@touch $@
