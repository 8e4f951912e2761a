PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo quick test lint check clean

demo: $(VENV)/.installed  ## run the demo: a daemon, a runner and a dozen real jobs; ends with report/index.html
	$(BIN)/python -m stoker demo

quick: $(VENV)/.installed  ## run all tests but the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow" $(PYTEST_ARGS)

test: $(VENV)/.installed  ## run all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(PYTEST_ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/types && ln -sfn ../.. build/types/stoker
	MYPYPATH=build/types $(BIN)/mypy

check: lint test

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[recipes,dev]'
	touch $@

clean:
	rm -rf $(VENV) build report .demo
