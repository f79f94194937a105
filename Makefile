# `make demo` does everything on a fresh machine; `make test` passes the tests.
SHELL := bash
PYTHON ?= python3
BIN := .venv/bin
# One more than two cores, because some tests wait for servers and workers.
JOBS ?= 3
# Threads of torch in each of JOBS test processes: together no more than there are cores, or they wait for each other.
THREADS ?= $(shell $(PYTHON) -c 'import os; print(max(1, (os.cpu_count() or 1) // $(JOBS)))')
export DVC_NO_ANALYTICS = 1
export DO_NOT_TRACK = 1
export PREFECT_SERVER_ANALYTICS_ENABLED = false
export TOKENIZERS_PARALLELISM = false

.PHONY: demo install test test-quick coverage mutants check format docs clean-store

demo: install ## fetch a small real model and text, run the whole pipeline, show the result
	PATH="$(CURDIR)/$(BIN):$$PATH" dvc repro
	$(BIN)/python -m stages.report --show

install: .venv/installed ## make .venv with the pinned packages

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, got " + sys.version.split()[0]) if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

PYTEST = OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
QUICK = tests/smoke $(addprefix tests/unit/,artifacts gating linalg methods params walk)

test: install ## all tests, the real pipeline among them, in JOBS processes
	$(PYTEST)

test-quick: install ## the laws that methods, mathematics and files obey, and one tiny run of every stage
	$(PYTEST) $(QUICK)

coverage: install ## how much of stages/ the unit tests run, by module (minutes)
	OMP_NUM_THREADS=1 $(BIN)/coverage run --branch --source=stages -m pytest -q tests/unit
	$(BIN)/coverage report --skip-covered --sort=cover

mutants: install ## faults that the unit tests do not notice: docs/mutation.md (an hour or two)
	$(BIN)/python -m tests.mutation map
	$(BIN)/python -m tests.mutation run
	$(BIN)/python -m tests.mutation show

check: install ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install ## the documentation site in site/, with every warning an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean-store: ## forget the finished blocks that wait for killed runs
	rm -rf .cache/blocks .cache/prefect
