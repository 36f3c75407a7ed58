# Every target makes what it needs: a virtual environment in .venv of this tree, without root.
#   make demo ARGS=--keep        arguments go through to the program
#   make test ARGS="-k keys -x"
#   make test PYTHON=python3.12  another interpreter (make clean first)

SHELL := /bin/bash
VENV ?= .venv
ARGS ?=
# The first of these that runs, is 3.11 to 3.13 and can make virtual environments. A name on the PATH
# alone says little: version managers leave shims that only print an error.
PYTHON ?=
CANDIDATES := python3.13 python3.12 python3.11 python3 python

BIN := $(VENV)/bin
PY := $(BIN)/python
CHECK := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench venv $(VENV) clean
.DELETE_ON_ERROR:

help: ## this list
	@echo "usage: make TARGET [ARGS=\"...\"] [PYTHON=python3.x]"
	@echo
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  \1\t\2/' | expand -t 12

demo: $(VENV)/.stamp-demo ## two schedulers, a killed worker, one outcome: under two minutes (ARGS=--keep leaves it running)
	$(PY) -m example_project.demo $(ARGS)

test: $(VENV)/.stamp-dev ## all tests; what is skipped for want of a server is named at the end, with the reason
	@# CELERY_GUARD_REQUIRE_SERVERS=1 in the environment makes a missing server a failure
	@# two at a time: most tests wait for processes; a class or a module stays together with its servers
	$(PY) -m pytest -n 2 --dist loadscope $(ARGS)

lint: $(VENV)/.stamp-dev ## ruff, mypy and the import contracts
	@failed=; for check in "ruff check ." "ruff format --check ." "mypy" "lint-imports --no-logo"; do \
	    echo "$$check"; $(BIN)/$$check || failed="$$failed [$$check]"; \
	done; \
	[ -z "$$failed" ] || { echo "lint failed:$$failed" >&2; exit 1; }

format: $(VENV)/.stamp-dev ## let ruff mend what it can
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(VENV)/.stamp-bench ## throughput beside plain Celery and its peers
	$(PY) -m bench $(ARGS)

venv: $(VENV)/.stamp-dev ## only make .venv, with everything for development
$(VENV): venv

clean: ## remove .venv, caches and build output
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment; a stamp says which extra is in it, and is older than pyproject.toml when it is stale.
$(VENV)/.stamp-%: pyproject.toml | $(PY)
	@echo "installing celery_guard[$*] into $(VENV) ..."
	@$(PY) -m pip install -qq --disable-pip-version-check -e '.[$*]'
	@touch $@

$(PY):
	@chosen=; \
	for candidate in $(or $(PYTHON),$(CANDIDATES)); do \
	    if "$$candidate" -c '$(CHECK)' >/dev/null 2>&1; then chosen=$$candidate; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	    echo "no usable Python 3.11 to 3.13 among: $(or $(PYTHON),$(CANDIDATES))" >&2; \
	    echo "name one: make PYTHON=/path/to/python3.12 (on Debian it needs python3-venv too)" >&2; \
	    exit 1; \
	fi; \
	echo "making $(VENV) with $$($$chosen --version)"; \
	"$$chosen" -m venv $(VENV)

.PRECIOUS: $(VENV)/.stamp-%
