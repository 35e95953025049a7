"""One optimizer update: rows -> merged sequences -> token log-probs -> loss -> step -> next version.

Turns of a rollout whose chat only grows are spans of one token sequence. They share its forward pass: a causal model
gives each token the same log-prob as in a row of its own, so that with weights 1 / (N * |V_t|) the gradient is that of
separate rows, to rounding (ours; the paper trains separate rows). The learner never asks which rule it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from divopd.candidates import gate
from divopd.config import LossConfig, TrainConfig
from divopd.losses import load_loss, token_shares
from divopd.objective import weighted_loss
from divopd.types import Turn


class DivergedError(RuntimeError):
    """The loss, its gradient or the weights after the step are not finite."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainSequence:
    """One forward pass's worth of tokens and its m training tokens, each predicted from the token before it."""

    tokens: np.ndarray  # int64 (length,), up to the last token that predicts
    predicts: np.ndarray  # int64 (m,), positions in `tokens` whose next token trains
    targets: np.ndarray  # int64 (m,), those next tokens
    teacher: np.ndarray  # float32 (m,), cached teacher log-probs
    student: np.ndarray  # float32 (m,), log-probs under the generating weights
    shares: np.ndarray  # float32 (m,), 1 / (N * |V_t|)
    weights: np.ndarray  # float32 (m,), of the loss: w_t / (N * |V_t|) but for another reduction


def merge_rows(turns: Sequence[Turn], weights: np.ndarray | None = None, balance: float = 1.0) -> list[TrainSequence]:
    """The batch's rows as sequences. Turns of a rollout merge when they share one `context` array, by identity.

    Dead rows, those that the gate would not pass, train no token but count in N. Row weights (N,), if a rule gave them,
    are scaled to a mean of 1 over the N rows (ours); all ones are no weights, to the bit. `balance`:
    losses.token_shares.
    """
    scaled = np.ones(len(turns)) if weights is None else weights * len(turns) / weights.sum()
    live = [(turn, weight) for turn, weight in zip(turns, scaled, strict=True) if gate(turn) is None]
    places = [turn.start + np.flatnonzero(turn.valid_mask()) for turn, _ in live]
    token_weights = token_shares([len(where) for where in places], len(turns), balance)
    shared: dict[tuple[Any, int], list[tuple[Turn, np.ndarray, float]]] = {}
    for (turn, weight), where, share in zip(live, places, token_weights, strict=True):
        shared.setdefault((turn.rollout, id(turn.context)), []).append((turn, where, float(weight * share)))
    return [_sequence(rows, len(turns)) for rows in shared.values()]


def _sequence(rows: list[tuple[Turn, np.ndarray, float]], n: int) -> TrainSequence:
    """`rows`: each turn, its training positions, and their weight."""
    context = np.asarray(rows[0][0].context, dtype=np.int64)
    where = np.concatenate([positions for _, positions, _ in rows])
    teacher, student, shares, weights = [], [], [], []
    for turn, positions, weight in rows:
        assert turn.teacher_logprobs is not None and turn.student_logprobs is not None  # the gate saw to it
        teacher.append(turn.teacher_logprobs[positions - turn.start])
        student.append(turn.student_logprobs[positions - turn.start])
        shares.append(np.full(len(positions), 1.0 / (n * len(positions))))
        weights.append(np.full(len(positions), weight))
    return TrainSequence(
        tokens=context[: where.max()],
        predicts=where - 1,
        targets=context[where],
        teacher=np.concatenate(teacher).astype(np.float32),
        student=np.concatenate(student).astype(np.float32),
        shares=np.concatenate(shares).astype(np.float32),
        weights=np.concatenate(weights).astype(np.float32),
    )


def micro_batches(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Indices of sequences by falling length, cut so that rows * longest <= limit. One longer than that goes alone.

    A row shorter than 3/4 of its batch's longest starts a new one: padding stays under a quarter of what is computed.
    """
    batches: list[list[int]] = []
    longest = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * longest <= limit and 4 * lengths[i] >= 3 * longest:
            batches[-1].append(i)
        else:
            batches.append([i])
            longest = lengths[i]
    return batches


class TokenLogprobs(nn.Module):
    """Log-probs of chosen tokens under a causal language model: the head sees only the positions that train.

    A module, so that sharding wrappers can wrap the whole computation. Raises ValueError for models that do more
    between body and logits than one linear head.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        for key in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(model.config, key, None) not in (None, 1, 1.0):
                raise ValueError(f"{type(model).__name__} rescales its logits ({key}), which the learner does not do")
        self.model = model

    def forward(self, tokens: Tensor, rows: Tensor, predicts: Tensor, targets: Tensor | None = None) -> Tensor:
        """int64 (b, t) tokens and (m,) indices -> float32 (m,): log pi(targets | tokens[rows, : predicts + 1]).

        Without targets: float32 (m, V), the logits themselves.
        """
        # Right padding under a causal mask: no real token sees it, so no mask is needed and the fast path is taken.
        hidden = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = self.model.get_output_embeddings()(hidden[rows, predicts]).float()
        return logits if targets is None else -F.cross_entropy(logits, targets, reduction="none")


class Reference:
    """The frozen teacher's distribution where the student trains. Token ids from `vocabulary` on are unknown to it."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self.scorer, self.vocabulary = TokenLogprobs(model), vocabulary

    @torch.no_grad()
    def logits(self, tokens: Tensor, rows: Tensor, predicts: Tensor) -> Tensor:
        """As TokenLogprobs: float32 (m, vocabulary). An unknown token is read as token 0, as rollout.score does."""
        return self.scorer(torch.where(tokens < self.vocabulary, tokens, 0), rows, predicts)[:, : self.vocabulary]


class Learner:
    """The student in training: any Hugging Face causal language model, AdamW, one step a batch.

    Weights must be float32 (ValueError): at the paper's learning rate bfloat16 weights would round their updates away.
    `bf16` computes in bfloat16 under autocast instead. A `loss` other than the sampled one needs the `teacher`; it
    compares both models on the tokens that both know (ours: the student's distribution over them alone).
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
        self.scorer = TokenLogprobs(model)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if any(p.dtype != torch.float32 for p in self.parameters):
            raise ValueError("the student's weights must be float32: load them as float32, train with bf16=True")
        self.device = self.parameters[0].device
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
        # Log-probs are the policy's own: no dropout. Gradient checkpointing asks for training mode.
        self.model.train(bool(getattr(self.model, "is_gradient_checkpointing", False)))
        self.optimizer.zero_grad(set_to_none=True)
        sums = {"loss": 0.0, "value": 0.0, "kl": 0.0, "drift": 0.0, "computed_tokens": 0}
        for batch in micro_batches([len(s.tokens) for s in sequences], self.config.micro_batch_tokens):
            for key, value in self._backward([sequences[i] for i in batch]).items():
                sums[key] += value
        grad_norm = self._step(sums["loss"], version)
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

    def _backward(self, batch: Sequence[TrainSequence]) -> dict[str, float]:
        """Add one micro-batch's gradient; returns its part of the sums."""
        tokens = np.zeros((len(batch), max(len(s.tokens) for s in batch)), dtype=np.int64)
        for row, sequence in enumerate(batch):
            tokens[row, : len(sequence.tokens)] = sequence.tokens
        rows = np.repeat(np.arange(len(batch)), [len(s.targets) for s in batch])
        teacher, student, shares, weights = (
            self._tensor(np.concatenate([getattr(s, key) for s in batch]))
            for key in ("teacher", "student", "shares", "weights")
        )
        predicts, targets = (np.concatenate([getattr(s, key) for s in batch]) for key in ("predicts", "targets"))
        where = [self._tensor(x) for x in (tokens, rows, predicts, targets)]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss, old = self._loss(where, teacher, weights)
        loss.backward()
        return {
            "loss": float(loss.detach()),
            "value": float(weighted_loss(old, old, teacher, shares, self.config.beta)),
            "kl": float((old - teacher).sum()),
            "drift": float((old - student).abs().sum()),
            "computed_tokens": tokens.size,
        }

    def _loss(self, where: Sequence[Tensor], teacher: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted loss of (m,) tokens, and their log-probs before the step. `where`: TokenLogprobs.forward's."""
        if self.divergence is None:
            logprobs = self.scorer(*where)
            old = logprobs.detach()
            return weighted_loss(logprobs, old, teacher, weights, self.config.beta), old
        assert self.teacher is not None
        logits = self.scorer(*where[:3])
        theirs = self.teacher.logits(*where[:3])
        known = min(logits.shape[-1], theirs.shape[-1])
        losses = self.divergence(logits[:, :known], theirs[:, :known])
        return self.config.beta * (weights * losses).sum(), -F.cross_entropy(
            logits.detach(), where[3], reduction="none"
        )

    def _step(self, loss: float, version: int) -> float:
        """Clip and step; returns the gradient norm before clipping."""
        if all(p.grad is None for p in self.parameters):  # only dead rows: still a step of AdamW, its gradient 0
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter)
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip))
        if not np.isfinite(loss) or not np.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise DivergedError(f"update {version}: loss {loss:g}, gradient norm {norm:g}; the step was not taken")
        self.optimizer.step()
        if not all(bool(parameter.isfinite().all()) for parameter in self.parameters):
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
