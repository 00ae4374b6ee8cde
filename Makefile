# From a bare clone with python3 and pip:
#   make run        install, then fit the embedded example
#   make test       install, then all checks, and tests but for slow ones
#   make test-all   the same with slow tests
#   make docs       install, then build the documentation site
#   make bench-quick  install, then measure every question of the benchmarks, small: some five minutes
#   make bench      the same at full size, which takes days and resumes; ARGS="tables --quick" is a part of it
#   make reproduce  install, then draw the paper again; ARGS="figure-2 --repetitions 1"
#   make dist       build wheel and source distribution, and try them on every Python at hand
#   make lock       resolve the requirements anew
#   make clean      remove environment and caches

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile --no-deps
# About half of the bytes of requirements/run.txt.
HALF := ^(llvmlite|numba|scipy)==
# Bytecode is written by what imports a module first, and kept: containers often ask Python not to.
export PYTHONDONTWRITEBYTECODE :=
OUT ?= pickmix-model
SITE := docs/_build/html

# Numba's cache notices changes in the file of a cached function, but not in the files of the
# functions that were compiled into it. So each state of the sources has a cache folder of its own.
SOURCES_HASH := $(shell $(PYTHON) -c 'import hashlib, pathlib; \
	files = sorted(pathlib.Path("src/pickmix").rglob("*.py")); \
	print(hashlib.sha256(b"".join(str(f).encode() + f.read_bytes() for f in files)).hexdigest()[:16])')
NUMBA_CACHE := .cache/numba-$(SOURCES_HASH)
export NUMBA_CACHE_DIR := $(CURDIR)/$(NUMBA_CACHE)

.PHONY: run test test-all lint docs bench bench-quick reproduce dist lock clean numba-cache

run: $(VENV)/run.stamp numba-cache
	$(BIN)/pickmix fit --out $(OUT)

# Kernels are compiled by a process of their own, while the other core installs what tests need and checks
# types and style: one that compiles a kernel may round differently from those that load it, and tests compare
# bits between processes. Then it imports all tests, so that their bytecode is written once. Programs that
# JAX compiles are kept in the clone, not in the user's own cache. Two processes, on one core each: threads of
# linear algebra would only get into each other's way.
test: $(VENV)/run.stamp numba-cache
	@{ $(BIN)/pickmix compile && until test -e $(VENV)/test.stamp; do sleep 1; done && \
		{ $(BIN)/python -m pytest --collect-only --quiet || true; }; } > /dev/null & compiler=$$!; \
		$(MAKE) --no-print-directory lint || { kill $$compiler; exit 1; }; wait $$compiler
	XDG_CACHE_HOME=$(CURDIR)/.cache OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
		$(BIN)/python -m pytest -n 2 --dist worksteal $(SELECTED)

# With the tests that are marked as slow.
test-all: SELECTED = -m ""
test-all: test

lint: $(VENV)/test.stamp numba-cache
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Warnings are errors, and nothing on the pages may be fetched from elsewhere. Examples are run, each
# once for every change of it.
docs: $(VENV)/docs.stamp numba-cache
	XDG_CACHE_HOME=$(CURDIR)/.cache OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
		$(BIN)/sphinx-build -q -E -W --keep-going -b html docs $(SITE)
	$(BIN)/python docs/check_site.py $(SITE)
	@echo "The site is in $(SITE)/index.html"

# Verbs of the package in experiments/, which is not part of pickmix.
bench: ARGS ?= all
bench-quick: ARGS ?= all --quick
reproduce: ARGS ?= --all --quick
bench bench-quick reproduce: $(VENV)/test.stamp numba-cache
	$(BIN)/pickmix $(@:-quick=) $(ARGS)

# The build backend is the locked one. Each archive is installed into a clean environment and used.
dist: $(VENV)/run.stamp
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist
	$(BIN)/python tools/try_dist.py dist

# The package goes in without dependencies and without a build environment of its own: all that
# is installed, the build backend too, is in the locked requirements, half of it by each of two cores.
# Then kernels of a default fit are compiled, while a process imports what such a fit does: that
# writes its bytecode once, and no more.
$(VENV)/run.stamp: requirements/run.txt pyproject.toml | $(BIN)/python numba-cache
	@grep -E '$(HALF)' $< | $(INSTALL) -r /dev/stdin & half=$$!; \
		grep -Ev '$(HALF)' $< | $(INSTALL) -r /dev/stdin || { kill $$half; exit 1; }; wait $$half
	$(INSTALL) --no-build-isolation -e .
	@$(BIN)/python -c 'from pickmix.estimators import compilation; \
		compilation.compile_all(["partition"])' & compiler=$$!; \
		$(BIN)/python -c 'import matplotlib.backends.backend_agg, pickmix.cli.fit, pickmix.plotting, \
		pickmix.inspection.report' || { kill $$compiler; exit 1; }; wait $$compiler
	touch $@

$(VENV)/test.stamp: requirements/test.txt experiments/pyproject.toml $(VENV)/run.stamp
	$(INSTALL) -r requirements/test.txt
	$(INSTALL) --no-build-isolation -e experiments
	touch $@

$(VENV)/docs.stamp: requirements/docs.txt $(VENV)/test.stamp
	$(INSTALL) -r requirements/docs.txt
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

numba-cache:
	@mkdir -p $(NUMBA_CACHE)
	@find .cache -mindepth 1 -maxdepth 1 -name 'numba-*' ! -name 'numba-$(SOURCES_HASH)' -exec rm -rf {} +

# `make lock UPGRADE=` keeps the versions that are locked already.
UPGRADE := --upgrade
# Addresses of package indexes belong to the machine, not into the files.
COMPILE := .venv-lock/bin/pip-compile --quiet $(UPGRADE) --allow-unsafe --strip-extras --no-header \
	--no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

# Tests do without MLflow, which brings thirty packages: those that need it skip, `make dist` tries it.
lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet pip-tools==7.6.2
	mkdir -p .cache requirements
	$(PYTHON) -c 'import pathlib, tomllib; \
		groups = tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]; \
		[pathlib.Path(f".cache/{name}.in").write_text("\n".join(groups[name])) for name in groups]'
	$(COMPILE) --extra plot --build-deps-for editable --output-file requirements/run.txt \
		pyproject.toml
	$(COMPILE) --extra cluster --extra reproduce --extra tensorboard \
		--output-file requirements/test.txt pyproject.toml requirements/run.txt .cache/dev.in
	$(COMPILE) --output-file requirements/docs.txt requirements/test.txt .cache/docs.in

clean:
	rm -rf $(VENV) .venv-lock .cache dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
		docs/_build docs/auto_examples docs/reference/generated
