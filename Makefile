# Every target creates and refreshes .venv by itself; Python 3.11+ and make are all that a fresh machine needs.
# Choose another interpreter with PYTHON=..., pass arguments on with ARGS="...".
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test test-matrix lint format bench chaos planted large docs figures environment environment-demo environment-docs servers clean

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && { echo $$p; exit; }; done; echo python3)
BIN := .venv/bin
# Tests start some two thousand interpreters: without bytecode each would compile the package again.
export PYTHONDONTWRITEBYTECODE :=
# More than there are cores of a small machine: many tests wait for processes.
WORKERS ?= 6
ARGS ?=
CHECKED := src tests tools $(wildcard bench examples)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
		printf '  make %-11s %s\n' "$$name" "$$text"; done

demo: environment-demo ## watch ten thousand files and one page share a queue fairly (SQLite, under a minute)
	@$(BIN)/evenflow demo $(ARGS)

# Lint runs beside the first tests: it has one core to itself while the other reads all tests once, so that not each test
# process has to rewrite every assertion. It does not hide the tests' own result: where it passes, the closing line is pytest's.
test: environment servers ## lint, then every test, on SQLite and on a private PostgreSQL
	@said=$$(mktemp) && trap 'rm -f "$$said"' EXIT; \
	$(MAKE) --no-print-directory lint >"$$said" 2>&1 & lint=$$!; \
	$(BIN)/python -m pytest --collect-only -qq $(ARGS) >/dev/null 2>&1; \
	$(BIN)/python -m tools.suite -n $(WORKERS) --maxprocesses 6 $(ARGS); tests=$$?; \
	wait $$lint || { lint=$$?; cat "$$said"; echo "lint failed, see above" >&2; exit $$lint; }; \
	exit $$tests

lint: environment ## ruff and mypy --strict
	@$(BIN)/ruff check $(CHECKED) && $(BIN)/ruff format --check $(CHECKED) && $(BIN)/mypy $(CHECKED)

format: environment ## let ruff rewrite the sources
	@$(BIN)/ruff check --fix $(CHECKED) ; $(BIN)/ruff format $(CHECKED)

test-matrix: environment ## every test on each Python, Django and PostgreSQL of this machine (long)
	@$(BIN)/nox $(ARGS)

bench: environment servers ## measure throughput and latency on this machine
	@$(BIN)/python -m bench $(ARGS)

chaos: environment servers ## kill servers and workers for minutes, then count every job; walk cron through 15 years
	@$(BIN)/python -m pytest tests/chaos tests/rules -m chaos --timeout 1800 $(ARGS)

large: environment servers ## what takes minutes: plans and fairness with a million jobs, every benchmark in small, the legs that the suite leaves out
	@$(BIN)/python -m pytest tests -n 2 -m large --timeout 1800 $(ARGS)

planted: environment servers ## put known bugs into a copy of the sources, one by one; the tests must see each
	@$(BIN)/python -m tools.planted $(ARGS)

docs: environment-docs ## build the HTML documentation into docs/_build/html
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html $(ARGS)

figures: environment servers ## draw the manual's pictures anew, from real runs
	@$(BIN)/python -m tools.figures $(ARGS)

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
