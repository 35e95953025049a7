"""vLLM back end: many episodes at once, from any number of threads, on one engine (docs/vllm.md)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..config import PolicyConfig
from .base import PolicyError, Sample, Spans, as_ends
from .hf import load_model
from .road import Way
from .stage import shapes
from .vllm_engine import Engine, import_vllm
from .vllm_weights import Layout, Sender, route, weight_file

UNLABELLED = "none"
"""vLLM's name for weights that were given no version."""


class VLLMPolicy:
    """One engine for sampling and scoring. Any of `ends` ends a response; no sequence has more than `tokens`."""

    concurrent = True

    def __init__(self, config: PolicyConfig, ends: int | Sequence[int], tokens: int) -> None:
        import_vllm()  # before anything is loaded
        self.config, self.ends = config, as_ends(ends)
        self.eos = self.ends[0]
        self.layout = Layout(config)
        # one more: scoring a sequence makes vLLM sample a token after it
        self.limit = min((config.engine.max_tokens or tokens) + 1, self.layout.longest)
        self.engine = Engine(config, self.limit)
        self.gpus: list[str | None] = self.engine.rpc("gpu")
        self._sender: Sender | None = None
        self._held: dict[str, torch.Tensor] | None = None  # on the CPU; None: the checkpoint's; {}: not here

    @property
    def vocabulary(self) -> int:
        return self.layout.vocabulary

    def session(self, episodes: int) -> VLLMSession:
        return VLLMSession(self, episodes)

    def score(self, contexts: Sequence[np.ndarray], spans: Spans) -> list[list[np.ndarray]]:
        """See `Policy.score`. vLLM returns the log-prob of each token of the context, never the whole vocabulary.

        Raises `PolicyError` for a span that starts at token 0, which nothing precedes, or ends past its context, for
        contexts past the engine's limit and for token ids that the model lacks.
        """
        from vllm import SamplingParams

        wanted = [i for i, row in enumerate(spans) if any(start < end for start, end in row)]
        prompts = []
        for i in wanted:
            low, high = min(start for start, _ in spans[i]), max(end for _, end in spans[i])
            if low < 1 or high > len(contexts[i]):
                raise PolicyError(f"cannot score tokens {low} to {high} of a context of {len(contexts[i])} tokens")
            prompts.append(self.checked(contexts[i][:high], 1))  # what comes after the last span changes nothing
        params = SamplingParams(prompt_logprobs=0, max_tokens=1, temperature=0.0, **self._plain())
        outputs = self.engine.generate(prompts, [params.clone() for _ in prompts]) if prompts else []
        scored = {i: _prompt_logprobs(output) for i, output in zip(wanted, outputs, strict=True)}
        nothing = np.zeros(0, dtype=np.float32)
        return [[scored[i][start:end] if start < end else nothing for start, end in row] for i, row in enumerate(spans)]

    def checked(self, tokens: Sequence[int] | np.ndarray, more: int) -> list[int]:
        """Token ids that vLLM can take, with room for `more`; raises `PolicyError` where it cannot."""
        ids = [int(token) for token in tokens]
        if not ids:
            raise PolicyError("vLLM cannot continue an empty prompt")
        if len(ids) + more > self.limit:
            raise PolicyError(
                f"{len(ids)} tokens and {more} more do not fit the engine's {self.limit}: lower "
                "prompt.max_prompt_tokens, raise engine.max_tokens, or take a model with more positions"
            )
        if min(ids) < 0 or max(ids) >= self.vocabulary:
            raise PolicyError(f"token id {max(ids)} is outside the model's vocabulary of {self.vocabulary}")
        return ids

    def _plain(self) -> dict[str, Any]:
        from vllm.sampling_params import RequestOutputKind

        return {
            "output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False, "flat_logprobs": True,
            # the renderer's ends (divopd/chat.py) end a response and no others do, as in the other back end
            "ignore_eos": True,
        }  # fmt: skip

    def sampling(self, temperature: float, max_tokens: int, seed: int) -> Any:
        """vLLM's parameters for one response."""
        from vllm import SamplingParams

        return SamplingParams(
            temperature=temperature, max_tokens=max_tokens, seed=seed, logprobs=0, stop_token_ids=list(self.ends),
            **self._plain(),
        )  # fmt: skip

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> None:
        """See `Policy.load_weights` and `Engine.swap`."""
        self.layout.check({name: tuple(tensor.shape) for name, tensor in weights.items()})
        dtype = getattr(torch, self.config.dtype)
        own = {name: weights[name].detach().to(dtype) for name in self.layout.shapes}
        how = route(self.config.engine.transfer, self.gpus, own)
        held = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in own.items()}

        def move() -> str:
            if how == "file":
                with weight_file(held) as path:
                    self.engine.rpc("take_file", path, self.layout.copies)
            else:
                self._sender = self._sender or Sender(how, self.engine, len(self.gpus), self.layout.copies)
                self._sender.send(own)
            return UNLABELLED if version is None else str(version)

        self.engine.swap(move)
        self._held = held

    def receive(self, way: Way, here: str, version: Callable[[], int]) -> None:
        """See `Policy.receive`. They go into the memory of the engine's workers."""
        self.layout.check(shapes(way.layout))

        def move() -> str:
            self.engine.rpc("take_road", pickle.dumps(way), here, self.layout.copies)
            return str(version())

        self._held = {}
        self.engine.swap(move)

    def weights(self) -> dict[str, torch.Tensor]:
        """See `Policy.weights`. On the CPU; `PolicyError` where they came along a road, and are the engine's alone."""
        if self._held is None:
            state = load_model(self.config, "cpu").state_dict()
            self._held = {name: state[name] for name in self.layout.shapes}
        if not self._held:
            raise PolicyError("these weights are in the vLLM engine alone: whoever sent them has them too")
        return dict(self._held)

    def close(self) -> None:
        """End the engine's processes."""
        if self._sender is not None:
            self._sender.close()
        self.engine.close()


class VLLMSession:
    """Episodes as growing lists of token ids. vLLM's prefix cache keeps what was computed, as long as weights last."""

    def __init__(self, policy: VLLMPolicy, episodes: int) -> None:
        self.policy = policy
        self.tokens: list[list[int]] = [[] for _ in range(episodes)]

    def act(
        self,
        rows: Sequence[int],
        new_tokens: Sequence[np.ndarray],
        temperature: float,
        max_tokens: int,
        draws: Sequence[np.random.Generator],
        idle: Sequence[int] = (),
    ) -> list[Sample]:
        """See `Session.act`. One seed a response from the row's own generator: neither batch nor thread changes it.

        Responses repeat as far as vLLM's log-probs do, whose rounding may depend on what else is in the batch.
        """
        policy = self.policy
        prompts, params = [], []
        for row, new, draw in zip(rows, new_tokens, draws, strict=True):
            prompts.append(policy.checked([*self.tokens[row], *new], max_tokens))
            params.append(policy.sampling(temperature, max_tokens, int(draw.integers(1 << 63))))
        samples = [_sample(output, policy.ends) for output in policy.engine.generate(prompts, params)]
        for row, prompt, sample in zip(rows, prompts, samples, strict=True):
            self.tokens[row] = [*prompt, *sample.tokens.tolist()]
        return samples


def _sample(output: Any, ends: Sequence[int]) -> Sample:
    done = output.outputs[0]
    tokens = np.array(done.token_ids, dtype=np.int64)
    logprobs = np.array(done.logprobs.logprobs, dtype=np.float32)
    if len(logprobs) != len(tokens) or list(done.logprobs.token_ids) != tokens.tolist():
        raise PolicyError(f"vLLM returned {len(logprobs)} log-probs for {len(tokens)} tokens")
    version = done.weight_versions[0].version if done.weight_versions else UNLABELLED
    return Sample(tokens, logprobs, int(tokens[-1]) not in ends, int(version) if version.isdecimal() else None)


def _prompt_logprobs(output: Any) -> np.ndarray:
    """float32, one a token of the prompt; NaN for the first."""
    flat, ids = output.prompt_logprobs, output.prompt_token_ids
    if list(flat.token_ids) != list(ids[1:]):
        raise PolicyError(f"vLLM returned {len(flat.token_ids)} prompt log-probs for {len(ids)} tokens")
    return np.array([np.nan, *flat.logprobs], dtype=np.float32)
