# The two commands a newcomer needs are `make demo` and `make test`.
# Both make their own virtual environment in .venv and install what they need into it.

PYTHON ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What is imported is compiled when it is; most of what is installed never is.
INSTALL := $(PIP) install --no-compile -c .ci/constraints.txt

# A report on what a demo left behind; a Java comes with it where the machine has none.
REPORT := build/report

.PHONY: demo report test lint types soak clean

demo: $(VENV)/.run-stamp
	$(BIN)/quorumq demo

report: $(VENV)/.spark-stamp
	rm -rf $(REPORT)
	$(BIN)/quorumq demo --keep $(REPORT)/demo
	$(BIN)/python -m spark deadletters --out $(REPORT)/deadletters \
	  --data $(REPORT)/demo/n1/data --data $(REPORT)/demo/n2/data --data $(REPORT)/demo/n3/data
	$(BIN)/python -m spark audit --drained --history $(REPORT)/demo/histories --out $(REPORT)/audit
	@echo "Look at $(CURDIR)/$(REPORT)/deadletters/report.html and $(CURDIR)/$(REPORT)/audit/audit.html"

test: $(VENV)/.dev-stamp lint types
	$(BIN)/python -m pytest -n 6

lint: $(VENV)/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-stamp
	$(BIN)/mypy

soak: $(VENV)/.dev-stamp
	$(INSTALL) -e '.[java]'
	$(BIN)/python -m pytest -m soak

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-stamp: pyproject.toml .ci/constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e .
	touch $@

$(VENV)/.spark-stamp: pyproject.toml .ci/constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[spark]'
	$(BIN)/python -m spark.java || $(INSTALL) -e '.[java]'
	touch $@ $(VENV)/.run-stamp

$(VENV)/.dev-stamp: pyproject.toml .ci/constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[dev,spark]'
	touch $@ $(VENV)/.run-stamp

clean:
	rm -rf $(VENV) build dist *.egg-info
