"""What new weights cost learner and explorers, by Ray's object store and by the direct road (docs/ray.md).

    python benchmarks/weight_road.py [--gb 1 2] [--times 5]

Two Ray nodes on this machine, with object stores of their own: what goes from one to the other is copied over loopback.
bfloat16 arrays in 200 pieces, moved by the pipeline's own code; the first of each size is not counted. Needs memory for
five copies of the largest.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

from divopd.pipeline.ray.weights import GROUP, Giver

PIECES = 200


class Learner(Giver):
    """Holds weights, and puts them into the store of its node, or on its stage."""

    def make(self, gb: float) -> None:
        import torch

        size = int(gb * 1e9 / 2 / PIECES)
        self.weights = [(f"w{i}", torch.ones(size, dtype=torch.bfloat16)) for i in range(PIECES)]
        super().__init__()  # with an empty stage

    def store(self) -> tuple[float, list[Any]]:
        import ray
        import torch

        from divopd.pipeline.ray.weights import pack

        begin = time.perf_counter()
        reference = ray.put(pack(self.weights, torch.bfloat16))
        return time.perf_counter() - begin, [reference]

    def publish(self) -> float:
        import torch

        begin = time.perf_counter()
        self.put(self.weights, torch.bfloat16, 0)
        return time.perf_counter() - begin


class Explorer:
    """Maps weights from its node's store, copies them as vLLM's sender does, to keep and as a file in memory, and reads
    them there, as the engine's worker does.
    """

    def get(self, references: list[Any]) -> tuple[float, float, float]:
        import ray
        import torch
        from safetensors import safe_open

        from divopd.pipeline.ray.weights import unpack
        from divopd.policies.vllm_weights import weight_file

        times = [time.perf_counter()]
        weights = unpack(ray.get(references[0]))
        times.append(time.perf_counter())
        held = {name: tensor.to("cpu", copy=True) for name, tensor in weights.items()}
        times.append(time.perf_counter())
        with weight_file(held) as path, safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                file.get_tensor(name).view(torch.int16).max()
            times.append(time.perf_counter())
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]

    def take(self, learner: Any, mapped: bool) -> float:
        """Along the direct road, reading it once, as an engine's worker does; not counted: making it."""
        import ray
        import torch

        from divopd.pipeline.ray.weights import Direct, node
        from divopd.policies.road import End

        def read(tensors: Any) -> None:
            for _, tensor in tensors:
                tensor.view(torch.int16).max()

        source, end, seconds = Direct(learner, 0, 0), End(), 0.0
        way = ray.get(source.call("open_road", [None], mapped))
        for _ in range(2):
            sent = source.call("send")
            begin = time.perf_counter()
            end.load(way, 1, node(), torch.device("cpu"), read)
            ray.get(sent)
            seconds = time.perf_counter() - begin
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    import ray
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": int(1.3e9 * max(options.gb))}
    cluster = Cluster(
        True, head_node_args={"num_cpus": 2, "resources": {"near": 1}, "include_dashboard": False} | store
    )
    cluster.add_node(num_cpus=1, resources={"far": 1}, **store)
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    near, far = ({"num_cpus": 0, "resources": {name: 0.1}} for name in ("near", "far"))
    remote: Any = ray.remote
    learner: Any = remote(concurrency_groups={GROUP: 2})(Learner).options(**near).remote()
    here, there = (ray.remote(Explorer).options(**where).remote() for where in (near, far))
    names = ("store: put", "map, same node", "fetch, other node", "copy", "file and reading it")
    names += ("stage: put", "mapped and read, same node", "sent and read")
    for gb in options.gb:
        ray.get(learner.make.remote(gb))
        rows = []
        for _ in range(options.times + 1):
            put, references = ray.get(learner.store.remote())
            mapped, copied, filed = ray.get(here.get.remote(references))
            far_get = ray.get(there.get.remote(references))[0]
            del references
            staged = ray.get(learner.publish.remote())
            direct = [ray.get(where.take.remote(learner, where is here)) for where in (here, there)]
            rows.append((put, mapped, far_get, copied, filed, staged, *direct))
            time.sleep(1)  # for the stores to let go of it
        for name, seconds in zip(names, map(median, zip(*rows[1:], strict=True)), strict=True):
            print(f"{gb:g} GB  {name:26} {seconds:7.3f} s {gb / seconds:8.2f} GB/s", flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
