# Two commands: `make train` and `make test`. Each sets up everything it needs, on any machine with Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help train test test-all lint format bench setup clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Shoal needs Python 3.11 or newer; say which with: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Shoal into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,hf,tensorboard]'
	@touch $@

setup: $(READY) ## make the virtual environment

train: $(READY) ## train the example: four workers on two islands, no leader
	@$(BIN)/shoal train examples/first-light/job.toml $(ARGS)

test: $(READY) lint ## everything that must pass before a change lands (under ten minutes)
	@$(BIN)/python -m pytest -n auto $(ARGS)

test-all: $(READY) lint ## the slow checks too
	@$(BIN)/python -m pytest -n auto -m 'slow or not slow' $(ARGS)

lint: $(READY) ## ruff, pyright and the floors
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/pyright

format: $(READY) ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) ## measure; prints ratios of things measured side by side
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean: ## forget the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
