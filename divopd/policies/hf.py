"""Transformers back end, on CPU or GPU: any causal language model that transformers can load."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config import PolicyConfig
from .base import PolicyError, Sample, Spans, as_ends
from .lean import LeanDecoder, fits
from .road import End, Way, gpu_of


def require_folder(config: PolicyConfig) -> None:
    """Raise `PolicyError` where a path that can only be a folder is not there."""
    path = Path(config.path)
    if not path.exists() and (path.is_absolute() or config.path.startswith(("models/", "./"))):
        raise PolicyError(f"checkpoint {config.path} is missing: run `make models` or name an existing one")


def load_model(config: PolicyConfig, device: str | None = None) -> Any:
    """The checkpoint's model in evaluation mode, on `device`, or else on the GPU when there is one.

    Raises `PolicyError` when the folder is missing or holds no model.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    require_folder(config)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            config.path, revision=config.revision, dtype=getattr(torch, config.dtype), attn_implementation="sdpa"
        )
    except SafetensorError as error:
        raise PolicyError(
            f"checkpoint {config.path} is cut short or damaged ({error}): restore it from git or fetch it again"
        ) from error
    except (OSError, ValueError) as error:
        raise PolicyError(f"checkpoint {config.path} cannot be loaded: {str(error).splitlines()[0]}") from error
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()


def load_tokenizer(config: PolicyConfig) -> Any:
    """The checkpoint's tokenizer; raises `PolicyError` when it has none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(config.path, revision=config.revision)
    except Exception as error:  # a malformed file raises whatever its reader does
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise PolicyError(f"tokenizer of {config.path} cannot be loaded: {why}") from error


def declared_ends(config: PolicyConfig) -> tuple[int, ...]:
    """Ids with which the checkpoint says that a response ends: of generation_config.json, else of config.json.

    Empty where neither is there or says so. Raises `PolicyError` for a file that is no JSON.
    """
    from transformers.utils import cached_file

    for name in ("generation_config.json", "config.json"):
        try:
            file = cached_file(config.path, name, revision=config.revision)
            said = json.loads(Path(file).read_text(encoding="utf-8")).get("eos_token_id") if file else None
        except OSError:  # no such file
            continue
        except (ValueError, AttributeError) as error:
            raise PolicyError(f"{name} of {config.path} is not a JSON object: restore it or fetch it again") from error
        if said is not None:
            return tuple(index for index in (said if isinstance(said, list) else [said]) if isinstance(index, int))
    return ()


def tied_weights(model: Any) -> set[str]:
    """Names in the model's state that are the input embedding under another name; checkpoints leave them out."""
    tied = model.config.tie_word_embeddings
    return {"lm_head.weight"} & model.state_dict().keys() if tied else set()


class HFPolicy:
    """One model for sampling and scoring. Any of `ends` ends a response; the first fills what no real token sees."""

    concurrent = False

    def __init__(self, model: Any, ends: int | Sequence[int], score_batch_tokens: int = 16_384) -> None:
        self.model = model
        self.ends = as_ends(ends)
        self.eos = self.ends[0]
        self.score_batch_tokens = score_batch_tokens
        self.device = next(model.parameters()).device
        self.version: int | None = None
        self.gpus = [gpu_of(self.device)]
        self.end = End()

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().num_embeddings)

    def session(self, episodes: int) -> HFSession:
        return HFSession(self, episodes)

    def weights(self) -> dict[str, torch.Tensor]:
        """See `Policy.weights`. By reference: the next `load_weights` changes them."""
        tied = tied_weights(self.model)
        return {name: tensor for name, tensor in self.model.state_dict().items() if name not in tied}

    def close(self) -> None:
        """Nothing runs behind it."""

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> None:
        """Copy weights in place, whatever their type; tied embeddings stay tied. Raises `PolicyError` for a misfit."""
        try:
            result = self.model.load_state_dict(weights, strict=False)
        except RuntimeError as error:  # shapes differ
            raise PolicyError(f"weights do not fit the model: {' '.join(str(error).split())}") from error
        missing = [name for name in result.missing_keys if name not in tied_weights(self.model)]
        wrong = [f"lacks {name}" for name in missing] + [f"has {name}" for name in result.unexpected_keys]
        if wrong:
            raise PolicyError(f"weights do not fit the model: the checkpoint {', '.join(wrong[:3])}")
        self.version = version

    def receive(self, way: Way, here: str, version: Callable[[], int]) -> None:
        """See `Policy.receive`. Held beside the old ones until all have come."""
        self.end.load(way, 1, here, self.device, lambda tensors: self.load_weights(dict(tensors)))
        self.version = version()

    @torch.no_grad()
    def score(self, contexts: Sequence[np.ndarray], spans: Spans) -> list[list[np.ndarray]]:
        out: list[list[np.ndarray]] = [[] for _ in contexts]
        order = sorted(range(len(contexts)), key=lambda i: len(contexts[i]))
        while order:
            longest = max(1, len(contexts[order[-1]]))
            take = max(1, self.score_batch_tokens // longest)
            batch, order = order[-take:], order[:-take]
            scored = self._score_batch([contexts[i] for i in batch], [spans[i] for i in batch])
            for i, logprobs in zip(batch, scored, strict=True):
                out[i] = logprobs
        return out

    def _score_batch(self, contexts: Sequence[np.ndarray], spans: Spans) -> list[list[np.ndarray]]:
        """float32 log-probs of each context's spans. The head sees only the positions that are asked for."""
        ids = np.full((len(contexts), max(len(c) for c in contexts)), self.eos, dtype=np.int64)
        for i, context in enumerate(contexts):
            ids[i, : len(context)] = context
        wanted = [(i, position) for i, row in enumerate(spans) for start, end in row for position in range(start, end)]
        tokens = torch.from_numpy(ids).to(self.device)
        rows, positions = torch.tensor(wanted, dtype=torch.long, device=self.device).reshape(-1, 2).T
        # Right padding with a causal mask: the real tokens never see the padding, so no mask is needed.
        hidden = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = self.model.get_output_embeddings()(hidden[rows, positions - 1]).float()
        picked = logits.gather(-1, tokens[rows, positions][:, None])[:, 0] - logits.logsumexp(-1)
        ends = np.cumsum([end - start for row in spans for start, end in row])
        parts = iter(np.split(picked.cpu().numpy(), ends[:-1]))
        return [[next(parts) for _ in row] for row in spans]


class HFSession:
    """Appends turns to a key/value cache; nothing is prefilled twice.

    Episodes append different numbers of tokens, so every append is padded on the right and the padding is masked for
    good: the cache has holes that no query sees, and positions count real tokens only.
    """

    def __init__(self, policy: HFPolicy, episodes: int) -> None:
        from .kvcache import make_cache

        self.policy = policy
        self.lean = LeanDecoder(policy.model) if fits(policy.model) else None
        self.cache: Any = self.lean.cache() if self.lean else make_cache()
        self.rows = list(range(episodes))
        self.mask = torch.zeros((episodes, 0), dtype=torch.long, device=policy.device)
        self.lengths = np.zeros(episodes, dtype=np.int64)  # real tokens in the cache, by row of the cache
        self.carried: list[list[int]] = [[] for _ in range(episodes)]  # sampled, not yet in the cache

    def _keep(self, rows: Sequence[int]) -> None:
        """Forget the episodes that are over."""
        where = {row: i for i, row in enumerate(self.rows)}
        keep = [where[row] for row in rows]
        if keep == list(range(len(self.rows))):
            return
        index = torch.tensor(keep, device=self.policy.device)
        if self.mask.shape[1]:
            self.cache.batch_select_indices(index)
        self.mask = self.mask[index]
        self.lengths = self.lengths[keep]
        self.carried = [self.carried[i] for i in keep]
        self.rows = list(rows)

    def _extend(self, chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        """Put one chunk a row into the cache; float32 logits after each row's last real token, (rows, vocabulary)."""
        counts = np.array([len(chunk) for chunk in chunks])
        width = int(counts.max())
        ids = np.full((len(chunks), width), self.policy.eos, dtype=np.int64)
        for i, chunk in enumerate(chunks):
            ids[i, : len(chunk)] = chunk
        real = np.arange(width)[None, :] < counts[:, None]
        positions = self.lengths[:, None] + np.minimum(np.arange(width)[None, :], np.maximum(counts[:, None] - 1, 0))
        device = self.policy.device
        self.mask = torch.cat([self.mask, torch.from_numpy(real.astype(np.int64)).to(device)], dim=1)
        mask, bare = self.mask, self.lengths + counts == 0
        if bare.any():  # no token yet: attention over nothing would be NaN, and stay in the cache
            mask = self.mask.clone()
            mask[torch.from_numpy(bare).to(device), -width:] = 1
        self.lengths = self.lengths + counts
        last = torch.from_numpy(np.maximum(counts - 1, 0)).to(device)
        tokens, where = torch.from_numpy(ids).to(device), torch.from_numpy(positions).to(device)
        if self.lean:
            return self.lean.extend(self.cache, tokens, mask, where, last)
        hidden = self.policy.model.base_model(
            input_ids=tokens, attention_mask=mask, position_ids=where, past_key_values=self.cache, use_cache=True
        ).last_hidden_state
        picked = hidden[torch.arange(len(chunks), device=device), last]
        return self.policy.model.get_output_embeddings()(picked).float()

    @torch.no_grad()
    def act(
        self,
        rows: Sequence[int],
        new_tokens: Sequence[np.ndarray],
        temperature: float,
        max_tokens: int,
        draws: Sequence[np.random.Generator],
        idle: Sequence[int] = (),
    ) -> list[Sample]:
        """See `Session.act`. One uniform number a token from the row's own generator: batching changes no draw."""
        self._keep(sorted([*rows, *idle]) if idle else rows)
        n = len(self.rows)
        place = [self.rows.index(row) for row in rows] if idle else list(range(n))  # in the cache
        chunks: list[list[int]] = [[] for _ in range(n)]
        for row, new in zip(place, new_tokens, strict=True):
            chunks[row] = self.carried[row] + list(new)
        acts = dict(zip(place, draws, strict=True))
        tokens: list[list[int]] = [[] for _ in range(n)]
        logprobs: list[list[float]] = [[] for _ in range(n)]
        live = np.isin(np.arange(n), place)
        for step in range(max_tokens):
            logits = self._extend(chunks)
            uniform = np.array([acts[i].random() if live[i] else 0.0 for i in range(n)])
            chosen, scores = _sample(logits, temperature, uniform)
            for i in np.flatnonzero(live):
                tokens[i].append(int(chosen[i]))
                logprobs[i].append(float(scores[i]))
            live &= ~np.isin(chosen, self.policy.ends)
            if not live.any() or step == max_tokens - 1:
                break
            # A row that has ended appends nothing: its chunk is a hole.
            chunks = [[int(chosen[i])] if live[i] else [] for i in range(n)]
        for row in place:
            self.carried[row] = tokens[row][-1:]
        return [
            Sample(np.array(tokens[i]), np.array(logprobs[i], dtype=np.float32), bool(live[i]), self.policy.version)
            for i in place
        ]


def _sample(logits: torch.Tensor, temperature: float, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse-transform sampling: token ids and their log-probs at temperature 1. Cheaper than multinomial by far."""
    logprobs = torch.log_softmax(logits, dim=-1)
    weights = torch.softmax(logits / temperature, dim=-1) if temperature != 1.0 else logprobs.exp()
    cumulative = weights.double().cumsum(-1)
    target = torch.from_numpy(uniform).to(logits.device)[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).clamp(max=logits.shape[-1] - 1)
    return chosen[:, 0].cpu().numpy(), logprobs.gather(-1, chosen)[:, 0].cpu().numpy()
