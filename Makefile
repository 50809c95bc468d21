# Two commands do it all on a fresh Debian or Ubuntu machine: `make demo` and `make test`. The demo
# installs what it needs, 0.4 GB; `make install` adds PyTorch, peers and tools of tests, 2 GB.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= 2.13.0
WITHIN ?=
SECONDS ?= 60
SEED ?=
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
READY = $(VENV)/.installed
DEMO_READY = $(VENV)/.demo-installed

# Tests start hundreds of processes: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test test-slow test-poor test-jetson fuzz check docs clean

install: $(READY)

$(VENV)/.made:
	@$(PYTHON) scripts/python_ok.py
	@$(PYTHON) -m venv $(VENV)
	@touch $(VENV)/.made

# Packages by their hashes; pip tells each as it comes.
$(DEMO_READY): pyproject.toml constraints/demo.txt | $(VENV)/.made
	@$(PIP) install --require-hashes -r constraints/demo.txt
	@$(PIP) install -q --no-deps -e .
	@touch $(DEMO_READY)

# Torch has no hash: where an index has the CPU's build, its file has another one than elsewhere.
$(READY): pyproject.toml constraints/constraints.txt constraints/dev.txt | $(VENV)/.made
	@echo "installing pinned packages by their hashes ..."
	@$(PIP) install -q --no-deps --require-hashes -r constraints/dev.txt
	@echo "installing torch $(TORCH) (the CPU build where the package index has it) ..."
	@$(PIP) install -q "torch==$(TORCH)+cpu" -c constraints/constraints.txt 2>/dev/null \
	  || $(PIP) install -q "torch==$(TORCH)" -c constraints/constraints.txt
	@$(PIP) install -q --no-deps -e .
	@touch $(DEMO_READY) $(READY)

demo: $(DEMO_READY)
	$(VENV)/bin/smidgen demo

# Three at once also on two cores: tests wait for servers and processes now and then. Each with one
# thread: more would wake each other for tiny matrices. `make test-slow` takes as many as there are.
test: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 3 --dist worksteal -m "not slow and not gpu" --durations 10

# Faults first, last the laws that `make test` tries with a few examples, with a hundred.
# `make test-slow WITHIN=600` starts no test after 600 seconds and names those left.
test-slow: install
	$(VENV)/bin/python -m pytest -n 2 --maxschedchunk 1 -m "(slow or hypothesis) and not gpu" \
	  --hypothesis-profile thorough $(if $(WITHIN),--start-within $(WITHIN))

# Bodies for every decoder of bytes from outside; `make fuzz SECONDS=3600`, `make fuzz SEED=7`.
fuzz: install
	$(VENV)/bin/python -m tests.fuzz run --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# Where instruction sets are older: docs/processors.md.
test-poor: install
	scripts/test_poor

# JetPack 4's wheels on an emulated board, as root; needs debootstrap and qemu-user-static.
test-jetson: install
	SMIDGEN_EMULATE=1 timeout 1800 $(VENV)/bin/python -m pytest -n 0 -s \
	  tests/jetson/test_emulated_board.py

check: install
	scripts/check

# The site in site/, of docs/ and what scripts/site_pages.py makes; a broken link is an error.
docs: install
	$(VENV)/bin/python -m mkdocs build --strict
	@echo "site/index.html"

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
