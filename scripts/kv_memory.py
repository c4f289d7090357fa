#!/usr/bin/env python3
"""Measures the KV memory of paged sequences against reserving the longest length for each.

Serves a tiny random model, starts 64 requests at once whose lengths (prompt and output) are uniform from 32 to the
context's limit, and samples the blocks that the router holds until all have ended.

    .venv/bin/python scripts/kv_memory.py [--requests 64] [--context 1024] [--seed 1]
"""

import argparse
import pathlib
import random
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import tiny_models  # noqa: E402
from cluster import Cluster  # noqa: E402

MIN_LENGTH = 32
BLOCK_TOKENS = 16


def run(cluster, num_requests, context, rng):
    """Runs the load. Returns the tokens of all requests and the blocks held at each sample."""
    calls, total = [], 0
    for i in range(num_requests):
        length = rng.randint(MIN_LENGTH, context)
        prompt = rng.randint(MIN_LENGTH // 2, length // 2)
        ids = [rng.randrange(500) for _ in range(prompt)]
        calls.append(cluster.start(ids, max_tokens=length - prompt, ignore_eos=True, timeout=600))
        total += length
    held = []
    while not all(call.done() for call in calls):
        status = cluster.status()
        held.append(status.blocks_held)
        print(f"\r{sum(call.done() for call in calls)} of {num_requests} done, {held[-1]} blocks held ",
              end="", file=sys.stderr, flush=True)
        time.sleep(0.02)
    print(file=sys.stderr)
    for call in calls:
        call.result()
    return total, held


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024, help="the limit of a request's tokens")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_models.write_model(pathlib.Path(folder) / "tiny.gguf", tiny_models.Config(ctx=arguments.context))
        with Cluster(model, "--max-batch-seqs", arguments.requests) as cluster:
            block_bytes = cluster.block_bytes()
            total, held = run(cluster, arguments.requests, arguments.context, random.Random(arguments.seed))
            preemptions = cluster.status().preemptions
    reserved = arguments.requests * -(-arguments.context // BLOCK_TOKENS) * block_bytes
    peak = max(held) * block_bytes
    print(f"{arguments.requests} requests of {MIN_LENGTH} to {arguments.context} tokens, {total} in all; "
          f"{preemptions} preemptions, {len(held)} samples")
    print(f"reserved for the longest length  {reserved / 1e6:8.1f} MB")
    print(f"held in pages, peak              {peak / 1e6:8.1f} MB, {100 * (1 - peak / reserved):.0f} % less")
    print(f"held in pages, mean              {sum(held) / len(held) * block_bytes / 1e6:8.1f} MB")


if __name__ == "__main__":
    main()
