# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint types unit sequences bench format clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,dev]'
	touch $@

demo: .venv/installed  ## generate text with the embedded model, through drawlot's own sampler
	$(BIN)/drawlot generate "class Stack:" --max-tokens 50 --temperature 0.5 --top-p 0.9 --seed 2 --echo

test: lint types unit  ## everything CI runs

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed
	$(BIN)/mypy

unit: .venv/installed  ## two processes of one thread each
	$(BIN)/pytest -q -n 2 --dist worksteal

sequences: .venv/installed  ## 2^17 sequences with every way to draft, 2^13 of the embedded model; ten minutes
	$(BIN)/pytest -q -n 2 -m minutes tests/speculative tests/verification

bench: .venv/installed  ## CPU speed against transformers; run it alone on the machine
	env -u OMP_NUM_THREADS $(BIN)/python -m benchmarks.cpu_sampler

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .triton_cache
