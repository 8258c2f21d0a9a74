# Every target creates and refreshes .venv by itself; Python 3.11+ and make are all that a fresh machine needs.
# Choose another interpreter with PYTHON=..., pass arguments on with ARGS="...".
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench chaos planted docs environment environment-demo environment-docs servers clean

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && { echo $$p; exit; }; done; echo python3)
BIN := .venv/bin
# More than there are cores of a small machine: many tests wait for processes.
WORKERS ?= 3
ARGS ?=
CHECKED := src tests tools $(wildcard bench examples)

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
		printf '  make %-8s %s\n' "$$name" "$$text"; done

demo: environment-demo ## watch ten thousand files and one page share a queue fairly (SQLite, under a minute)
	@$(BIN)/evenflow demo $(ARGS)

# Lint comes first but does not hide the tests' own result: the closing line is always pytest's.
test: environment servers ## lint, then every test, on SQLite and on a private PostgreSQL
	@$(MAKE) --no-print-directory lint; lint=$$?; \
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 $(ARGS); tests=$$?; \
	if [ $$lint -ne 0 ]; then echo "lint failed, see the top of this output" >&2; exit $$lint; fi; \
	exit $$tests

lint: environment ## ruff and mypy --strict
	@$(BIN)/ruff check $(CHECKED) && $(BIN)/ruff format --check $(CHECKED) && $(BIN)/mypy $(CHECKED)

format: environment ## let ruff rewrite the sources
	@$(BIN)/ruff check --fix $(CHECKED) ; $(BIN)/ruff format $(CHECKED)

bench: environment servers ## measure throughput and latency on this machine
	@$(BIN)/python -m bench $(ARGS)

chaos: environment servers ## kill servers and workers for minutes, then count every job
	@$(BIN)/python -m pytest tests/chaos -m chaos --timeout 1800 $(ARGS)

planted: environment servers ## put known bugs into a copy of the sources, one by one; the tests must see each
	@$(BIN)/python -m tools.planted $(ARGS)

docs: environment-docs ## build the HTML documentation into docs/_build/html
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html $(ARGS)

clean: ## remove the environment and everything that was built
	@rm -rf .venv build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis

environment:
	@$(PYTHON) tools/environment.py test

environment-demo:
	@$(PYTHON) tools/environment.py cli

environment-docs:
	@$(PYTHON) tools/environment.py docs

servers: environment
	@$(BIN)/python -m tools.servers
