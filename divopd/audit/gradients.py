"""Per-turn gradients of the row loss at one checkpoint, whole or sketched.

g_t is the gradient of l_t (METHOD: arXiv 2609.34838, section 2) with respect to all trained parameters, in the order of
`Learner.parameters`. A dead row's is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from divopd.candidates import gate
from divopd.config import LossConfig
from divopd.learner import DivergedError, Learner, named
from divopd.logprobs import Reference
from divopd.packing import MicroBatch, TrainSequence, merge_rows
from divopd.seeds import seed as named_seed
from divopd.types import Turn

EXACT_FLOATS = 600_000_000  # rows x parameters that are kept whole: 2.4 GB
SKETCH_DIM = 8192  # numbers of the sketch beyond that: inner products to 1.6 % of |x| |y|
CHUNK = 1 << 22  # coordinates hashed at once


@dataclass(frozen=True, slots=True)
class CountSketch:
    """A random projection to `dim` numbers: each coordinate is added to a random one of them with a random sign.

    Over seeds E<Sx, Sy> = <x, y> and Var<Sx, Sy> <= (|x|^2 |y|^2 + <x, y>^2) / dim (Charikar et al. 2002). The hash is
    drawn anew for every tensor rather than kept, so that no array of the model's size is ever held.
    """

    dim: int
    seed: int = 0

    def add(self, out: Tensor, name: int, values: Tensor) -> None:
        """Add the sketch of one tensor to `out` (dim,). `name` tells the tensors of one vector apart."""
        for part, chunk in enumerate(values.detach().float().reshape(-1).split(CHUNK)):
            generator = torch.Generator(chunk.device).manual_seed(named_seed("sketch", self.seed, name, part))
            draw = torch.randint(2 * self.dim, chunk.shape, generator=generator, device=chunk.device)
            out.index_add_(0, draw >> 1, chunk * (1 - 2 * (draw & 1)))


@dataclass(frozen=True, slots=True, eq=False)
class RowGradients:
    """What one pass over a pool's turns at a checkpoint leaves."""

    features: np.ndarray  # float32 (n, parameters), or (n, dim) of a sketch
    disagreement: np.ndarray  # float64 (n,): s(u) under the checkpoint's weights; NaN for dead rows
    parameters: int
    sketched: bool

    def gram(self, other: RowGradients | None = None) -> np.ndarray:
        """float64 (n, n) inner products of the rows' gradients, with each other or with those of another loss.

        Unbiased estimates of them where sketched, by the same sketch.
        """
        n, width = self.features.shape
        out = np.zeros((n, n))
        for begin in range(0, width, CHUNK // 8):
            part = slice(begin, begin + CHUNK // 8)
            block = self.features[:, part].astype(np.float64)
            out += block @ (block if other is None else other.features[:, part].astype(np.float64)).T
        return out


def row_gradients(
    learner: Learner,
    turns: Sequence[Turn],
    sketch: CountSketch | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, words: None,
) -> RowGradients:
    """Gradient of each turn's row loss at the learner's present weights, one backward pass a live row.

    Each parameter's gradient is taken and freed as soon as it is there: with a `sketch` no more than one tensor is held
    beside what the backward pass itself needs. Leaves the weights and the optimizer alone. Raises DivergedError for the
    first row whose gradient is not finite.
    """
    count = sum(p.numel() for p in learner.parameters)
    width = sketch.dim if sketch else count
    features = torch.zeros((len(turns), width))
    scores = np.full(len(turns), np.nan)
    row = torch.zeros(width, device=learner.device)
    starts = np.cumsum([0, *(p.numel() for p in learner.parameters)]).tolist()

    def take(place: int, parameter: Tensor) -> None:
        assert parameter.grad is not None
        if sketch:
            sketch.add(row, place, parameter.grad)
        else:
            row[starts[place] : starts[place + 1]] = parameter.grad.reshape(-1)
        parameter.grad = None

    learner.optimizer.zero_grad(set_to_none=True)
    learner.model.eval()
    hooks = [p.register_post_accumulate_grad_hook(partial(take, i)) for i, p in enumerate(learner.parameters)]
    try:
        for i, turn in enumerate(turns):
            if gate(turn) is None:
                row.zero_()
                scores[i] = _backward(learner, merge_rows([turn])[0])
                if not (bool(row.isfinite().all()) and np.isfinite(scores[i])):
                    raise DivergedError(f"{named(turns, i)}: its gradient is not finite under the audited weights")
                features[i] = row.cpu()
            progress(i + 1, len(turns), "")
    finally:
        for hook in hooks:
            hook.remove()
    return RowGradients(features.numpy(), scores, count, sketch is not None)


def exact(learner: Learner, teacher: Reference) -> Learner:
    """The same weights with the loss whose one-sample estimate the paper's is: reverse KL over the vocabulary.

    At the weights that sampled a token, the mean of the sampled loss's gradient over what might have been sampled there
    is this one's.
    """
    loss = LossConfig(name="reverse_kl")
    return Learner(learner.model, learner.config, bf16=learner.autocast, loss=loss, teacher=teacher)


def _backward(learner: Learner, sequence: TrainSequence) -> float:
    """Backward of one row's loss; its summed student - teacher log-prob under the present weights (nats)."""
    batch = MicroBatch.of([sequence], False)
    teacher, weights = (torch.as_tensor(x, device=learner.device) for x in (batch.teacher, batch.weights))
    with torch.autocast(learner.device.type, torch.bfloat16, enabled=learner.autocast):
        loss, old, _ = learner._loss(batch, teacher, weights)
    loss.backward()
    return float((old - teacher).double().sum())
