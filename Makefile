# `make demo` and `make test` need Python 3.11, Java 17 and make; they set up .venv themselves.
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
SIZE ?= 256m
# Most tests wait more than they compute, so a third worker keeps two cores busy.
WORKERS ?= 3
PACKAGES := backends s5cmd_integration transfer bench

export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-slow lint types bench lock clean

demo: $(VENV)/.ready
	$(VENV)/bin/statelift demo --size $(SIZE)

test: lint types
	$(PY) -m pytest -m "not slow and not spark" -q -n $(WORKERS)
	$(PY) -m pytest -m "not slow and spark" -q

test-slow: $(VENV)/.ready
	$(PY) -m pytest -m slow -q

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.ready build/ns/statelift
	$(VENV)/bin/mypy

bench: $(VENV)/.ready
	$(PY) -m statelift.bench $(if $(QUICK),--quick) $(if $(FULL),--full) $(if $(S3A),--s3a)

$(VENV)/.ready: requirements-dev.lock pyproject.toml setup.cfg
	@command -v $(PYTHON) >/dev/null || { echo "statelift needs Python 3.11: set PYTHON to it" >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	rm -rf build/lib
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# mypy cannot see through setuptools' import hook: give it the namespace as links.
build/ns/statelift:
	mkdir -p $@ && for p in $(PACKAGES); do ln -sfn ../../../$$p $@/$$p; done

# Needs uv (https://docs.astral.sh/uv): rewrites the lock from pyproject.toml.
lock:
	uv pip compile --quiet --extra dev --generate-hashes --python-version 3.11 --python-platform linux \
	    --no-annotate --no-header pyproject.toml -o requirements-dev.lock

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
