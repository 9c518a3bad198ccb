# One file to drive everything. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PREPARED := $(VENV)/.prepared
SEEDS ?= 2000
RUNS ?= 200
# Tests often wait for a process or a server, so two cores are busy with three.
JOBS ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup prepare demo test busy thorough check lint fmt fuzz simulate soak soak-serve cron crash bench walk wheel clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with everything in it (a second run costs nothing)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is `$(PYTHON) -V 2>&1`. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV), a minute or two …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

prepare: $(PREPARED) ## Fetch Spark's JARs and halve its start on this machine (a second run costs nothing)

# Nothing needs it but patience, so a Java that cannot do it stops nothing.
$(PREPARED): $(STAMP)
	@$(BIN)/buffer-delta prepare || echo "… Spark will start more slowly"
	@touch $@

demo: prepare ## The main job on local files: produce, load, kill -9 in a commit, go on, check; SERVE=9464 serves it
	@$(BIN)/buffer-delta demo $(if $(SERVE),--serve $(SERVE))

test: prepare ## Run all tests, in several processes: JOBS=3; WRITER=spark for those of the loader
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(if $(WRITER),--writer $(WRITER))

busy: TIMES ?= 3
busy: JOBS = 6# processes get a share each, so three would take twice as long
busy: prepare ## The tests again and again beside eight busy processes, to find those that race (an hour): TIMES=3
	$(BIN)/python -m tests.busy --runs $(TIMES) -- -n $(JOBS) --dist loadgroup

thorough: prepare ## The longest tests, which `make test` leaves out: more formats, kills and processes
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "thorough and not soak"

check: lint test ## The whole gate: lint, then tests

lint: setup ## Formatting, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fmt: setup ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fuzz: prepare ## Feed 1,000,000 mutated inputs to the decoders and to the readers of a queue, and 60 queues to a loader on a small heap
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.fuzz_loader

simulate: setup ## Run the seeded simulator, all kinds of worlds: SEEDS=2000, or KIND=leases SEED=n to replay one
	$(BIN)/python -m tests.simulation $(if $(KIND),--kind $(KIND)) --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

soak: MINUTES ?= 20
soak: prepare ## The driver's memory over 200 commits, then steady load with every fault at once: MINUTES=20
	$(BIN)/python -m pytest -m soak
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

soak-serve: MINUTES ?= 60
soak-serve: prepare ## A served loader under load and hostile requests: MINUTES=60
	$(BIN)/python -m tests.soak.serving --minutes $(MINUTES)

crash: prepare ## Kill 1,000 producers, a client 400 times, workers on 4,200 batches, 500 loaders and a migration 50 times (2 hours): WRITER=spark
	$(BIN)/python -m tests.crash $(if $(WRITER),--writer $(WRITER))

bench: prepare ## Run the benchmarks, one after the other
	status=0; for b in codec manifest produce consume leases load startup; do $(BIN)/python -m benchmarks.$$b || status=1; done; exit $$status

cron: prepare ## A day of cron in an hour: RUNS=200 short loads of a trickle; nothing may grow
	$(BIN)/python -m tests.soak.cron --runs $(RUNS)

walk: setup ## The newcomer's walk: README top to bottom in a fresh clone, output compared (make test left out)
	$(BIN)/python -m tests.walk

wheel: setup ## Build wheel and sdist; install the wheel alone in a new venv and use it
	bash scripts/check_wheel.sh $(PYTHON)

clean: ## Remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis demo-data
