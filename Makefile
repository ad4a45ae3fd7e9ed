# torchrelay: everything that is done with this repository. `make` alone lists it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Folders of Python's standard library that the quickstart learns from, its own files besides.
PACKAGES := asyncio collections concurrent ctypes curses dbm email html http importlib json logging \
            multiprocessing re sqlite3 tomllib unittest urllib wsgiref xml xmlrpc zoneinfo

.PHONY: help
help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# --- use it -----------------------------------------------------------------------------------------

.PHONY: quickstart
quickstart: data ## Train a small code model on this machine, then let it write
	@processes="--nproc 2"; \
	if nvidia-smi -L 2> /dev/null | grep -q '^GPU '; then processes=""; fi; \
	$(BIN)/torchrelay train examples/quickstart.yaml $$processes
	@echo; echo "what it writes after 'def ':"; echo
	@$(BIN)/torchrelay sample quickstart --prompt "def "

.PHONY: data
data: install ## Build the quickstart's dataset from Python's own source code
	@library=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))'); \
	globs=(--text "$$library/*.py"); \
	for package in $(PACKAGES); do \
	    if compgen -G "$$library/$$package/*.py" > /dev/null; then globs+=(--text "$$library/$$package/*.py"); fi; \
	done; \
	$(BIN)/torchrelay data build stdlib "$${globs[@]}" --tokenizer bytes

.PHONY: install
install: .venv/installed ## Make .venv with torchrelay in it

# --- work on it -------------------------------------------------------------------------------------

.PHONY: install-dev
install-dev: .venv/installed-dev ## Add what tests, checks and benchmarks need

.PHONY: test
test: install-dev ## Run every test but the long ones; CI runs exactly this
	$(BIN)/pytest -m "not long"

.PHONY: test-long
test-long: install-dev ## Run the tests that take minutes
	$(BIN)/pytest -m long

.PHONY: check
check: install-dev ## Format, lint, types, imports and the repository's own rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/rules --ignore tests/rules/test_tools.py

.PHONY: bench
bench: install-dev ## Measure against peers on this machine; prints ratios
	@for script in bench/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

.PHONY: docs
docs: install-dev ## Write the generated pages of docs/reference
	$(BIN)/torchrelay recipe reference > docs/reference/recipe.md

.PHONY: clean
clean: ## Remove .venv and caches; datasets and runs in relay-store stay
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# --- how the environment is made --------------------------------------------------------------------

# torch comes first and alone, so that nothing else decides which build of it is taken.
.venv/torch: constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@touch $@

.venv/installed: .venv/torch pyproject.toml constraints.txt
	$(BIN)/pip install -c constraints.txt -e '.[text]'
	@touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	@touch $@
