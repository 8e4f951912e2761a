PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Of the tests. They wait for much, so that there may be more of them than cores.
WORKERS ?= 4

.PHONY: demo quick test nightly lint check clean

demo: $(VENV)/.installed  ## run the demo: a daemon, a runner and a dozen real jobs; ends with report/index.html
	$(BIN)/python -m stoker demo

quick: $(VENV)/.installed  ## run all tests but the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow and not nightly" $(PYTEST_ARGS)

test: $(VENV)/.installed  ## run all tests but the nightly ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not nightly" $(PYTEST_ARGS)

nightly: $(VENV)/.installed  ## run all tests, also long runs of the benchmarks, with eighty times the examples, others each time
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --timeout 3000 $(PYTEST_ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/types && ln -sfn ../.. build/types/stoker
	MYPYPATH=build/types $(BIN)/mypy

check: lint test

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[recipes,autosched,llm,replicas,dev]'
	-$(BIN)/python -m pytest --collect-only -q >/dev/null  # compiles all modules once, which each worker of the tests would do for itself
	-$(BIN)/python -c "from hypothesis.internal.charmap import *; charmap(), intervals_from_codec('utf-8')"  # so it would with these tables
	touch $@

clean:
	rm -rf $(VENV) build report .demo
