# Each target sets up what it needs: a virtual environment in .venv, installed once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test lint clean

demo: $(INSTALLED)
	$(BIN)/efficient-attn sweep +experiment=demo
	$(BIN)/efficient-attn sweep +experiment=demo_accuracy
	$(BIN)/efficient-attn pick --length 4096 --pattern causal_self --from results/demo
	$(BIN)/efficient-attn plot results/demo
	@echo "Look at the figures above, at the records in results/demo/records,"
	@echo "and ask for your own length: $(BIN)/efficient-attn pick --help"

# One thread per process: two processes with two threads each would wait for one another.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
