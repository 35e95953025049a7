"""The learner over real ranks (gloo) against one process: gradients, weights, resume with other worlds, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ranks
from divopd.files import RunLogError
from divopd.learner import Learner
from divopd.packing import divide, packed_batches
from divopd.sharded import ShardedLearner
from test_learner import BATCH, rollout

pytestmark = pytest.mark.slow
LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {"micro_batch_tokens": 60},  # several micro-batches, not equally many on each rank
    "everything": {
        "packed": True, "micro_batch_tokens": 90, "logit_chunk": 3, "activation_checkpointing": True, "tied": True,
    },
    "divergence": {"packed": True, "logit_chunk": 3, "loss": "jsd"},
}  # fmt: skip


def layouts(rank: int) -> dict[str, Any]:
    traces = {name: ranks.trace(ranks.make(ShardedLearner, **change)) for name, change in LAYOUTS.items()}
    half = ranks.make(ShardedLearner, bf16=True)
    traces["bf16"] = ranks.trace(half)
    assert all(p.dtype == torch.float32 for p in half.parameters)
    return traces


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks.launch(layouts, 2, tmp_path_factory.mktemp("two"))


def alike(found: dict[str, Any], wanted: dict[str, Any], rtol: float = 2e-4, atol: float = 2e-6) -> None:
    for a, b in zip(found["stats"], wanted["stats"], strict=True):
        for key in set(b) - {"computed_tokens"}:
            assert a[key] == pytest.approx(b[key], rel=rtol, abs=atol, nan_ok=True), key
    for a, b in zip(found["scores"], wanted["scores"], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-4)
    for a, b in zip(found["grads"], wanted["grads"], strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
    assert found["weights"].keys() == wanted["weights"].keys()
    for name, b in wanted["weights"].items():
        # AdamW divides by the gradient's own size: where it is next to nothing, so may the rounding be a whole step
        torch.testing.assert_close(found["weights"][name], b, rtol=rtol, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_are_one(two: list[dict[str, Any]], layout: str) -> None:
    """Three updates: three sequences, one for two ranks, none at all."""
    wanted = ranks.trace(ranks.make(Learner, **LAYOUTS[layout]))
    for found in two:
        alike(found[layout], wanted)
        assert repr(found[layout]["stats"]) == repr(two[0][layout]["stats"])  # NaN is not itself
    assert wanted["stats"][0]["sequences"] == 3 and wanted["stats"][1]["sequences"] == 1


def test_layouts_compute_one_update() -> None:
    """Packed, chunked and recomputed against padded, whole and kept, in one process."""
    options = LAYOUTS["everything"]
    alike(ranks.trace(ranks.make(Learner, **options)), ranks.trace(ranks.make(Learner, tied=True)))


def test_bf16_ranks_keep_float32_weights(two: list[dict[str, Any]]) -> None:
    exact = ranks.trace(ranks.make(Learner))
    for a, b in zip(two[0]["bf16"]["stats"][:2], exact["stats"], strict=False):
        assert a["loss"] == pytest.approx(b["loss"], abs=0.05)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=0.1)
    moved = [w != w.bfloat16().float() for w in two[0]["bf16"]["weights"].values()]
    assert sum(int(x.sum()) for x in moved) > 1000  # values that bfloat16 cannot hold


def save_half(rank: int, folder: Path) -> dict[str, Any]:
    learner = ranks.make(ShardedLearner, tied=True)
    ranks.trace(learner, ranks.UPDATES[:2])
    learner.save(folder / "state")
    learner.save(folder / "state")  # in place of the first
    learner.export(folder / "model")
    return ranks.trace(learner, [BATCH, rollout(9, 4)])


def go_on(rank: int, folder: Path) -> dict[str, Any]:
    learner = ranks.make(ShardedLearner, tied=True)
    learner.load(folder / "state")
    assert learner.version == 2
    return ranks.trace(learner, [BATCH, rollout(9, 4)])


def nothing_there(rank: int, folder: Path) -> str:
    with pytest.raises(RunLogError) as caught:
        ranks.make(ShardedLearner).load(folder / "nowhere")
    return str(caught.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("saved")
    return folder, ranks.launch(save_half, 2, folder, folder)[0]


@pytest.mark.parametrize("world", [1, 3])
def test_resume_with_another_world(saved: tuple[Path, dict[str, Any]], world: int) -> None:
    """Saved by two ranks after two updates; one and three new processes end where the two did, as one Learner does."""
    folder, straight = saved
    if world == 3:  # killed between the two renamings of a save
        (folder / "state").rename(folder / ".state.old")
    alike(ranks.launch(go_on, world, folder, folder)[0], straight)
    if world == 1:
        learner = ranks.make(Learner, tied=True)
        ranks.trace(learner, ranks.UPDATES[:2])
        alike(straight, ranks.trace(learner, [BATCH, rollout(9, 4)]))
        assert "nowhere holds no learner state" in ranks.launch(nothing_there, 1, folder, folder)[0]


def test_export_loads(saved: tuple[Path, dict[str, Any]]) -> None:
    """from_pretrained gives the log-probs of the learner that exported; the head is stored once."""
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    folder = saved[0] / "model"
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 (no dict)
    learner = ranks.make(Learner, tied=True)
    ranks.trace(learner, ranks.UPDATES[:2])
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight and model.dtype == torch.float32
    tokens = torch.from_numpy(BATCH[0].context)[None]
    with torch.no_grad():
        found, wanted = (m.eval()(tokens).logits.log_softmax(-1) for m in (model, learner.model))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_sequences_are_divided_by_tokens() -> None:
    assert divide([5, 9, 4, 3, 1], 2) == [[1, 3], [0, 2, 4]]  # 9 + 3 and 5 + 4 + 1: by hand
    assert divide([7], 3) == [[0], [], []]
    assert packed_batches([5, 9, 4, 3, 1], 10) == [[1, 4], [0, 2], [3]]
    assert packed_batches([30, 2, 3], 10) == [[0], [2, 1]]
