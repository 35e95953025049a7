"""One optimizer update: rows -> merged sequences -> token log-probs -> loss -> step -> next version.

The learner never asks which rule it serves. One process is all that a small model needs; divopd/sharded.py divides the
same update over several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divopd.candidates import gate
from divopd.config import LossConfig, TrainConfig
from divopd.logprobs import Reference, TokenLogprobs, picked
from divopd.losses import load_loss
from divopd.objective import weighted_loss
from divopd.packing import MicroBatch, TrainSequence, merge_rows, micro_batches, packed_batches
from divopd.policies.base import Spans
from divopd.types import Turn
from divopd.varlen import pack_attention

__all__ = [
    "DivergedError", "Learner", "MicroBatch", "Reference", "TokenLogprobs", "TrainSequence", "merge_rows",
    "micro_batches",
]  # fmt: skip


class DivergedError(RuntimeError):
    """The loss, its gradient or the weights after the step are not finite."""


def named(turns: Sequence[Turn], row: int) -> str:
    """A row of a batch in words."""
    return f"row {row}: rollout {'/'.join(map(str, turns[row].rollout))}, turn {turns[row].index}"


class Learner:
    """The student in training: any Hugging Face causal language model, AdamW, one step a batch.

    Weights must be float32 (ValueError): at the paper's learning rate bfloat16 weights would round their updates away.
    `bf16` computes in bfloat16 under autocast instead. A `loss` other than the sampled one needs the `teacher`; it
    compares both models on the tokens that both know (ours: the student's distribution over them alone). With
    `train.packed` both models' attention is switched to one that keeps packed sequences apart (varlen.py).
    """

    def __init__(
        self, model: Any, config: TrainConfig, *, bf16: bool = False, loss: LossConfig | None = None,
        teacher: Reference | None = None,
    ) -> None:  # fmt: skip
        self.model, self.config, self.bf16, self.version = model, config, bf16, 0
        self.loss, self.teacher = loss or LossConfig(), teacher
        self.divergence = load_loss(self.loss.name, self.loss.params)
        if self.divergence is not None and teacher is None:
            raise ValueError(f"loss {self.loss.name} compares distributions: the learner needs the teacher")
        if any(p.dtype != torch.float32 for p in model.parameters() if p.requires_grad):
            raise ValueError("the student's weights must be float32: load them as float32, train with bf16=True")
        if config.packed:
            for each in (model, *([teacher.scorer.model] if self.divergence is not None and teacher else [])):
                pack_attention(each)
        if config.activation_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.scorer = self._shard(TokenLogprobs(model, config.logit_chunk))
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.autocast = bf16  # sharded weights are cast when they are gathered instead
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )

    def update(
        self, turns: Sequence[Turn], version: int | None = None, weights: np.ndarray | None = None
    ) -> dict[str, float]:
        """One step on this batch, from `version` (default: one after the last) to `version` + 1.

        `weights` (N,): >= 0, finite, not all 0; the loss is (1 / N) * sum of w_t * l_t with w scaled to a mean of 1.

        Student log-probs are recomputed in the pass that trains (r = 1). Raises ValueError for an empty batch and
        DivergedError where a loss or gradient, before the step, or a weight, after it, is not finite.

        Returns: `loss`, the method's own; `objective`, the paper's reported value, in which rows count alike;
        `kl_per_token`, mean student - teacher log-prob (nats) under the weights before the step; `drift`, mean
        |recomputed - cached| student log-prob; `grad_norm` before clipping; `rows`, `live_rows`, `sequences`;
        `row_tokens` (prompt + response of the rows), `response_tokens`, `valid_tokens`, and `computed_tokens`, what the
        student's forward passes held, padding included.
        """
        if not turns:
            raise ValueError("an update needs at least one turn")
        version = self.version if version is None else version
        sequences = merge_rows(turns, weights, self.loss.balance(version, self.config.updates))
        self._mode()
        self.optimizer.zero_grad(set_to_none=True)
        sums = {"loss": 0.0, "value": 0.0, "kl": 0.0, "drift": 0.0, "computed_tokens": 0}
        wrong: list[int] = []
        for batch in self._rounds([len(s.tokens) for s in sequences]):
            part, found = self._backward([sequences[i] for i in batch])
            wrong += found
            for key, value in part.items():
                sums[key] += value
        sums = self._total(sums)  # of all ranks: they stop together, and the one that has the row names it
        grad_norm = self._step(sums["loss"], version, named(turns, min(wrong)) if wrong else "")
        self.version = version + 1
        live = sum(gate(turn) is None for turn in turns)
        tokens = sum(len(s.targets) for s in sequences)
        return {
            "loss": sums["loss"],
            "objective": sums["value"] * len(turns) / live if live else float("nan"),
            "kl_per_token": sums["kl"] / tokens if tokens else float("nan"),
            "drift": sums["drift"] / tokens if tokens else float("nan"),
            "grad_norm": grad_norm,
            "rows": len(turns),
            "live_rows": live,
            "sequences": len(sequences),
            "row_tokens": sum(turn.row_tokens for turn in turns),
            "response_tokens": sum(turn.response_tokens for turn in turns),
            "valid_tokens": tokens,
            "computed_tokens": int(sums["computed_tokens"]),
        }

    @torch.no_grad()
    def score(self, contexts: Sequence[np.ndarray], spans: Spans) -> list[list[np.ndarray]]:
        """See `Policy.score`: log-probs under the weights of now, by the code that trains. Every rank gets all."""
        self._mode()
        out = []
        for context, row in zip(contexts, spans, strict=True):
            at = np.concatenate([np.arange(start, end) for start, end in row])
            tokens, rows, predicts, targets = map(self._tensor, (context[None], np.zeros_like(at), at - 1, context[at]))
            lengths = (len(context),) if self.config.packed else None
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                logprobs = self.scorer(tokens, rows, predicts, targets, lengths).float().cpu().numpy()
            out.append(np.split(logprobs, np.cumsum([end - start for start, end in row])[:-1]))
        return out

    def _mode(self) -> None:
        """Log-probs are the policy's own: no dropout. Layers whose activations are not kept ask for training mode."""
        self.model.eval()
        if getattr(self.model, "is_gradient_checkpointing", False):
            for module in self.model.modules():
                if getattr(module, "gradient_checkpointing", False):
                    module.training = True  # the layer's alone: what it is made of stays in evaluation mode

    def _backward(self, sequences: Sequence[TrainSequence]) -> tuple[dict[str, float], list[int]]:
        """Add one micro-batch's gradient; returns its part of the sums, and rows whose loss is not finite."""
        batch = MicroBatch.of(sequences, self.config.packed)
        teacher, student, shares, weights = map(
            self._tensor, (batch.teacher, batch.student, batch.shares, batch.weights)
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            loss, old, each = self._loss(batch, teacher, weights)
        loss.backward()
        value = float(loss.detach())
        wrong = [] if np.isfinite(value) else np.flatnonzero((~each.isfinite()).cpu().numpy()).tolist()
        sums = {
            "loss": value,
            "value": float(weighted_loss(old, old, teacher, shares, self.config.beta)),
            "kl": float((old - teacher).sum()),
            "drift": float((old - student).abs().sum()),
            "computed_tokens": batch.tokens.size,
        }
        return sums, [int(np.concatenate([s.turns for s in sequences])[token]) for token in wrong]

    def _loss(self, batch: MicroBatch, teacher: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted loss of a micro-batch's m tokens; their log-probs before the step, and what each token costs."""
        tokens, rows, predicts, targets = map(self._tensor, (batch.tokens, batch.rows, batch.predicts, batch.targets))
        if self.divergence is None:
            logprobs = self.scorer(tokens, rows, predicts, targets, batch.lengths)
            old = logprobs.detach()
            return weighted_loss(logprobs, old, teacher, weights, self.config.beta), old, old - teacher
        assert self.teacher is not None
        theirs = self.teacher.hidden(tokens, rows, predicts, batch.lengths)
        losses, old = self.scorer(tokens, rows, predicts, targets, batch.lengths, self._compare, (theirs,))
        return self.config.beta * (weights * losses).sum(), old, losses.detach()

    def _compare(self, logits: Tensor, targets: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
        """(c,) divergences from the teacher, and (c,) log-probs of the targets without a gradient."""
        assert self.teacher is not None and self.divergence is not None
        other = self.teacher.logits(theirs)
        known = min(logits.shape[-1], other.shape[-1])
        return self.divergence(logits[:, :known], other[:, :known]), picked(logits.detach(), targets)

    # what several ranks do otherwise (divopd/sharded.py) --------------------------------------------------------------

    def _shard(self, scorer: TokenLogprobs) -> TokenLogprobs:
        return scorer

    def _rounds(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of the sequences of each micro-batch that this process computes."""
        make = packed_batches if self.config.packed else micro_batches
        return make(lengths, self.config.micro_batch_tokens)

    def _total(self, sums: dict[str, float]) -> dict[str, float]:
        return sums

    def _clip(self) -> float:
        """Clip the gradient by its norm over all weights; the norm before."""
        return float(nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip))

    def _finite(self) -> bool:
        return all(bool(parameter.isfinite().all()) for parameter in self.parameters)

    # -----------------------------------------------------------------------------------------------------------------

    def _step(self, loss: float, version: int, wrong: str = "") -> float:
        """Clip and step; returns the gradient norm before clipping. `wrong`: the row whose loss is not finite."""
        if all(p.grad is None for p in self.parameters):  # only dead rows: still a step of AdamW, its gradient 0
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter)
        norm = self._clip()
        if not np.isfinite(loss) or not np.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            value = f"loss {loss:g}" + (f" ({wrong})" if wrong else "")
            raise DivergedError(f"update {version}: {value}, gradient norm {norm:g}; the step was not taken")
        self.optimizer.step()
        if not self._finite():
            raise DivergedError(f"update {version}: weights are not finite after the step; lower train.learning_rate")
        return norm

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and version, by reference: save it, or copy it, before the next update."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly where `state_dict` was taken."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]
