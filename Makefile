# Every target makes the environment first if it is missing or older than the lock file.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.stamp

# Under CI every database and Node must be there, so only there can every branch be demanded.
COVERAGE := $(if $(CI),--cov --cov-report=term-missing:skip-covered)

# Others' agent frameworks, in two environments: some cannot be installed together.
FRAMEWORKS := .venv-frameworks-a .venv-frameworks-b

# Published MCP servers, as programs that know nothing of this package.
SERVERS := .venv-mcp-servers

.PHONY: help venv demo serve chat test test-frameworks test-slow coverage lint check bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## build .venv from requirements.lock

# $(@D) is the environment: made by the newest usable Python under these names.
define NEW_VENV
if [ ! -x $(@D)/bin/python ]; then \
  for python in python3 python3.14 python3.13 python3.12 python3.11; do \
    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
      "$$python" -m venv $(@D) || { rm -rf $(@D); exit 1; }; break; \
    fi; \
  done; \
fi; \
[ -x $(@D)/bin/python ] || { echo "Python 3.11 or newer with its venv module is needed: install it, then run make again." >&2; exit 1; }
endef

# The build backend is in the lock file too, so nothing is fetched without a hash.
$(STAMP): requirements.lock pyproject.toml
	@$(NEW_VENV)
	$(PYTHON) -m pip install --quiet --require-hashes -r requirements.lock
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## watch one approval, and every attack on it refused
	$(VENV)/bin/hitl-guard demo

serve: $(STAMP) ## the demo agent and the inbox on http://localhost:8080, with login links for three people
	$(VENV)/bin/hitl-guard serve --demo

chat: $(STAMP) ## a useChat page on http://localhost:8090, whose model deletes only what you approve
	$(VENV)/bin/hitl-guard demo chat --port 8090 --page "$$($(PYTHON) -m tests.chat.page)"

test: $(STAMP) ## run the tests
	$(PYTHON) -m pytest -n 2 $(COVERAGE)

# Their results make the table in README.md; the last line fails where it says something else.
test-frameworks: export HITL_GUARD_TEST_MCP_SERVERS = $(abspath $(SERVERS)/bin)
test-frameworks: $(FRAMEWORKS:=/.stamp) $(SERVERS)/.stamp ## run the tests of the agent frameworks, in two environments of their own
	rm -rf build/frameworks
	for folder in $(FRAMEWORKS); do \
	  $$folder/bin/python -m pytest --confcutdir=tests/frameworks -n 2 tests/frameworks; \
	done
	.venv-frameworks-a/bin/python -m tests.frameworks.table

.venv-frameworks-%/.stamp: requirements-frameworks-%.lock pyproject.toml
	@$(NEW_VENV)
	$(@D)/bin/python -m pip install --quiet --require-hashes -r $<
	$(@D)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(SERVERS)/.stamp: requirements-mcp-servers.lock
	@$(NEW_VENV)
	$(@D)/bin/python -m pip install --quiet --require-hashes -r $<
	@touch $@

test-slow: $(STAMP) ## run the long random comparisons
	$(PYTHON) -m pytest -m slow

coverage: ## run the tests as CI does: all databases, Node, 100 % of the deciding modules
	CI=true $(MAKE) test

lint: $(STAMP) ## ruff, mypy, import rules, README and docstrings
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(PYTHON) -m tests.readme

check: lint test ## everything that must hold before a commit

bench: $(STAMP) ## print and write the benchmark ratios
	$(PYTHON) -m benchmarks

COMPILE = $(VENV)/bin/uv pip compile --universal --python-version 3.11 --upgrade --generate-hashes \
  --no-emit-index-url --no-config --quiet --custom-compile-command "make lock"

lock: $(STAMP) ## write the lock files anew, newest versions
	$(COMPILE) pyproject.toml --group dev --all-extras -o requirements.lock
	$(COMPILE) pyproject.toml --group frameworks-a -o requirements-frameworks-a.lock
	$(COMPILE) pyproject.toml --group frameworks-b -o requirements-frameworks-b.lock
	$(COMPILE) --group mcp-servers -o requirements-mcp-servers.lock

clean: ## remove caches and build results, not .venv
	rm -rf build dist tests/chat/build tests/chat/node_modules .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
