"""What the learner's options for the paper's scale are worth: packed rows, chunked log-probs. Under a minute.

Ratios are of measurements in one run, interleaved where they are times, so that a busy machine does not decide them.
    python benchmarks/learner_scale.py [--model models/alfworld/student-0.5m] [--positions 1024]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from divopd.config import PolicyConfig, TrainConfig
from divopd.learner import Learner, merge_rows
from divopd.logprobs import by_chunks, picked
from divopd.types import Turn

VOCABULARY, WIDTH, CHUNK = 150_000, 16, 64
# blocks go back to the system when they are freed: else the heap's gaps between aligned blocks count as well
EXACT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def rollouts(count: int, vocabulary: int, longest: int = 160) -> list[Turn]:
    """One turn each of `count` rollouts that ended after 20 to `longest` tokens: the laptop's uneven lengths."""
    rng, turns = np.random.default_rng(0), []
    for number, end in enumerate(rng.integers(20, longest, count).tolist()):
        context = rng.integers(4, vocabulary, end)
        scores = [np.full(3, value, np.float32) for value in (-1.0, -0.5)]
        turns.append(Turn((0, number, 0), 0, 0, context, end - 3, end, scores[0], scores[1], np.ones(3, bool)))
    return turns


def packing(path: Path, rounds: int = 5) -> None:
    """Updates with padded micro-batches against packed ones."""
    from divopd.policies.hf import load_model

    learners = {
        packed: Learner(load_model(PolicyConfig(path=str(path)), "cpu"), TrainConfig(packed=packed))
        for packed in (False, True)
    }
    turns = rollouts(64, learners[True].model.config.vocab_size)
    tokens = sum(len(s.tokens) for s in merge_rows(turns))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    computed = {}
    for _ in range(rounds):
        for packed, learner in learners.items():
            begin = time.perf_counter()
            computed[packed] = learner.update(turns)["computed_tokens"]
            seconds[packed].append(time.perf_counter() - begin)
    rate = {packed: tokens / float(np.median(times)) for packed, times in seconds.items()}
    padding = [f"{100 * (1 - tokens / computed[packed]):.0f} %" for packed in (False, True)]
    print(
        f"padded -> packed, {len(turns)} sequences of {tokens / len(turns):.0f} tokens: {rate[False]:.0f} -> "
        f"{rate[True]:.0f} tokens/s, {rate[True] / rate[False]:.2f} times as fast; padding {' -> '.join(padding)}"
    )


def logits(chunk: int, positions: int) -> dict[str, float]:
    """Peak memory (bytes) and seconds of the log-probs of `positions` tokens and their gradient; chunk 0: at once."""
    torch.manual_seed(0)
    hidden, weight = (torch.randn(n, WIDTH, requires_grad=True) for n in (positions, VOCABULARY))
    targets = torch.randint(0, VOCABULARY, (positions,))

    def run(rows: int) -> float:
        begin = time.perf_counter()
        by_chunks(lambda h, t: picked(h @ weight.T, t), chunk or None, hidden[:rows], targets[:rows]).sum().backward()
        return time.perf_counter() - begin

    def peak() -> int:  # of this program alone: getrusage's begins with what the process held that started it
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found
        return int(found[1]) * 1024

    run(8)
    before = peak()
    seconds = run(positions)
    return {"bytes": peak() - before, "seconds": seconds}


def chunking(positions: int) -> None:
    """Each in a process of its own, since a process's peak never falls."""
    found = {}
    for chunk in (0, CHUNK):
        command = [sys.executable, __file__, "--positions", str(positions), "--logits", str(chunk)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **EXACT})
        found[chunk] = json.loads(done.stdout)
    whole, parts = found[0], found[CHUNK]
    print(
        f"log-probs of {positions} tokens, vocabulary {VOCABULARY}, at once -> {CHUNK} at a time: "
        f"{whole['bytes'] / 1e9:.2f} -> {parts['bytes'] / 1e9:.2f} GB, "
        f"{whole['bytes'] / parts['bytes']:.1f} times less; {parts['seconds'] / whole['seconds']:.2f} times the time"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/alfworld/student-0.5m"))
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--logits", type=int, help="measure this chunk alone, as JSON; 0: all at once")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.logits is not None:
        print(json.dumps(logits(options.logits, options.positions)))
        return
    packing(options.model)
    chunking(options.positions)


if __name__ == "__main__":
    main()
