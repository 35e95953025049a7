"""The road for weights between processes, by Gloo: what arrives, and what happens where one end is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from divopd.pipeline.ray.weights import Giver, unpack
from divopd.policies import road, stage
from divopd.policies.base import PolicyError
from divopd.policies.hf import HFPolicy
from divopd.policies.road import End, Road, RoadError, Way, backend_for, host
from divopd.policies.stage import Stage, shapes, within_reach

HERE, CPU = "127.0.0.1", torch.device("cpu")
WEIGHTS = [("a", torch.arange(15.0).reshape(3, 5)), ("count", torch.tensor(7)), ("b", torch.tensor([0.1, -2.0]))]


def staged(weights: list[tuple[str, Tensor]], dtype: torch.dtype = torch.float32) -> Stage:
    made = Stage()
    made.fill(weights, dtype)
    return made


def way_of(made: Stage, takers: int = 1, mapped: bool = False) -> tuple[Way, object]:
    store = host(HERE)
    memory = made.memory if mapped else None
    return Way(f"{HERE}:{store.port}", 1 + takers, "gloo", made.layout, memory), store


def taken(end: End, way: Way, rank: int = 1) -> dict[str, Tensor]:
    """Copies of what has come."""
    found: dict[str, Tensor] = {}
    end.load(way, rank, HERE, CPU, lambda tensors: found.update((name, tensor.clone()) for name, tensor in tensors))
    return found


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(["float32", "bfloat16", "int64"]))),
    st.sampled_from([1, 64, 1000]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=60, deadline=None)
def test_a_stage_holds_what_it_was_given(kinds: list[tuple[list[int], str]], piece: int, dtype: torch.dtype) -> None:
    """Whatever the shapes: each tensor whole, in its type, the last ones given; no piece larger than it must be."""
    stage.PIECE, usual = piece, stage.PIECE
    try:
        made = Stage()
        for scale in (1, 3):
            ones = (scale * torch.ones(shape, dtype=getattr(torch, kind)) for shape, kind in kinds)
            last = [(f"w{i}", tensor) for i, tensor in enumerate(ones)]
            made.fill(last, dtype)
    finally:
        stage.PIECE = usual
    found = dict(made.tensors())
    assert list(found) == [name for name, _ in last]
    for name, tensor in last:
        want = tensor.to(dtype) if tensor.is_floating_point() else tensor
        assert found[name].dtype == want.dtype and torch.equal(found[name], want)
    assert shapes(made.layout) == {name: tuple(tensor.shape) for name, tensor in last}
    for each in made.layout:
        assert len(each.items) <= 1 or sum(found[item.name].nbytes for item in each.items) <= piece
        assert all(item.begin % 16 == 0 for item in each.items) and each.at % 4096 == 0


def test_a_stage_is_told_from_another_models() -> None:
    with pytest.raises(ValueError, match=r"a \(5, 3\) where a \(3, 5\) was"):
        staged(WEIGHTS).fill([("a", torch.zeros(5, 3)), *WEIGHTS[1:]], torch.float32)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("takers", [1, 2])
def test_weights_arrive_again_and_again(takers: int, mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To one and, as with an engine over two GPUs, to two; the second time along the same road, and changed."""
    monkeypatch.setattr(stage, "PIECE", 40)
    made, ends, roads = staged(WEIGHTS, torch.bfloat16), [End() for _ in range(takers)], []
    assert len(made.pieces) == 2
    way, store = way_of(made, takers, mapped)
    with ThreadPoolExecutor(1 + takers) as threads:
        giver = threads.submit(Road, way, 0, HERE, CPU, store)
        for weights in (WEIGHTS, [(name, tensor + 1) for name, tensor in WEIGHTS]):
            made.fill(weights, torch.bfloat16)
            takes = [threads.submit(taken, ends[i], way, 1 + i) for i in range(takers)]
            giver.result().give(made.pieces)
            for take in takes:
                found = take.result()
                assert found.keys() == {"a", "b", "count"} and found["count"].dtype == torch.int64
                assert all(torch.equal(found[name], tensor.to(found[name].dtype)) for name, tensor in weights)
            roads.append([end.road for end in ends])
    assert roads[0] == roads[1] and None not in roads[0]


def test_what_is_mapped_is_the_givers_own_memory_until_it_is_loaded() -> None:
    """Nothing is copied: the giver's pen shows at once, and it is told when it may write."""
    made, end, marks = staged(WEIGHTS), End(), []
    way, store = way_of(made, mapped=True)
    assert made.memory is not None and within_reach(made.memory)
    assert not within_reach((made.memory[0], "another's")) and not within_reach(("/proc/1/fd/99999", made.memory[1]))

    def into(tensors: Iterator[tuple[str, Tensor]]) -> None:
        found = dict(tensors)
        dict(made.tensors())["a"].fill_(9.0)
        assert (found["a"] == 9).all()
        time.sleep(0.3)
        marks.append("loaded")

    with ThreadPoolExecutor(1) as threads:
        giver = threads.submit(Road, way, 0, HERE, CPU, store)
        given = threads.submit(lambda: (giver.result().give(made.pieces), marks.append("given")))
        end.load(way, 1, HERE, CPU, into)
        given.result()
    assert marks == ["loaded", "given"]


@pytest.mark.parametrize("mapped", [False, True])
def test_who_cannot_load_breaks_the_road_off(mapped: bool) -> None:
    made, end = staged(WEIGHTS), End()
    way, store = way_of(made, mapped=mapped)
    two = Way(way.address, 2, "gloo", way.layout * 2, way.memory)

    def into(tensors: Iterator[tuple[str, Tensor]]) -> None:
        assert next(tensors)[0] == "a"
        raise PolicyError("no place for b")

    begin = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        giver = threads.submit(Road, two, 0, HERE, CPU, store)
        sent = threads.submit(lambda: giver.result().give(made.pieces * 2))
        with pytest.raises(PolicyError, match="no place for b"):
            end.load(two, 1, HERE, CPU, into)
        assert end.road is None
        with pytest.raises(RoadError, match="weights were lost on the road"):
            sent.result()
    assert time.monotonic() - begin < 20


def test_nobody_at_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(road, "PATIENCE", 0.5)
    monkeypatch.setattr(road, "CONNECT", 0.5)
    way, store = way_of(staged(WEIGHTS))
    with pytest.raises(RoadError, match=f"no road for weights to {HERE}"):
        Road(way, 0, HERE, CPU, store)
    del store
    with pytest.raises(RoadError, match="no road for weights"):
        taken(End(), Way(f"{HERE}:9", 2, "gloo", way.layout))


DIES = """
import os, sys, torch
from divopd.policies.road import Road, Way
from divopd.policies.stage import Piece
piece = Piece(0, 1 << 26, [])
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


def test_what_was_not_published_whole_is_not_given() -> None:
    """And a checkpoint is of the version that it is to be of. What is given for the store changes no more."""
    giver = Giver()

    def breaks() -> Iterator[tuple[str, Tensor]]:
        yield WEIGHTS[0][0], WEIGHTS[0][1] + 1
        raise ConnectionError("a rank is gone")

    giver.put(WEIGHTS, torch.float32, 1)
    version, packed = giver.fetch(None, 1)
    with pytest.raises(RoadError, match="version 1 are on the stage, and not 2"):
        giver.fetch(None, 2)
    with pytest.raises(ConnectionError):
        giver.put(breaks(), torch.float32, 2)
    with pytest.raises(RoadError, match="failed while it published"):
        giver.fetch()
    giver.put([(name, tensor + 2) for name, tensor in WEIGHTS], torch.float32, 3)
    assert (version, giver.fetch()[0]) == (1, 3)
    assert torch.equal(unpack(packed)["a"], WEIGHTS[0][1])
    assert torch.equal(unpack(giver.fetch()[1])["a"], WEIGHTS[0][1] + 2)


def test_a_publication_waits_for_those_who_read() -> None:
    giver, marks = Giver(), []
    giver.put(WEIGHTS, torch.float32, 1)
    with ThreadPoolExecutor(2) as threads:
        with giver._reading():
            put = threads.submit(lambda: (giver.put(WEIGHTS, torch.float32, 2), marks.append("published")))
            time.sleep(0.2)
            late = threads.submit(giver.fetch)  # who comes now gets what is published next
            time.sleep(0.2)
            assert giver.version == 1 and not late.done()
            marks.append("read")
        put.result()
        assert late.result()[0] == 2
    assert marks == ["read", "published"]


def test_a_policy_takes_them_and_refuses_another_models(tiny_models: Path) -> None:
    from divopd.config import PolicyConfig
    from divopd.policies.hf import load_model

    policy = HFPolicy(load_model(PolicyConfig(path=str(tiny_models / "student"))), 3)
    own = [(name, torch.full_like(tensor, 0.25)) for name, tensor in policy.weights().items()]

    def sent(weights: list[tuple[str, Tensor]]) -> None:
        made = staged(weights)
        way, store = way_of(made)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(lambda: Road(way, 0, HERE, CPU, store).give(made.pieces))
            policy.receive(way, HERE, lambda: 5)

    sent(own)
    assert policy.version == 5 and all((tensor == 0.25).all() for tensor in policy.weights().values())
    with pytest.raises(PolicyError, match="weights do not fit the model"):
        sent(own[1:])
