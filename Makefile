# Each target works from a fresh clone by itself: it makes the virtual environment first if there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNNING := $(VENV)/.running
STAMP := $(VENV)/.installed

.PHONY: venv demo test check docs format clean

venv: $(STAMP)

# The packages that running needs.
$(RUNNING): pyproject.toml constraints.txt
	@echo "installing into $(VENV): 1.8 GB, a minute or more"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e .
	touch $@

# Those of tests, checks and the site as well.
$(STAMP): $(RUNNING)
	@echo "installing the tools of development into $(VENV): 2 GB more, some minutes"
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

# The main job on the shipped model and the shipped prompts.
demo: $(RUNNING)
	$(BIN)/python -m jobs.demo --output out/demo

# Four processes on two cores: many of these tests wait for processes they killed. A file stays in one of them, for
# its fixtures.
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder

# Style, types and import directions.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/repository/test_imports.py
	$(BIN)/python -m testing.house

# The site, into out/site, in a few seconds and without a network. A warning, such as a link that leads nowhere, is an
# error; with --quiet it would not be.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf out build dist *.egg-info .mypy_cache .ruff_cache
