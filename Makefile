# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_FLAGS ?=
TORTURE_FLAGS ?=

.PHONY: demo docs pictures test test-memory test-deployment coverage lint style types bench torture compat clean

demo: $(VENV)/.demo-ready
	$(BIN)/fedcohort demo

# All that runs in memory; beside it real SuperLinks, SuperNodes and Ray clusters on loopback, which wait more than
# they compute, and then mypy.
test: style
	$(MAKE) --no-print-directory -j 2 test-memory test-deployment types

test-memory: $(VENV)/.test-ready
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not deployment" $(TEST_FLAGS)

test-deployment: $(VENV)/.test-ready
	FEDCOHORT_DEPLOYMENT=1 $(BIN)/python -m pytest -m deployment tests/flower tests/experiment tests/engines $(TEST_FLAGS)

# Which lines of src no test in memory runs.
coverage: $(VENV)/.test-ready
	$(MAKE) --no-print-directory test-memory TEST_FLAGS="--cov=fedcohort --cov-report=term-missing:skip-covered $(TEST_FLAGS)"

lint: style types

style: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.test-ready
	$(BIN)/mypy

# The site, into site/; a broken link or an undocumented name is an error.
docs: $(VENV)/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# Pictures of the site, and what its examples print, from committed results.
pictures: $(VENV)/.test-ready
	$(BIN)/python docs/pictures/make_pictures.py

bench: $(VENV)/.test-ready
	$(BIN)/python benchmarks/selection.py

torture: $(VENV)/.test-ready
	$(BIN)/python tests/stress/torture $(TORTURE_FLAGS)

# The oldest and the newest Flower that pyproject.toml allows: the package alone, in front of the one in .venv.
FLOWERS := 1.41.0 1.42.0
compat: $(FLOWERS:%=compat-%)

compat-%: $(VENV)/.test-ready
	test -d $(VENV)/flwr-$* || $(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/flwr-$* "flwr==$*"
	PYTHONPATH=$(CURDIR)/$(VENV)/flwr-$* FEDCOHORT_FLWR=$* $(BIN)/python -m pytest -q -m "not deployment" tests/flower $(TEST_FLAGS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo-ready: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e .
	touch $@

# torch first and by range, so that pip takes a local CPU build where one is offered. pip would compile to bytecode on one
# core, and parts that nobody imports.
UNUSED := /(tests?|rllib|tune|sympy|_inductor|onnx)/
$(VENV)/.test-ready: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-compile "torch>=2.6,<2.14"
	$(BIN)/python -m pip install --quiet --no-compile -e ".[all,dev]"
	-$(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib
	touch $@ $(VENV)/.demo-ready

$(VENV)/.docs-ready: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
