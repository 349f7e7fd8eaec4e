# Everything below needs make and Python 3.11 or newer; the rest is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CODE := session_service runner_service protos tests demo bench scripts
WORKERS ?= auto
TEST_ARGS ?=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help protos format check test spec demo serve bench clean

help: ## list the targets
	@grep -hE '^[a-z.]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	@echo "Making the environment in $(VENV); this takes a minute or two."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

.venv: $(INSTALLED) ## make the environment, or renew it after a change of pyproject.toml

protos: $(INSTALLED) ## regenerate the committed stubs from the contract
	$(BIN)/python scripts/stubs.py

format: $(INSTALLED) ## format the code and the contract, and sort the imports
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/buf format -w protos

check: $(INSTALLED) ## lint, types, layers, the contract and its stubs
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos
	$(BIN)/buf breaking protos --against protos/contract.binpb
	$(BIN)/python scripts/stubs.py --check

test: $(INSTALLED) ## the whole suite, on SQLite and on PostgreSQL
	$(BIN)/python -m pytest -n $(WORKERS) $(TEST_ARGS)

spec: $(INSTALLED) ## list the rules of protos/SPEC.md that no test shows
	$(BIN)/python scripts/spec_coverage.py

demo: $(INSTALLED) ## start both services and show, claim by claim, what they promise
	@$(BIN)/python -m demo

serve: $(INSTALLED) ## keep both services up for a laptop, and print how to call them
	@$(BIN)/python -m demo.serve

bench: $(INSTALLED) ## print what facts cost, beside a bare echo of the same run
	@$(BIN)/python -m bench $(BENCH_ARGS)

clean: ## remove the environment and everything generated but not committed
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
