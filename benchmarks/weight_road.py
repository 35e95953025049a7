"""What it costs that weights go through Ray's object store: into it, out of it on the same node, and to another one.

    python benchmarks/weight_road.py [--gb 1 3] [--times 3]

Two Ray nodes on this machine, with object stores of their own: what goes from one to the other is copied over loopback.
bfloat16 arrays in 200 pieces, packed and unpacked by the pipeline's own code; the first of each size is not counted.
Needs memory for four copies of the largest.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

PIECES = 200


class Learner:
    """Holds weights, and puts them into the store of its node."""

    def make(self, gb: float) -> None:
        import torch

        size = int(gb * 1e9 / 2 / PIECES)
        self.weights = [(f"w{i}", torch.ones(size, dtype=torch.bfloat16)) for i in range(PIECES)]

    def put(self) -> tuple[float, list[Any]]:
        import ray
        import torch

        from divopd.pipeline.ray.weights import pack

        begin = time.perf_counter()
        reference = ray.put(pack(self.weights, torch.bfloat16))
        return time.perf_counter() - begin, [reference]


class Explorer:
    """Maps weights from its node's store, and copies them as vLLM's sender does: to keep, and as a file in memory."""

    def get(self, references: list[Any]) -> tuple[float, float, float]:
        import ray

        from divopd.pipeline.ray.weights import unpack
        from divopd.policies.vllm_weights import weight_file

        times = [time.perf_counter()]
        weights = unpack(ray.get(references[0]))
        times.append(time.perf_counter())
        held = {name: tensor.to("cpu", copy=True) for name, tensor in weights.items()}
        times.append(time.perf_counter())
        with weight_file(held):
            times.append(time.perf_counter())
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--times", type=int, default=3)
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
    learner = ray.remote(Learner).options(**near).remote()
    here, there = (ray.remote(Explorer).options(**where).remote() for where in (near, far))
    names = ("put", "map, same node", "fetch, other node", "copy", "file in memory")
    for gb in options.gb:
        ray.get(learner.make.remote(gb))
        rows = []
        for _ in range(options.times + 1):
            put, references = ray.get(learner.put.remote())
            mapped, copied, filed = ray.get(here.get.remote(references))
            rows.append((put, mapped, ray.get(there.get.remote(references))[0], copied, filed))
            del references
            time.sleep(1)  # for the stores to let go of it
        for name, seconds in zip(names, map(median, zip(*rows[1:], strict=True)), strict=True):
            print(f"{gb:g} GB  {name:18} {seconds:7.3f} s {gb / seconds:8.2f} GB/s", flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
