# Two commands for a newcomer: `make run` and `make test`. Both work from a bare clone.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
BIN := .venv/bin
# A third of the tests' time they wait for clocks and other processes: four at a time keep two cores busy.
PYTEST := $(BIN)/python scripts/pytest-flaky -q -n 4 --dist worksteal
MARKED ?= not slow and not soak and not nightly
RUN ?= first-light
PARTS := report daemon_rounds engine_worker monitors prior_art_worker
# They need a device, a file of results, a checkout.
APART := gpu policy_variants prior_art
BENCHES := $(filter-out $(patsubst %,benchmarks/%.py,$(PARTS) $(APART)),$(wildcard benchmarks/[a-z]*.py))

INSTALLED := pyproject.toml constraints.txt esper_overwatch/protocol/codec/line_writer.cpp \
	$(wildcard esper_overwatch/trainer/compute/native_*)
HAS_PYTHON = test -n "$(PYTHON)" || \
	{ echo "Python 3.11 or newer is needed; none found. Set PYTHON=/path/to/python3"; exit 2; }

# Kept bytecode halves the start of torch, and of the tests; some CI machines turn it off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all pytest nightly lint ruff mypy bench docs site man clean

run: .venv/trainer
	@scripts/run "$(RUN)"

# mypy keeps one core busy: beside the tests it costs half of its time.
test: .venv/dev ruff
	@$(MAKE) --no-print-directory -j 2 mypy pytest

test-all:
	@$(MAKE) --no-print-directory test MARKED='not soak and not nightly'

pytest: .venv/dev
	@echo "== pytest"
	$(PYTEST) -m '$(MARKED)'

nightly: .venv/dev
	@echo "== the products"
	$(PYTEST) -m nightly
	@echo "== ten times as many examples of each property"
	$(PYTEST) --hypothesis-profile nightly -m 'hypothesis and not nightly and not soak'
	@echo "== a quarter of an hour of chaos"
	$(BIN)/python -m tests.chaos --minutes 15
	@echo "== a long soak"
	SOAK_SECONDS=600 $(BIN)/pytest -q -m soak tests/protocol/test_soak.py

lint: ruff mypy

ruff: .venv/dev
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

mypy: .venv/dev
	@echo "== mypy"
	@$(BIN)/mypy

bench: .venv/dev
	@scripts/bench $(BENCHES)

docs: .venv/dev
	$(BIN)/python -m tools.protocol_page
	$(BIN)/python -m tools.configuration_page
	$(BIN)/python -m tools.anomalies_page
	$(BIN)/python -m tools.alert_rules
	$(BIN)/python -m tools.grafana_dashboard

site: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

man: .venv/docs
	$(BIN)/python -m tools.man_pages build/man
	@echo "the pages are in build/man; read one with: man -l build/man/esper-daemon.1"

# The build of torch: TORCH=cpu or cuda (else by whether an NVIDIA driver is there); TORCH_FROM=FOLDER or INDEX for a
# site with a mirror. scripts/install.py says where torch comes from otherwise.
.venv/trainer: $(INSTALLED)
	@$(HAS_PYTHON)
	@$(PYTHON) scripts/install.py trainer,export,mcp
	@touch $@

# All of .venv/trainer too: pip plans once, and what is compiled is compiled once.
.venv/dev: $(INSTALLED)
	@$(HAS_PYTHON)
	@$(PYTHON) scripts/install.py trainer,text,export,metrics,compare,sweep,lightning,huggingface,keras,sb3,torchrl,serve,dev
	@touch .venv/trainer $@

# Neither torch nor numpy is needed for it.
.venv/docs: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "== installing what builds the site"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf .venv build site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
