# `make demo` and `make test` set everything up in .venv; nothing else has to be installed first
# but Python 3.11 or later with venv, and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DOCS_READY := .venv/.docs-ready

.PHONY: help demo test fuzz lowest newest docs lint format models clean

help:
	@echo "make demo    explain real molecules and digits with the bundled models"
	@echo "make test    run all tests"
	@echo "make fuzz    look for inputs that break the library, for MINUTES=5, from SEED=0"
	@echo "make lowest  try the lowest declared versions in an environment of their own; TORCH=2.13.0"
	@echo "make newest  the same with the newest versions; both take torch as it is served, or TORCH"
	@echo "make docs    build the documentation into docs/_build/html"
	@echo "make lint    ruff, mypy, and the order of imports"
	@echo "make format  format the code"
	@echo "make clean   remove .venv and what was built"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[images,train,test]"
	@touch $(READY)

demo: $(READY)
	$(BIN)/graphxai demo --out demo

# One process a core, each with one thread; with worksteal, tests of a file mostly stay together,
# so that what they share is made once. Compiled files are kept even where the environment says
# otherwise: hundreds of processes are started, and each would compile the library anew. Threads,
# where a test asks for several, sleep while they wait: every core is taken, so that one that waits
# busily keeps the other from working.
test: $(READY)
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

# Strange inputs for MINUTES; a fault is added to tests/data/hostile.jsonl, which the tests run.
MINUTES ?= 5
SEED ?= 0
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py --minutes $(MINUTES) --seed $(SEED)

# The package alone, from its wheel. TORCH names another PyTorch than the lowest or newest, whose
# build may bring gigabytes of CUDA libraries.
TORCH ?=
lowest newest:
	$(PYTHON) .ci/versions.py $@ $(if $(TORCH),--torch $(TORCH))

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch $(DOCS_READY)

# warnings are errors; -E reads every page anew, so that none is overlooked
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -E -b html docs docs/_build/html

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-lowest .venv-newest build dist demo docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache
