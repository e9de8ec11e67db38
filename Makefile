# Every target sets up what it needs from a bare Python, 3.11 to 3.14: make PYTHON=python3.13 VENV=.venv-3.13 …
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOCK := .venv-lock/bin/pip-compile --quiet --strip-extras --generate-hashes --allow-unsafe \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The many processes that tests start would each compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test suite collected slow mutation compat nightly bench check generate lock clean adapters setup run-time python install uninstall

setup: $(VENV)/.ready

run-time: $(VENV)/.run-time

# The run-time dependencies alone: the demo needs no tool of development.
$(VENV)/.run-time: requirements.lock pyproject.toml ctxd/hook/ctx-hook | python
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.ready: requirements-dev.lock $(VENV)/.run-time
	$(INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ctxd needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ": run make PYTHON=python3.11")'

demo: run-time
	$(BIN)/python -m ctxd.examples.demo

# Processes of a test run: four keep two processors busy, as half of a run is waiting.
WORKERS ?= 4

# With REPORTS=folder, the suites write their results there and print what took longest.
REPORTED = $(if $(REPORTS),--durations=25 --durations-min=1 --junitxml=$(REPORTS)/$(@:suite=test).xml)

test: setup
	$(MAKE) --no-print-directory -j2 check suite

suite: collected
	$(BIN)/python -m pytest $(REPORTED) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not nightly and not slow"

# In a fresh checkout each process of a test run would compile all tests for itself. Faults are reported by the run.
collected: setup
	@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true

# Storms of kills and faults, suites that run a second time, and unit tests on trio: what a change seldom breaks. CI
# runs them too.
slow: setup
	$(BIN)/python -m pytest $(REPORTED) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "slow and not nightly"

# What other versions of Python could break: the programs, the client, the protocol, start and durability.
compat: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not nightly" tests/client tests/unit/cli tests/unit/protocol tests/unit/rpc \
		tests/unit/store tests/unit/test_ctxd_commands.py tests/spec/test_operation.py tests/spec/test_durability.py

nightly: setup
	$(BIN)/python -m pytest $(REPORTED) -m nightly

# A random sample of changes to the product, each of which a test has to notice. SAMPLE, SEED, SECONDS, and JSON=file are
# options. An interrupted run continues where it ended, with the same SEED.
mutation: setup
	$(BIN)/python -m tests.mutation $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(JSON),--json $(JSON))

# The client's adapters with the packages that they adapt to, and the conformance suites of those, in an environment of
# its own on top of $(VENV). The Agent SDK comes as source: its wheel brings a program of 380 MB.
.venv-adapters/.ready: tests/adapters/adapters.lock $(VENV)/.ready
	$(PYTHON) -m venv --clear .venv-adapters
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		>"$$(.venv-adapters/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ctxd.pth"
	.venv-adapters/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation \
		--no-binary claude-agent-sdk -r $<
	@touch $@

adapters: .venv-adapters/.ready
	.venv-adapters/bin/python -m pytest $(REPORTED) -n $(WORKERS) --dist loadfile -p no:langsmith_plugin tests/adapters

bench: setup
	$(BIN)/python -m bench

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.spec.status --check
	$(BIN)/python protocol/generate.py --check

generate: setup
	$(BIN)/python protocol/generate.py

PREFIX ?= /usr/local

# For packagers and hosts: programs below $(DESTDIR)$(PREFIX), units, completions and man pages. As a user: ctxd service install.
install: python
	$(PYTHON) -m venv --clear $(DESTDIR)$(PREFIX)/lib/ctxd
	$(DESTDIR)$(PREFIX)/lib/ctxd/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(DESTDIR)$(PREFIX)/lib/ctxd/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation .
	mkdir -p $(DESTDIR)$(PREFIX)/bin
	printf '#!/bin/sh\nexec %s -m ctxd "$$@"\n' $(PREFIX)/lib/ctxd/bin/python >$(DESTDIR)$(PREFIX)/bin/ctxd
	printf '#!/bin/sh\nexec %s -c "from ctxd.cli.entry_point import main; main()" "$$@"\n' $(PREFIX)/lib/ctxd/bin/python >$(DESTDIR)$(PREFIX)/bin/ctx
	chmod 755 $(DESTDIR)$(PREFIX)/bin/ctxd $(DESTDIR)$(PREFIX)/bin/ctx
	$(DESTDIR)$(PREFIX)/lib/ctxd/bin/python -m ctxd service install --system --root $(or $(DESTDIR),/) --program $(PREFIX)/bin/ctxd

uninstall:
	-$(DESTDIR)$(PREFIX)/lib/ctxd/bin/python -m ctxd service uninstall --system --root $(or $(DESTDIR),/)
	rm -rf $(DESTDIR)$(PREFIX)/lib/ctxd $(DESTDIR)$(PREFIX)/bin/ctxd $(DESTDIR)$(PREFIX)/bin/ctx

lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	$(LOCK) --upgrade --extra dev --output-file requirements-dev.lock pyproject.toml
	$(LOCK) --extra build --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml
	echo "langgraph-checkpoint-sqlite>=3.1,<4" | $(LOCK) --upgrade --output-file bench/langgraph.lock -
	printf '%s\n' "langgraph>=1.2,<2" "langgraph-checkpoint-conformance>=0.0.2,<0.1" "langgraph-checkpoint-sqlite>=3.1,<4" \
		"claude-agent-sdk>=0.2.187,<0.3" | $(LOCK) --upgrade --constraint requirements-dev.lock --output-file tests/adapters/adapters.lock -
	rm -rf .venv-lock

# The checkpointer that the bench ``commits`` compares with, in an environment of its own.
.venv-langgraph: bench/langgraph.lock
	$(PYTHON) -m venv --clear $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<

clean:
	rm -rf $(VENV) .xtdb build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .mutation
