# The two commands a newcomer needs are `make demo` and `make test`.
# Both make their own virtual environment in .venv and install what they need into it.

PYTHON ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What is imported is compiled when it is; most of what is installed never is. Every file that is fetched has to have one
# of the hashes in .ci/*.txt, which .ci/lock writes; setuptools, which builds what is not built, is among them.
INSTALL := $(PIP) install --no-compile --no-deps --no-build-isolation
LOCKED  := $(INSTALL) --require-hashes

# How long `make soak` runs each generator of tests/fuzz.
FUZZ_SECONDS := 900
# How long it kills nodes and gateways under clients of all protocols.
MIXED_SECONDS := 600

# A report on what a demo left behind; a Java comes with it where the machine has none.
REPORT := build/report

# Whatever the environment says: a program that is compiled at each start takes two and a half times as long to start, and
# the tests start thousands.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo report test lint types bytecode soak clean

demo: $(VENV)/.run-stamp
	$(BIN)/quorumq demo

report: $(VENV)/.spark-stamp
	rm -rf $(REPORT)
	$(BIN)/quorumq demo --keep $(REPORT)/demo
	$(BIN)/python -m spark deadletters --quiet 5 --out $(REPORT)/deadletters \
	  --data $(REPORT)/demo/n1/data --data $(REPORT)/demo/n2/data --data $(REPORT)/demo/n3/data
	$(BIN)/python -m spark audit --drained --history $(REPORT)/demo/histories --out $(REPORT)/audit
	@echo "Look at $(abspath $(REPORT))/deadletters/report.html and $(abspath $(REPORT))/audit/audit.html"

test: $(VENV)/.dev-stamp
	$(MAKE) --no-print-directory -j 2 types lint bytecode
	$(BIN)/python -m pytest -n auto

lint: $(VENV)/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-stamp
	$(BIN)/mypy

# Rewrites and compiles all tests once: each process of pytest would do it for itself. Errors are shown by the tests.
bytecode: $(VENV)/.dev-stamp
	@$(BIN)/python -m pytest --collect-only -qq > /dev/null || true

soak: $(VENV)/.dev-stamp
	$(LOCKED) -r .ci/java.txt -r .ci/dramatiq.txt -r .ci/taskiq.txt -r .ci/kombu.txt -r .ci/celery.txt
	$(LOCKED) --upgrade --target build/boto3 -r .ci/boto3.txt
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile soak
	$(BIN)/python -m pytest -m soak --fuzz-seconds $(FUZZ_SECONDS) --mixed-seconds $(MIXED_SECONDS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-stamp: pyproject.toml .ci/run.txt | $(VENV)/bin/python
	$(LOCKED) -r .ci/run.txt
	$(INSTALL) -e .
	touch $@

$(VENV)/.spark-stamp: .ci/spark.txt .ci/java.txt $(VENV)/.run-stamp
	$(LOCKED) -r .ci/spark.txt
	$(BIN)/python -m spark.java || $(LOCKED) -r .ci/java.txt
	touch $@

$(VENV)/.dev-stamp: .ci/dev.txt $(VENV)/.spark-stamp
	$(LOCKED) -r .ci/dev.txt
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
