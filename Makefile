# Every target sets up what it needs from a bare Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The many processes that tests start would each compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test nightly bench check generate lock clean setup

setup: $(VENV)/.ready

$(VENV)/.ready: requirements-dev.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	$(BIN)/python -m ctxd.examples.demo

test: check
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not nightly"

nightly: setup
	$(BIN)/python -m pytest -m nightly

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

lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	.venv-lock/bin/pip-compile --quiet --upgrade --strip-extras --generate-hashes --allow-unsafe \
		--no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--extra dev --output-file requirements-dev.lock pyproject.toml
	rm -rf .venv-lock

clean:
	rm -rf $(VENV) .xtdb build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
