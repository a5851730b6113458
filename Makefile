# Needs make and Python >= 3.11; everything else goes into .venv, and nothing is written outside this folder.
# `make` alone lists the targets. PyTorch comes from where pip is told to look: a CPU wheel spares the CUDA libraries.

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)))
WORKERS ?= 2
BIN := .venv/bin

# Stamps inside .venv: newer than pyproject.toml means installed for it.
CORE := .venv/.core
TEST := .venv/.test
LINT := .venv/.lint
DOCS := .venv/.docs
RELEASE := .venv/.release
MUTATIONS := .venv/.mutants
TORCH := .venv/.torch
# The newest PyTorch, in an environment of its own; all else is tested with the pinned one.
NEWEST := .venv-newest/.torch
# The frameworks' requirements conflict with each other, so they are installed without them, in an environment of their own.
TARGETS := .venv-targets/.targets

# Programs that tests and benchmarks start read compiled modules instead of compiling hundreds of them each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo release audit mutants kills repeats interrupts test test-runs test-shapes test-full fuzz answers test-torch test-torch-newest test-targets lint format bench accuracy page example outputs browser schedules schemas claims planners \
	models floors corpus docs docs-version \
	clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1 - /'

demo: $(CORE)  ## plan Llama-3.1-70B on 64 H100 and 64 A100-80 together, offline
	$(BIN)/meshwright plan llama-3.1-70b --gpus 64xH100,64xA100-80

test: $(TEST)  ## run the tests, without slow ones, runs of plans, and those that need PyTorch or the frameworks
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow" $(addprefix --ignore=tests/,runtime torch frameworks)

test-runs: $(TEST)  ## run plans on virtual devices, processes and Ray nodes: they end where one device ends, and send what is priced
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow" tests/runtime

test-shapes: $(TEST)  ## run the tests of the array code, few sizes of each, with every array checked against its annotated shape
	CHECK_SHAPES=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow" \
		$(addprefix tests/,kernels schedules strategies estimate search test_shapes.py) \
		$(addprefix --ignore=tests/search/,test_on_ray.py test_on_cores.py tuners)  # their arrays are those of other processes

test-full: $(TEST)  ## run all tests but those that need PyTorch or the frameworks, with ten times the generated examples; hours on 2 cores
	CHECK_SHAPES=1 HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --ignore=tests/torch --ignore=tests/frameworks

FUZZ ?= --inputs 500000 --minutes 600 --seed 0

fuzz: $(TEST)  ## fuzz every input format and command line; resumes where it stopped, keeps failing inputs in .fuzz
	$(BIN)/python -m tests.fuzz $(FUZZ)

answers: $(TEST)  ## compare answers with the recorded ones of tests/answers; minutes on 2 cores
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "" tests/answers

test-torch: $(TEST) $(TORCH)  ## test pipeline schedules against PyTorch, a large download
	$(BIN)/python -m pytest -q tests/torch

test-torch-newest: $(NEWEST)  ## the same against the newest PyTorch with its CUDA libraries, a download of 3 GB
	PYTHONPATH=src:. .venv-newest/bin/python -m pytest -q tests/torch

test-targets: $(TARGETS)  ## test exported files against the frameworks' own parsers, large downloads
	PYTHONPATH=src:. .venv-targets/bin/python -m pytest -q tests/frameworks/test_galvatron.py  # brings a Megatron of its own along
	PYTHONPATH=src:. .venv-targets/bin/python -m pytest -q -n $(WORKERS) --dist loadfile tests/frameworks --ignore=tests/frameworks/test_galvatron.py

lint: $(LINT)  ## check format, lint rules, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(LINT)  ## format the code and fix lint findings where ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

corpus: $(TEST)  ## run training steps of Flax, Equinox, Haiku and JAX under every method and write their page; an hour on 2 cores
	$(BIN)/python -m tests.corpus.table --x64 --page docs/train-steps-that-run.md

bench: $(CORE)  ## measure speed and write docs/benchmarks.md
	$(BIN)/python -m benchmarks

accuracy: $(TEST)  ## compare predictions with public measurements and write docs/accuracy.md
	$(BIN)/python -m benchmarks.accuracy

page: $(TEST)  ## measure the live page and take its picture for the docs; needs Chromium
	$(BIN)/python -m benchmarks.page

example: $(TEST)  ## record the answer that the live page shows before it is worked out
	MESHWRIGHT_UPDATE_DOCS=1 $(BIN)/python -m pytest -q tests/service/test_example.py -k recorded

PAGES ?= prints_what_its_page_says

outputs: $(TEST)  ## write what commands of README and docs print into them; PAGES=mixed-clusters.md for one page
	MESHWRIGHT_UPDATE_DOCS=1 $(BIN)/python -m pytest -q tests/test_docs.py -k "prints_what_its_page_says and $(PAGES)"

browser:  ## install Chromium for the tests of pages, where apt may be used
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } || \
		echo "no Chromium: tests of pages are skipped" >&2

schedules: $(CORE)  ## write docs/schedules.md
	$(BIN)/python -m benchmarks.schedules

claims: $(CORE)  ## compare published claims of other systems with ours and write docs/claims.md
	$(BIN)/python -m benchmarks.claims

planners: $(CORE)  ## plan a few jobs with the planners of the literature and ours and write docs/planners.md
	$(BIN)/python -m benchmarks.planners

schemas: $(TEST)  ## write the JSON Schemas of --json from answers to the questions of tests/answers; minutes
	$(BIN)/python -m tests.answers.schemas

models: $(CORE)  ## write docs/models.md
	$(BIN)/python -m benchmarks.families

floors: $(CORE)  ## write the table of floors in CONTRIBUTING.md from the import contract
	$(BIN)/python -m benchmarks.floors

docs: $(DOCS)  ## build the documentation as a web site in site/ and check its links
	$(BIN)/mkdocs build --strict

docs-version: $(DOCS)  ## add the documentation of this release to the branch gh-pages of this clone
	$(BIN)/mike deploy --update-aliases $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) latest
	$(BIN)/mike set-default latest

SIGN_KEY ?=

release: $(RELEASE)  ## build wheel, sdist and SBOM in dist/, test them on every Python found, sign them with SIGN_KEY=FILE
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m release.check dist
	$(BIN)/python -m release.sign dist "$(SIGN_KEY)"

audit: $(RELEASE)  ## check vulnerabilities (pip-audit, needs the network) and licences of what the wheel needs
	$(BIN)/python -m release.audit

MUTANTS ?=

kills: $(TEST)  ## send SIGKILL at random moments to writes, plans, sweeps, studies and workers of runs, a hundred of each; minutes
	$(BIN)/python -m tests.kills
	$(BIN)/python -m benchmarks.kills --kills 100

repeats: $(TEST)  ## ask each verb ten times with other hash seeds, threads and cores: the same bytes; minutes
	$(BIN)/python -m pytest -q -m "" tests/test_repeatable.py

interrupts: $(TEST)  ## send SIGINT and SIGTERM at random lines to every verb that writes or starts processes; minutes
	$(BIN)/python -m tests.interrupts

mutants: $(TEST) $(MUTATIONS)  ## mutate files changed since main and list mutants that no test notices; MUTANTS=FILES, or "--draw 12 --seed 1" for all that prices and searches
	$(BIN)/python -m tests.mutants $(MUTANTS)

clean:  ## remove what make created
	rm -rf .venv .venv-targets .venv-newest site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "meshwright needs Python >= 3.11; none found (set PYTHON=...)" >&2; exit 1; }
	$(PYTHON) -m venv .venv

$(CORE): pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(TARGETS): tests/frameworks/requirements.txt tests/frameworks/packages.txt
	$(PYTHON) -m venv .venv-targets
	.venv-targets/bin/python -m pip install --quiet --disable-pip-version-check -r tests/frameworks/requirements.txt
	DS_BUILD_OPS=0 .venv-targets/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --ignore-requires-python -r tests/frameworks/packages.txt
	@touch $@

$(NEWEST): pyproject.toml
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]' 'torch>=2.15'
	@touch $@

$(TEST) $(LINT) $(DOCS) $(TORCH) $(RELEASE) $(MUTATIONS): .venv/.%: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@
