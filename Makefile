# The two commands a newcomer needs are `make demo` and `make test`.
# Both make their own virtual environment in .venv and install what they need into it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint types soak clean

demo: $(VENV)/.run-stamp
	$(BIN)/quorumq demo

test: $(VENV)/.dev-stamp lint types
	$(BIN)/python -m pytest -n 2 -m "not soak"

lint: $(VENV)/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-stamp
	$(BIN)/mypy

soak: $(VENV)/.dev-stamp
	$(BIN)/python -m pytest -m soak

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-stamp: pyproject.toml .ci/constraints.txt | $(VENV)/bin/python
	$(PIP) install -c .ci/constraints.txt -e .
	touch $@

$(VENV)/.dev-stamp: pyproject.toml .ci/constraints.txt | $(VENV)/bin/python
	$(PIP) install -c .ci/constraints.txt -e '.[dev,spark]'
	touch $@ $(VENV)/.run-stamp

clean:
	rm -rf $(VENV) build dist *.egg-info
