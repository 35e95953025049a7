#!/bin/sh
# Parity and speed on one GPU in under ten minutes, with untrained models of the real shapes: nothing is downloaded.
#   scripts/gpu_check.sh [--out rates.yaml] [--tiny] [--steps rollout,teacher,learner,cell]
# Needs 20 GB below $TMPDIR for the weights, which it removes, and vLLM (docs/vllm.md) for all but the learner's numbers.
# Writes rates.yaml, for `divopd plan experiments/paper.yaml --rates rates.yaml`. --tiny: seconds on a CPU, tiny shapes.
# Exit code 1 where a step failed or a parity gap is too large; what was measured is written all the same.
set -eu
here=$(dirname "$0")/..
python=${PYTHON:-$here/.venv/bin/python}
[ -x "$python" ] || python=python3
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_NO_USAGE_STATS=1 PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$here/scripts/gpu_check.py" "$@"
