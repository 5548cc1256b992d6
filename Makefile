# `make demo` and `make test` set everything up in .venv; nothing else has to be installed first
# but Python 3.11 or later with venv, and make.
PYTHON ?= python3
BIN := .venv/bin
DEMO_READY := .venv/.demo-ready
READY := .venv/.ready
TYPES_READY := .venv/.types-ready
DOCS_READY := .venv/.docs-ready
RELEASE_READY := .venv/.release-ready

.PHONY: help demo test test-slow test-explain test-learn test-chemist test-pages test-install coverage mutants kills fuzz lowest newest extras notebooks pictures tables docs lint audit lock locked format dist clean

help:
	@echo "make demo    explain real molecules and digits with the bundled models"
	@echo "make test    run the tests of what the package computes, writes and shows, but for the slowest"
	@echo "make test-slow   the tests that take longest: trainings, and what holds for every model"
	@echo "make test-explain  test the hall that explains: models, methods, results, evaluation"
	@echo "make test-learn    test the hall that learns: a table or graphs in, a model out"
	@echo "make test-chemist  test the hall of the chemist: fragments, changes, tables, reports, app"
	@echo "make test-pages  run pages and notebooks as a reader would, a table on Ray, the app in a browser"
	@echo "make test-install  test the wheel, checkouts, and what the guides for developers add"
	@echo "make coverage  run all tests and list the lines that none of them runs"
	@echo "make mutants change all modules in small ways, CHANGES=300 from SEED=0; list what no test notices"
	@echo "make kills   kill commands at random moments and compare what they write when run again"
	@echo "make fuzz    look for inputs that break the library, for MINUTES=5, from SEED=0"
	@echo "make lowest  try the lowest declared versions in an environment of their own; TORCH=2.13.0"
	@echo "make newest  the same with the newest versions; both take torch as it is served, or TORCH"
	@echo "make extras  try each extra alone, and what is said without it"
	@echo "make notebooks  run the notebooks and store what they show"
	@echo "make pictures   draw the pictures of pages; those of the app and a report need Chromium"
	@echo "make tables  measure and write the published tables again, hours; TABLE=values for one, TABLE=--list"
	@echo "make docs    build the documentation into docs/_build/html"
	@echo "make lint    ruff, mypy, and the order of imports"
	@echo "make audit   compare admitted and pinned versions with listed advisories"
	@echo "make lock    write requirements.lock: what an installation brings, each with its hash"
	@echo "make locked  install that with hashes, then the project without dependencies, and try it"
	@echo "make format  format the code"
	@echo "make dist    the wheel, the source, and the list of what an installation brings, in dist/"
	@echo "make clean   remove .venv and what was built"

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# PyTorch as PyPI serves it for Linux brings gigabytes of CUDA libraries. Where there is no GPU, and
# PyTorch's own index can be reached, its build for processors alone is taken: a fifth of a gigabyte.
CPU_BUILDS := https://download.pytorch.org/whl/cpu
REACHABLE := import urllib.request as r; r.urlopen("$(CPU_BUILDS)/torch/", timeout=5)
$(DEMO_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@if [ "$$(uname)" = Linux ] && ! command -v nvidia-smi > /dev/null \
	    && $(PYTHON) -c '$(REACHABLE)' 2> /dev/null; \
	  then $(PIP) --index-url $(CPU_BUILDS) torch || echo "taking PyTorch from PyPI instead"; fi
	$(PIP) -e ".[images,app]"
	@touch $(DEMO_READY)

$(READY): $(DEMO_READY)
	$(PIP) -e ".[images,train,test]"
	@touch $(READY)

$(TYPES_READY): $(READY)
	$(PIP) -e ".[types]"
	@touch $(TYPES_READY)

demo: $(DEMO_READY)
	$(BIN)/graphxai demo --out demo

# One process more than there are cores, at most four, each with one thread: some tests wait for a
# program that they started, and another one runs meanwhile. With worksteal, tests of a file mostly stay together,
# so that what they share is made once. Compiled files are kept even where the environment says
# otherwise: hundreds of processes are started, and each would compile the library anew. Threads,
# where a test asks for several, sleep while they wait: every core is taken, so that one that waits
# busily keeps the other from working.
PROCESSES := $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count() + 1))")
ONE_THREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE=
TESTS := $(ONE_THREAD) $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal
COMPUTED := --ignore tests/install --ignore tests/walkthroughs
test: $(READY)
	$(TESTS) -m "not slow" $(COMPUTED)

# One in seven test functions takes three quarters of all time, so they have a command of their own.
test-slow: $(READY)
	$(TESTS) -m slow $(COMPUTED)

# The halls, each by the tests of its rooms: docs/about.md describes each of them.
EXPLAIN_ROOMS := contract datasets evaluation explainers explanation models rules runtime visualization wrapping
LEARN_ROOMS := learning
CHEMIST_ROOMS := chemistry tables
test-explain: $(READY)
	$(TESTS) $(addprefix tests/,$(EXPLAIN_ROOMS)) tests/test_api.py

test-learn: $(READY)
	$(TESTS) $(addprefix tests/,$(LEARN_ROOMS))

test-chemist: $(READY)
	$(TESTS) $(addprefix tests/,$(CHEMIST_ROOMS))

test-pages: $(READY)
	$(TESTS) tests/walkthroughs

# These build and install the package, type the guides into a copy of it, and check the types of a
# user's script. Nothing that the package computes is tested here.
test-install: $(TYPES_READY)
	$(TESTS) tests/install

# Lines and branches, also those that the tests' own processes run; htmlcov/ shows them in the code.
coverage: $(RELEASE_READY)
	$(TESTS) --cov --cov-report=term:skip-covered --cov-report=html

# Hours: as many CHANGES, drawn from all modules by SEED, each face the tests that run the changed line.
CHANGES ?= 300
mutants: $(RELEASE_READY)
	$(ONE_THREAD) $(BIN)/python tests/mutants.py --everywhere $(CHANGES) --seed $(SEED)

# An hour: 30 kills of each command, half of them as a scheduler does.
kills: $(READY)
	$(BIN)/python tests/kills.py

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

# Every extra has an environment of its own, which is removed again.
extras:
	$(PYTHON) .ci/extras.py

$(DOCS_READY): $(READY)
	$(PIP) -e ".[docs]"
	@touch $(DOCS_READY)

# What a release shows: notebooks run again, and every picture of a page drawn again.
notebooks: $(READY)
	$(BIN)/python notebooks/execute.py

pictures: $(READY)
	$(BIN)/python docs/draw_floors.py
	$(BIN)/python docs/make_images.py
	$(BIN)/python docs/make_screens.py

# What a new model changes on pages. An interrupted run goes on; GRAPHXAI_DATA names the data.
TABLE ?=
tables: $(READY)
	$(ONE_THREAD) $(BIN)/python benchmarks/tables.py $(TABLE)

# warnings are errors; -E reads every page anew, so that none is overlooked
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -E -b html docs docs/_build/html

$(RELEASE_READY): $(READY)
	$(PIP) -e ".[release]"
	@touch $(RELEASE_READY)

# The list is a CycloneDX SBOM of a clean environment that has the wheel and what it requires, and of
# the JavaScript, weights and data in the wheel. The wheel then explains a molecule there.
dist: $(RELEASE_READY)
	rm -rf build dist .venv-dist
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	$(BIN)/cyclonedx-py environment .venv-dist --pyproject pyproject.toml --mc-type library --output-reproducible --output-file dist/graphxai.cdx.json
	$(BIN)/python .ci/sbom.py dist/*.whl dist/graphxai.cdx.json
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	cd dist && ../.venv-dist/bin/graphxai explain CCO --out ethanol.png && rm ethanol.png

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The locked packages with their hashes; `locked` installs them, then the project alone, and tries it.
lock: $(READY)
	$(BIN)/python .ci/lock.py

locked: $(READY)
	$(BIN)/python .ci/lock.py --install

audit: $(READY)
	$(BIN)/python .ci/audit.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-lowest .venv-newest .venv-extras* .venv-dist .venv-locked build dist demo htmlcov .coverage docs/_build docs/notebooks docs/benchmarks *.egg-info .pytest_cache .mypy_cache .ruff_cache .editable
