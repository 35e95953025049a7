"""New weights in a running vLLM engine, by each of their roads, for real: `make vllm-test`."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from divopd.policies.base import PolicyError
from divopd.policies.hf import HFPolicy, load_model
from divopd.policies.road import Road, Way, host
from divopd.policies.stage import Item, Piece, Stage
from vllm_talk import EQUAL, GPU, STUDENT, converse, largest_gap, perturbed, start

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: `make vllm-test` runs these tests", allow_module_level=True)
pytestmark = pytest.mark.slow

HERE = "127.0.0.1"
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="weights go from one GPU to another")


@pytest.fixture(scope="module")
def policy():
    made = start()
    yield made
    made.close()


@pytest.fixture
def reference(policy) -> HFPolicy:
    """Transformers with the checkpoint's weights, which the engine gets back as well."""
    twin = HFPolicy(load_model(STUDENT), policy.eos)
    policy.load_weights(twin.weights())
    return twin


def test_new_weights_reach_every_layer_and_the_tied_head(policy, reference):
    """Same prompts before and after, so that a prefix cache of the old weights would show."""
    before = converse(policy, range(4))
    weights = perturbed(reference.weights(), 0)
    policy.load_weights(weights, 7)
    after = converse(policy, range(4))
    assert largest_gap(reference, before) < EQUAL < 0.05 < largest_gap(reference, after)
    reference.load_weights(weights)
    assert largest_gap(reference, after) < EQUAL
    assert {version for row in after[3].values() for version in row} == {7}
    assert {version for row in before[3].values() for version in row} == {None}
    for name, tensor in policy.weights().items():
        torch.testing.assert_close(tensor, weights[name].cpu())


def test_without_an_explicit_head_it_would_be_stale(policy, reference):
    """The trap itself, so that a vLLM without it can be told: the head alone stays what it was."""
    from divopd.policies.vllm_weights import weight_file

    weights = perturbed(reference.weights(), 1)
    with weight_file(weights) as path:
        policy.engine.swap(lambda: policy.engine.rpc("take_file", path, {}) and "8")
    reference.load_weights(weights)
    assert largest_gap(reference, converse(policy, range(4))) > 0.05
    policy.load_weights(weights, 8)
    assert largest_gap(reference, converse(policy, range(4))) < EQUAL


@pytest.mark.parametrize("backend", ["gloo", "mapped", pytest.param("nccl", marks=TWO_GPUS)])
def test_weights_come_along_a_road(policy, reference, backend):
    """From another thread here, as from another process there, into the engine's worker; the second along the same."""
    stage, store = Stage(), host(HERE)
    stage.fill(reference.weights().items(), torch.float32)
    memory = stage.memory if backend == "mapped" else None
    way = Way(f"{HERE}:{store.port}", 2, "nccl" if backend == "nccl" else "gloo", stage.layout, memory)
    device = torch.device("cuda:1" if backend == "nccl" else "cpu")
    with ThreadPoolExecutor(1) as threads:
        giver = threads.submit(Road, way, 0, HERE, device, store)
        for version in (3, 4):
            weights = perturbed(reference.weights(), version)
            stage.fill(weights.items(), torch.float32)
            sent = threads.submit(lambda: giver.result().give(stage.pieces))
            policy.receive(way, HERE, lambda version=version: version)
            sent.result()
            reference.load_weights(weights)
            spoken = converse(policy, range(4))
            assert largest_gap(reference, spoken) < EQUAL and spoken[3][0][0] == version
    with pytest.raises(PolicyError, match="in the vLLM engine alone"):
        policy.weights()


@pytest.mark.parametrize("after", ["self_attn.q_proj.weight", "mlp.gate_proj.weight", "norm.weight"])
def test_a_road_that_breaks_leaves_no_half_new_weights(policy, reference, after):
    """Within a layer that vLLM merges, or after all of them: the engine says so until weights are loaded again, which
    then are whole.
    """
    stage, store, order = Stage(), host(HERE), reference.weights()
    lost = perturbed(order, 5)
    last = next(
        i for i, name in enumerate(lost) if name.endswith(after) and (after != "norm.weight" or "model.norm" in name)
    )
    stage.fill(list(lost.items())[: last + 1], torch.float32)
    far = Piece(
        1 << 30, 1 << 20, [Item(name, "float32", tuple(lost[name].shape), 0) for name in list(lost)[last + 1 :]]
    )
    way = Way(f"{HERE}:{store.port}", 2, "gloo", [*stage.layout, far])

    def give_some() -> None:
        road = Road(way, 0, HERE, torch.device("cpu"), store)
        road.give(stage.pieces)
        road.close()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(give_some)
        with pytest.raises(PolicyError, match="new weights did not reach the vLLM engine"):
            policy.receive(way, HERE, lambda: 5)
    with pytest.raises(PolicyError, match="load them again"):
        converse(policy, [0])
    weights = perturbed(order, 6)
    reference.load_weights(weights)
    policy.load_weights(weights, 6)
    assert largest_gap(reference, converse(policy, range(4))) < EQUAL


@pytest.mark.skipif(not GPU, reason="weights go from GPU memory to GPU memory")
def test_weights_on_the_engines_gpu_go_by_ipc(policy, reference):
    weights = {name: tensor.cuda() for name, tensor in perturbed(policy.weights(), 2).items()}
    policy.load_weights(weights, 9)
    assert policy._sender is not None and policy._sender.backend == "ipc"
    reference.load_weights(weights)
    spoken = converse(policy, range(4))
    assert largest_gap(reference, spoken) < EQUAL and spoken[3][0][0] == 9


@TWO_GPUS
def test_weights_on_another_gpu_go_by_nccl():
    engine = STUDENT.engine.model_copy(update={"transfer": "nccl"})
    there = start(STUDENT.model_copy(update={"engine": engine}))
    try:
        weights = {name: tensor.to("cuda:1") for name, tensor in perturbed(there.weights(), 3).items()}
        there.load_weights(weights, 1)
        twin = HFPolicy(load_model(STUDENT), there.eos)
        twin.load_weights(weights)
        assert largest_gap(twin, converse(there, range(4))) < EQUAL
    finally:
        there.close()


def play_and_swap(policy, reference, loads: int) -> tuple[list, list[dict[str, torch.Tensor]]]:
    """Eight threads converse while the weights change; what they said, and the weights by version."""
    weights = [reference.weights()] + [perturbed(reference.weights(), 10 + i) for i in range(loads)]
    weights = [{name: tensor.clone() for name, tensor in each.items()} for each in weights]
    policy.load_weights(weights[0], 0)
    with ThreadPoolExecutor(8) as threads:
        spoken = [threads.submit(converse, policy, [r], turns=12, limit=8) for r in range(8)]
        for version in range(1, loads + 1):
            policy.load_weights(weights[version], version)
        return [future.result() for future in spoken], weights


def scored_by(reference: HFPolicy, weights: list[dict[str, torch.Tensor]], spoken) -> list[list[np.ndarray]]:
    """Of one thread's episode: for each version, the log-probs of its spans."""
    [row] = spoken[0]
    out = []
    for version in weights:
        reference.load_weights(version)
        out.append(reference.score([np.array(spoken[0][row])], [spoken[1][row]])[0])
    return out


def test_threads_go_on_while_weights_change_and_no_response_mixes_them(policy, reference):
    said, weights = play_and_swap(policy, reference, 3)
    seen = set()
    for spoken in said:
        [row] = spoken[0]
        scored = scored_by(reference, weights, spoken)
        for turn, (logprobs, version) in enumerate(zip(spoken[2][row], spoken[3][row], strict=True)):
            np.testing.assert_allclose(logprobs, scored[version][turn], atol=EQUAL)
            seen.add(version)
        assert spoken[3][row] == sorted(spoken[3][row])
    assert len(seen) > 1


def test_kept_requests_are_labelled_with_the_weights_they_began_under(policy, reference):
    policy.engine.keep = True
    try:
        said, weights = play_and_swap(policy, reference, 3)
    finally:
        policy.engine.keep = False
    for spoken in said:
        [row] = spoken[0]
        scored = scored_by(reference, weights, spoken)
        for turn, (logprobs, version) in enumerate(zip(spoken[2][row], spoken[3][row], strict=True)):
            gaps = np.abs(np.stack([logprobs - each[turn] for each in scored]))
            assert gaps[version, 0] < EQUAL  # the label is the first token's
            assert (gaps[version:].min(0) < EQUAL).all()  # later tokens are of the same weights or newer ones
