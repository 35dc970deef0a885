# The workspace's commands. Every one of them sets up what it needs first, and does so only when a pin has changed:
# `make test` on a fresh clone is all there is to type. What the set-up does stands in scripts/setup.
#
# Everything that is made lives in .tools/, .venv/ and build/ of this checkout; nothing goes to the home directory.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
WORKERS ?= 2
# more words for pytest: make test ARGS="-k renew -x"
ARGS ?=

BUILD := $(CURDIR)/build
CACHE := $(BUILD)/cache
RUN := $(CURDIR)/.venv/bin

# the distributions that are installed editable into .venv
MEMBERS := core packages/airflow_provider packages/prefect_block packages/dagster_resource packages/gcs_emulator

# the versions of Prefect and of Dagster that are pinned, the oldest first
PREFECTS := $(shell ls requirements/prefect-*.txt | sed 's/.*-//; s/\.txt//' | sort -V)
DAGSTERS := $(shell ls requirements/dagster-*.txt | sed 's/.*-//; s/\.txt//' | sort -V)

# The stamp's name is what the environment was made of: a changed pin or a moved checkout is another name.
MADE_OF := requirements/uv.txt requirements/dev.txt scripts/setup scripts/environment scripts/borrow-glib $(MEMBERS:=/pyproject.toml)
STAMP := .venv/made-$(shell { echo '$(CURDIR)'; cat $(MADE_OF); } | git hash-object --stdin)

export PYTHON MEMBERS
export UV_PYTHON_DOWNLOADS := never
export UV_CACHE_DIR := $(CACHE)/uv
export PIP_CACHE_DIR := $(CACHE)/pip
export XDG_CACHE_HOME := $(CACHE)
export PYTHONPYCACHEPREFIX := $(CACHE)/pycache
# where a machine wants no byte code written, each process of an orchestrator would compile a thousand modules: 4 s
export PYTHONDONTWRITEBYTECODE :=
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.* ## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.* ## /\1\t/' | \
	  while IFS=$$'\t' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

$(STAMP):
	@scripts/setup $(STAMP)

.PHONY: setup
setup: $(STAMP) ## make the virtual environment in .venv (the other commands do it by themselves)

.PHONY: debian
debian: ## see whether the Debian packages of the tests are there; install them as root with INSTALL=1 or CI=true
	@scripts/debian-packages

.PHONY: check
check: $(STAMP) ## ruff, the generated modules, mypy --strict, the import rules
	$(RUN)/ruff check .
	$(RUN)/python scripts/blocking.py --check
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports --no-logo --cache-dir $(CACHE)/import_linter

.PHONY: blocking
blocking: $(STAMP) ## generate the blocking modules from the awaiting ones: NAME.py from aio_NAME.py
	$(RUN)/python scripts/blocking.py

.PHONY: format
format: $(STAMP) ## let ruff sort the imports and lay out the code
	$(RUN)/ruff check --fix-only .
	$(RUN)/ruff format .

.PHONY: test
test: $(STAMP) debian ## all tests but those of Cassandra and the orchestrators; ARGS="-k renew" for some, WORKERS=4 for more at once
	scripts/with-borrowed $(RUN)/pytest -m 'not cassandra and not airflow and not prefect and not dagster and not four' -n $(WORKERS) --dist loadgroup $(ARGS)

# What depends on the interpreter: interrupts, threads, its sqlite3. The other promised Pythons; PYTHON= has run all of it.
.PHONY: pythons
pythons: $(STAMP) ## the core's tests on the other Pythons that are promised, each in an environment in build/python; VERSION=3.13, ARGS=
	@set -e; ready="$$(scripts/pythons $(or $(VERSION),3.12 3.13))"; failed=; for version in $$ready; do echo "== Python $$version"; \
	  PYTHONPYCACHEPREFIX=$(CACHE)/pycache-$$version $(BUILD)/python/$$version/bin/python -m pytest -n $(WORKERS) --dist loadgroup \
	  $(or $(TESTS),tests/runtime tests/stores/sqlite tests/stores/test_memory.py tests/stores/test_loops.py) $(ARGS) \
	  || failed=1; done; [[ -z "$$failed" ]]

# takes eight minutes for each Python; the exit code says whether anything was torn
.PHONY: soak
soak: $(STAMP) ## 10,000 losses and 100,000 real SIGINTs over blocks of every kind; VERSION=3.12 for another Python, ARGS="--losses 600"
	@set -e; $(if $(VERSION),ready="$$(scripts/pythons $(VERSION))"; for version in $$ready; do $(BUILD)/python/$$version/bin/python -m tests.soak $(ARGS); done,\
	  $(RUN)/python -m tests.soak $(ARGS))

.PHONY: cassandra
cassandra: $(STAMP) debian ## the tests of the Cassandra store, on a server that Maven fetches; ARGS= as for test
	$(RUN)/pytest -m cassandra -n $(WORKERS) --dist loadgroup $(or $(TESTS),tests/conformance tests/stores) $(ARGS)

# VERSION= chooses one of those that are pinned: 3.3, 3.0, 2.11, 2.10. A worker runs one Airflow at a time: it is five processes.
.PHONY: airflow
airflow: $(STAMP) debian ## the tests on real Airflows, each in an environment in build/airflow; VERSION="2.10 3.3", ARGS=
	@scripts/orchestrator airflow $(VERSION)
	scripts/with-borrowed $(RUN)/pytest -m airflow $(if $(VERSION),--airflow '$(VERSION)') -n $(WORKERS) --dist loadgroup $(or $(TESTS),tests/airflow) $(ARGS)

# Each version by itself: its tests import Prefect, so they run in its environment. VERSION= chooses: 3.8, 3.1. Not in the
# checkout's folder: Prefect 3.1 reads a pyproject.toml where it is started, by a parser that does not know all of TOML.
.PHONY: prefect
prefect: $(STAMP) debian ## the tests on real Prefects, each in an environment in build/prefect; VERSION="3.1 3.8", ARGS=
	@scripts/orchestrator prefect $(VERSION)
	set -e; for version in $(or $(VERSION),$(PREFECTS)); do echo "== Prefect $$version"; cd $(BUILD)/prefect; \
	  $(CURDIR)/scripts/with-borrowed $$version/bin/python -m pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) \
	  -m prefect -W default -n $(WORKERS) --dist loadgroup $(or $(TESTS),$(CURDIR)/tests/prefect) $(ARGS); done

# As with Prefect: its tests import Dagster. VERSION= chooses: 1.13, 1.11.
.PHONY: dagster
dagster: $(STAMP) debian ## the tests on real Dagsters, each in an environment in build/dagster; VERSION="1.11 1.13", ARGS=
	@scripts/orchestrator dagster $(VERSION)
	set -e; for version in $(or $(VERSION),$(DAGSTERS)); do echo "== Dagster $$version"; cd $(BUILD)/dagster; \
	  $(CURDIR)/scripts/with-borrowed $$version/bin/python -m pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) \
	  -m dagster -W default -n $(WORKERS) --dist loadgroup $(or $(TESTS),$(CURDIR)/tests/dagster) $(ARGS); done

# The environments that stand beside one another: what `make demo` and its tests start.
define three_orchestrators
	@scripts/orchestrator airflow 3.3
	@scripts/orchestrator prefect 3.8
	@scripts/orchestrator dagster 1.13
endef

.PHONY: four
four: $(STAMP) debian ## the tests of `make demo`, which play all of it, with another seed; ARGS= as for test
	$(three_orchestrators)
	scripts/with-borrowed $(RUN)/pytest -m four -n 0 $(or $(TESTS),tests/demo) $(ARGS)

.PHONY: demo
demo: $(STAMP) debian ## Airflow, Prefect, Dagster and a script publish under the same locks, seen live; SEED= REPO= LOCK= PACE=, ONLY=engine
	$(if $(ONLY),,$(three_orchestrators))
	scripts/with-borrowed $(RUN)/python -m examples.publishing demo $(if $(ONLY),--only '$(ONLY)') $(if $(SEED),--seed '$(SEED)') \
	  $(if $(REPO),--repo '$(REPO)') $(if $(LOCK),--lock '$(LOCK)') $(if $(PACE),--pace '$(PACE)') $(ARGS)

.PHONY: demo-airflow
demo-airflow: $(STAMP) debian ## publish from two DAGs of a real Airflow, one of which loses a worker; REPO= PACE=
	@scripts/orchestrator airflow 3.3
	scripts/with-borrowed $(RUN)/python -m examples.publishing demo-airflow \
	  $(if $(REPO),--repo '$(REPO)') $(if $(PACE),--pace '$(PACE)') $(ARGS)

# In Prefect's own environment: the demo starts its server and worker by the Python that it runs in.
.PHONY: demo-prefect
demo-prefect: $(STAMP) debian ## the same from two flows of a real Prefect, one of which is killed; REPO= PACE=
	@scripts/orchestrator prefect 3.8
	scripts/with-borrowed $(BUILD)/prefect/3.8/bin/python -m examples.publishing demo-prefect \
	  $(if $(REPO),--repo '$(REPO)') $(if $(PACE),--pace '$(PACE)') $(ARGS)

# In Dagster's own environment: the demo starts `dagster dev` by the Python that it runs in.
.PHONY: demo-dagster
demo-dagster: $(STAMP) debian ## the same from two jobs of a real Dagster, one of which loses its worker; REPO= PACE=
	@scripts/orchestrator dagster 1.13
	scripts/with-borrowed $(BUILD)/dagster/1.13/bin/python -m examples.publishing demo-dagster \
	  $(if $(REPO),--repo '$(REPO)') $(if $(PACE),--pace '$(PACE)') $(ARGS)

.PHONY: sim
sim: $(STAMP) ## the lock protocol in virtual time under faults; SEED= replays one run, SEEDS= SCENARIO= FROM= choose more
	$(RUN)/python -m tests.simulation $(if $(SEED),--seed '$(SEED)') $(if $(SEEDS),--seeds '$(SEEDS)') \
	  $(if $(FROM),--from '$(FROM)') $(if $(SCENARIO),--scenario '$(SCENARIO)') $(ARGS)

.PHONY: mutants
mutants: $(STAMP) ## small changes of the engine that some test has to see; takes hours; FILES= SAMPLE= SEED= choose some
	$(RUN)/python -m tests.mutants $(if $(FILES),--files $(FILES)) $(if $(SAMPLE),--sample '$(SAMPLE)') \
	  $(if $(SEED),--seed '$(SEED)') $(ARGS)

.PHONY: fuzz
fuzz: $(STAMP) ## whatever reads what others wrote, with any input; TARGET= one of them or several, SECONDS= for how long
	TARGET='$(TARGET)' SECONDS='$(SECONDS)' $(RUN)/python -m tests.fuzz

.PHONY: model
model: $(STAMP) debian ## prove the models of the protocol with spin; ARGS=--deep for what takes minutes
	$(RUN)/python -m tests.model $(ARGS)

.PHONY: bench
bench: $(STAMP) ## measure what the engine itself costs
	$(RUN)/python -m tests.benchmarks $(ARGS)

.PHONY: bench-airflow
bench-airflow: $(STAMP) debian ## measure a lock in a real Airflow beside a pool with one slot; takes minutes, VERSION=3.3
	@scripts/orchestrator airflow $(or $(VERSION),3.3)
	$(RUN)/python -m tests.benchmarks.orchestrated --version $(or $(VERSION),3.3) $(ARGS)

# only of the newest: the limits of Prefect 3.1 have no leases
.PHONY: bench-prefect
bench-prefect: $(STAMP) debian ## measure a lock in a real Prefect's flows beside its own concurrency(); takes minutes, ARGS=--quick
	@scripts/orchestrator prefect 3.8
	$(BUILD)/prefect/3.8/bin/python -m tests.benchmarks.limits $(ARGS)

.PHONY: bench-dagster
bench-dagster: $(STAMP) debian ## measure a lock in a real Dagster's ops beside its own pools; takes minutes, ARGS=--quick
	@scripts/orchestrator dagster 1.13
	$(BUILD)/dagster/1.13/bin/python -m tests.benchmarks.pools $(ARGS)

.PHONY: pictures
pictures: $(STAMP) debian ## take the pictures of the docs anew, in headless Chromium on real stores and orchestrators
	$(RUN)/python -m tests.dashboard.pictures $(ARGS)
	@scripts/orchestrator airflow 3.3
	$(RUN)/python -m tests.airflow.pictures $(ARGS)
	@scripts/orchestrator prefect 3.8
	$(BUILD)/prefect/3.8/bin/python -m tests.prefect.pictures $(ARGS)
	@scripts/orchestrator dagster 1.13
	$(BUILD)/dagster/1.13/bin/python -m tests.dagster.pictures $(ARGS)

.PHONY: lock
lock: $(STAMP) ## pin anew what pyproject.toml asks for; ARGS=--upgrade for newer versions
	@scripts/lock $(ARGS)

.PHONY: clean
clean: ## remove everything that was made: build/, .venv/, .tools/
	rm -rf build .venv .tools
