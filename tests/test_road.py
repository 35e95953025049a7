"""The road for weights between processes, by Gloo: what arrives, and what happens where one end is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from divopd.policies import road
from divopd.policies.base import PolicyError
from divopd.policies.hf import HFPolicy
from divopd.policies.road import End, Road, RoadError, Stage, Way, backend_for, host, shapes

HERE, CPU = "127.0.0.1", torch.device("cpu")
WEIGHTS = [("a", torch.arange(15.0).reshape(3, 5)), ("count", torch.tensor(7)), ("b", torch.tensor([0.1, -2.0]))]


def staged(weights: list[tuple[str, Tensor]], dtype: torch.dtype = torch.float32) -> Stage:
    stage = Stage()
    stage.fill(weights, dtype)
    return stage


def way_of(stage: Stage, takers: int = 1) -> tuple[Way, object]:
    store = host(HERE)
    return Way(f"{HERE}:{store.port}", 1 + takers, "gloo", stage.layout), store


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(["float32", "bfloat16", "int64"]))),
    st.sampled_from([1, 64, 1000]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=60, deadline=None)
def test_a_stage_holds_what_it_was_given(kinds: list[tuple[list[int], str]], piece: int, dtype: torch.dtype) -> None:
    """Whatever the shapes: each tensor whole, in its type, the last ones given; no piece larger than it must be."""
    road.PIECE, usual = piece, road.PIECE
    try:
        stage = Stage()
        for scale in (1, 3):
            given_now = [
                (f"w{i}", scale * torch.ones(shape, dtype=getattr(torch, kind)))
                for i, (shape, kind) in enumerate(kinds)
            ]
            stage.fill(given_now, dtype)
    finally:
        road.PIECE = usual
    found = dict(stage.tensors())
    assert list(found) == [name for name, _ in given_now]
    for name, tensor in given_now:
        want = tensor.to(dtype) if tensor.is_floating_point() else tensor
        assert found[name].dtype == want.dtype and torch.equal(found[name], want)
    assert shapes(stage.layout) == {name: tuple(tensor.shape) for name, tensor in given_now}
    for size, items in stage.layout:
        assert len(items) == 1 or sum(dict(found)[item.name].nbytes for item in items) <= piece
        assert all(item.begin % 16 == 0 for item in items) and size % 16 == 0


def test_a_stage_is_told_from_another_models() -> None:
    with pytest.raises(ValueError, match=r"a \(5, 3\) where a \(3, 5\) was"):
        staged(WEIGHTS).fill([("a", torch.zeros(5, 3)), *WEIGHTS[1:]], torch.float32)


@pytest.mark.parametrize("takers", [1, 2])
def test_weights_arrive_again_and_again(takers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To one and, as with an engine over two GPUs, to two; the second time along the same road, and changed."""
    monkeypatch.setattr(road, "PIECE", 40)
    stage, ends = staged(WEIGHTS, torch.bfloat16), [End() for _ in range(takers)]
    assert len(stage.pieces) == 2
    way, store = way_of(stage, takers)
    with ThreadPoolExecutor(1 + takers) as threads:
        giver = threads.submit(Road, way, 0, HERE, CPU, store)
        roads = []
        for weights in (WEIGHTS, [(name, tensor + 1) for name, tensor in WEIGHTS]):
            stage.fill(weights, torch.bfloat16)
            takes = [threads.submit(lambda i: dict(ends[i].take(way, 1 + i, HERE, CPU)), i) for i in range(takers)]
            giver.result().give(stage.pieces)
            for take in takes:
                found = take.result()
                assert found.keys() == {"a", "b", "count"} and found["count"].dtype == torch.int64
                assert all(torch.equal(found[name], tensor.to(found[name].dtype)) for name, tensor in weights)
            roads.append([end.road for end in ends])
        assert roads[0] == roads[1]


def test_who_does_not_take_all_breaks_the_road_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(road, "PIECE", 16)
    monkeypatch.setattr(road, "PATIENCE", 2.0)
    stage, end = staged(WEIGHTS), End()
    way, store = way_of(stage)
    with ThreadPoolExecutor(1) as threads:
        giver = threads.submit(Road, way, 0, HERE, CPU, store)
        some = end.take(way, 1, HERE, CPU)
        sent = threads.submit(lambda: giver.result().give([*stage.pieces] * 2))
        assert next(some)[0] == "a"
        some.close()
        assert end.road is None
        with pytest.raises(RoadError, match="weights were lost on the road"):
            sent.result()


def test_nobody_at_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(road, "PATIENCE", 0.5)
    way, store = way_of(staged(WEIGHTS))
    with pytest.raises(RoadError, match=f"no road for weights to {HERE}"):
        Road(way, 0, HERE, CPU, store)
    del store
    with pytest.raises(RoadError, match="no road for weights"):
        list(End().take(Way(f"{HERE}:9", 2, "gloo", way.layout), 1, HERE, CPU))


DIES = """
import os, sys, torch
from divopd.policies.road import Road, Way
piece = (1 << 26, [])
taking = Road(Way(sys.argv[1], 2, "gloo", [piece, piece]), 1, "127.0.0.1", torch.device("cpu")).take()
list(taking)
os._exit(9)
"""


def test_the_others_death_is_noticed_at_once() -> None:
    """A process that dies with no more than a part taken."""
    store = host(HERE)
    address = f"{HERE}:{store.port}"
    other = subprocess.Popen([sys.executable, "-c", DIES, address])
    mine = Road(Way(address, 2, "gloo", []), 0, HERE, CPU, store)
    begin = time.monotonic()
    with pytest.raises(RoadError, match="lost on the road"):
        mine.give([torch.zeros(1 << 26, dtype=torch.uint8)] * 100)
    assert time.monotonic() - begin < 60 < road.PATIENCE
    assert other.wait(10) == 9


def test_a_gpu_each_goes_by_nccl_and_all_else_by_gloo() -> None:
    for mine, theirs, want in [
        ("GPU-a", ["GPU-b"], "nccl"), ("GPU-a", ["GPU-b", "GPU-c"], "nccl"), ("GPU-a", ["GPU-a"], "gloo"),
        (None, ["GPU-b"], "gloo"), ("GPU-a", [None], "gloo"), ("GPU-a", ["GPU-b", "GPU-b"], "gloo"),
    ]:  # fmt: skip
        assert backend_for(mine, theirs) == want


def test_a_policy_takes_them_and_refuses_another_models(tiny_models: Path) -> None:
    from divopd.config import PolicyConfig
    from divopd.policies.hf import load_model

    policy = HFPolicy(load_model(PolicyConfig(path=str(tiny_models / "student"))), 3)
    own = [(name, torch.full_like(tensor, 0.25)) for name, tensor in policy.weights().items()]

    def sent(weights: list[tuple[str, Tensor]]) -> None:
        stage = staged(weights)
        way, store = way_of(stage)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(lambda: Road(way, 0, HERE, CPU, store).give(stage.pieces))
            policy.receive(way, HERE, lambda: 5)

    sent(own)
    assert policy.version == 5 and all((tensor == 0.25).all() for tensor in policy.weights().values())
    with pytest.raises(PolicyError, match="weights do not fit the model"):
        sent(own[1:])
