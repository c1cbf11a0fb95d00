# `make run` starts the fleet; `make test` installs what the tests need and runs them.
BIN := .venv/bin
DEV_STAMP := .venv/.installed-dev

.PHONY: run install dev test test-fast chaos lint clean

# The shell becomes the fleet (exec), and the fleet ends with make, however make ends.
run:
	@exec ./run --tied-to $$PPID

install:
	@./run --install-only

dev: install
	@wanted="$$(cat pyproject.toml requirements/*.txt | cksum)"; \
	if [ "$$(cat $(DEV_STAMP) 2>/dev/null)" != "$$wanted" ]; then \
	    echo "voxfleet: installing what the tests need" >&2; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	        -c requirements/constraints.txt -r requirements/dev.txt && \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	        -r requirements/voxcpm.txt && \
	    printf '%s' "$$wanted" > $(DEV_STAMP); \
	fi

test: dev
	@exec $(BIN)/python -m pytest

test-fast: dev
	@exec $(BIN)/python -m pytest -m "not slow"

# A storm of faults over a whole fleet, some ten minutes: `make chaos OPTIONS="--seed 7 --jobs 300"`.
chaos: dev
	@exec $(BIN)/python -m tests.faults.chaos $(OPTIONS)

lint: dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The fleet's data in .voxfleet stays.
clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
