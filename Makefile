# `make demo` and `make test` need Python (3.11 or newer), git and make; they set up the rest.
# Another interpreter gets an environment of its own: make test PYTHON=python3.12

PYTHON ?= python3
VENV ?= $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
WORKERS ?= 2
EXTRAS ?= dev
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
# Its presence says that an installation began and did not end.
BEGUN := $(VENV)/.begun

.PHONY: help demo test test-all survive cluster results docs run-docs gpu-plan run-gpu-plan lint format clean

help:
	@echo "make demo    train on the built-in corpus, translate, score, plot (a few minutes)"
	@echo "make test    what a change is likely to break (PYTHON=python3.12 for another Python)"
	@echo "make test-all  the whole suite, which CI runs (ARGS=... for pytest, here and above)"
	@echo "make survive kill runs again and again, and see that nothing is lost (17 minutes)"
	@echo "make cluster run under SLURM and Open MPI on this machine (docs/many_machines.md)"
	@echo "make results  the tables of docs/results.md, from the recorded results"
	@echo "make docs    the documentation as a site in site/, every link checked"
	@echo "make gpu-plan  what the training step costs on an H200, compiled without one (6 minutes)"
	@echo "make lint    ruff and mypy, as CI and pre-commit run them"
	@echo "make format  let ruff rewrite what it can"
	@echo "make clean   remove caches and build leftovers (not runs, not environments)"

# Large pages for the CPU backend: faster training on Linux, no effect elsewhere.
demo: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
demo: $(READY)
	@$(RUN) -m experiments.demo --workdir=runs/demo

test: $(READY)
	@$(RUN) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow" $(ARGS)

test-all: $(READY)
	@$(RUN) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

survive: $(READY)
	@$(RUN) benchmarks/survive.py $(ARGS)

cluster: $(READY)
	@$(RUN) -m benchmarks.cluster $(ARGS)

results: $(READY)
	@$(RUN) -m experiments.results_page

# What builds the site gets an environment of its own too.
docs:
	@$(MAKE) --no-print-directory run-docs VENV=.venv-docs EXTRAS=docs

run-docs: export NO_MKDOCS_2_WARNING = 1
run-docs: $(READY)
	@$(RUN) -m mkdocs build --clean $(ARGS)
	@echo "python3 -m http.server --directory site    # then open http://127.0.0.1:8000"

# Compiles for a GPU that is not there; the compiler's packages get an environment of their own.
gpu-plan:
	@$(MAKE) --no-print-directory run-gpu-plan PYTHON=python3.12 VENV=.venv-gpu-plan EXTRAS=gpu-plan

run-gpu-plan: PLAN ?= gpu_plan
run-gpu-plan: export JAX_PLATFORMS = cpu
run-gpu-plan: export JAX_SKIP_CUDA_CONSTRAINTS_CHECK = 1
run-gpu-plan: $(READY)
	@$(RUN) -m benchmarks.$(PLAN) $(ARGS)

lint: $(READY)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

format: $(READY)
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

clean:
	@rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find configs experiments benchmarks tests transformer_jax -name __pycache__ -type d -prune -exec rm -rf {} +

# Done once, and again when pyproject.toml or constraints.txt changes. pyenv's shims refuse a Python
# that is installed but not selected, so it is asked for that one's version.
$(READY): pyproject.toml constraints.txt
	@if [ -e $(BEGUN) ]; then rm -rf $(VENV); fi
	@if ! $(PYTHON) -c "" 2>/dev/null && command -v pyenv >/dev/null; then \
		export PYENV_VERSION="$$(pyenv whence $(notdir $(PYTHON)) 2>/dev/null | tail -n 1)"; \
	fi; \
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; name one with PYTHON=..." \
		if sys.version_info < (3, 11) else 0)' && $(PYTHON) -m venv $(VENV)
	@touch $(BEGUN)
	@echo "installing into $(VENV) (once; some minutes)" >&2
	@$(RUN) -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@rm $(BEGUN)
	@touch $(READY)
