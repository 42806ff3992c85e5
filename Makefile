# Every target sets up its own .venv when it is missing; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Some images set it. Then each of the many processes that tests start compiles Dutiful again, which takes half its start.
unexport PYTHONDONTWRITEBYTECODE
# Checks use one core each, so two run side by side.
MAKEFLAGS += --jobs=2

.PHONY: demo example practice sports accounts docverse test check lint types collect bench soak mutants release clean

demo: $(READY)
	$(BIN)/dutiful demo

example: $(READY)
	$(BIN)/python -m examples.media_pipeline $(EXAMPLE)

practice: $(READY)
	$(BIN)/python -m examples.practice $(PRACTICE)

sports: $(READY)
	$(BIN)/python -m examples.sports_sites $(SPORTS)

accounts: $(READY)
	$(BIN)/python -m examples.accounts $(ACCOUNTS)

docverse: $(READY)
	$(BIN)/python -m examples.docverse $(DOCVERSE)

# Of thirteen thousand tests with real processes, one may lose a race with a busy machine. What has failed is tried once
# more, alone; what fails twice fails. The first failure is printed in full all the same, because it may be a race of ours.
ONCE_MORE = $(BIN)/python -m pytest -m "not soak" --last-failed --last-failed-no-failures none

# In the order of the folders: the long files come first and the short ones of tests/unit last, so that no worker idles at the end.
test: check collect
	$(BIN)/python -m pytest -m "not soak" -n 4 --dist loadfile --no-loadscope-reorder || { test $$? -eq 1 && $(ONCE_MORE); }

check: lint types

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# Imports every test, so that bytecode is written once: the workers of `test` would all compile the same files at once.
collect: $(READY)
	@$(BIN)/python -m pytest --collect-only -qq --no-header > $(VENV)/collected || { cat $(VENV)/collected; exit 1; }

bench: $(VENV)/.bench
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(BENCH)

# Two files at a time, because most of a long run waits: for outages, leases and restarts.
soak: $(READY)
	$(BIN)/python -m pytest -m soak -n 2 --dist loadfile

# Small changes of the source that the tests should notice; many minutes, so it is no part of `make test`.
mutants: $(READY)
	PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANTS)

# Published only after everything has passed: the recipe is not reached otherwise.
release: test
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	$(BIN)/python -m build
	$(BIN)/python -m twine upload dist/*

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Dutiful needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 …" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (once)…"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(READY) benchmarks/peers/node/package.json
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@command -v npm >/dev/null && npm install --prefix benchmarks/peers/node --no-audit --no-fund --no-package-lock --loglevel error || echo "Without npm and its packages, the systems of Node do not take part."
	@touch $@
