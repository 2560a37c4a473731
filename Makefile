# make run    sets everything up and opens the app
# make test   sets everything up and runs all tests
PYTHON ?= python3
# The build that the tests were run with; on another machine, say: make setup TORCH='torch>=2.6'
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
STAMP := $(VENV)/.installed
CLIENTS := .venv-clients

# Two torch processes on a small machine thrash each other while OpenMP threads spin.
export OMP_WAIT_POLICY ?= passive

.PHONY: setup run test test-vllm clients check bench faults clean

$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "Python 3.11, 3.12 or 3.13 is needed; name one: make PYTHON=python3.12"; exit 1; }
	@echo "[1/3] creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "the venv module does not work; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "[2/3] installing packages (some minutes the first time)"
	@$(PIP) install '$(TORCH)'
	@$(PIP) install --editable '.[all,dev]'
	@touch $(STAMP)

setup: $(STAMP)
	@echo "[3/3] preparing the model"
	@$(BIN)/hermes-tui setup

run: setup
	@$(BIN)/hermes-tui

test: setup clients
	@$(BIN)/python -m pytest

# The newest clients, beside ours: what they need must not meet what the agent pins.
clients: $(CLIENTS)/.installed

$(CLIENTS)/.installed: tests/clients/requirements.txt Makefile
	@echo "installing the newest clients into $(CLIENTS)"
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@$(CLIENTS)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps 'instructor>=1.17'
	@touch $@

# On a CPU: installs vLLM (4 GB), and starts one twice; minutes.
test-vllm: setup
	@$(BIN)/hermes-tui engine install vllm
	@HERMES_TUI_TEST_VLLM_PYTHON="$$($(BIN)/hermes-tui engine python)" \
		$(BIN)/python -m pytest -m vllm

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@for name in engine agent_service learning 'proof --short' bookkeeping gateway screen; do set -- $$name; script=$$1; shift; $(BIN)/python benchmarks/$$script.py "$$@" || exit 1; done

# Ten minutes: make soak SECONDS=60 is a short one
SECONDS ?= 600
.PHONY: soak
soak: setup
	@$(BIN)/python benchmarks/soak.py --seconds $(SECONDS)

# Goes on where it was interrupted; benchmarks/results/faults/ keeps what each cell found.
faults: setup
	-@$(BIN)/python -m pytest tests/faults/matrix --all-cells
	@$(BIN)/python tests/faults/matrix/fault_results.py

# Many more generated requests, frames and files than `make test` tries.
fuzz: setup
	HERMES_FUZZ_EXAMPLES=$(or $(EXAMPLES),200) $(BIN)/python -m pytest -s tests/fuzz

clean:
	rm -rf $(VENV) $(CLIENTS) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
