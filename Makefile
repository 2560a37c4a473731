# make run    sets everything up and opens the app
# make test   sets everything up and runs all tests
PYTHON ?= python3
# A CPU build is enough for the embedded model; on a GPU machine: make setup TORCH='torch'
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Two torch processes on a small machine thrash each other while OpenMP threads spin.
export OMP_WAIT_POLICY ?= passive

.PHONY: setup run test check bench clean

$(STAMP): pyproject.toml Makefile
	@echo "[1/3] creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] installing packages (about two minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -c "import torch" 
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]' 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/hermes-tui --version
	@touch $(STAMP)

setup: $(STAMP)
	@echo "[3/3] the embedded model"
	@$(BIN)/hermes-tui setup

run: setup
	@$(BIN)/hermes-tui

test: setup
	@$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@for name in engine agent_service learning; do $(BIN)/python benchmarks/$$name.py || exit 1; done

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
