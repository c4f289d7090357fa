#!/usr/bin/env python3
"""How long streams pause when ranks die: .venv/bin/python scripts/measure_recovery.py MODEL [--rounds N] [serve flags]

Each round streams from 16 clients, kills a random rank when all have some tokens, and reads from the router's log when the
death was seen, when the group was ready again and how fast the replay ran. Checks that all tokens are those of an undisturbed run.
"""

import argparse
import datetime
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

from cluster import Cluster, collect  # noqa: E402

CLIENTS = 16
OPTIONS = dict(max_tokens=200, ignore_eos=True, temperature=0.8, seed=3)


def log_times(log, pattern):
    """When lines that match were written, as seconds since the epoch."""
    times = []
    for line in log.splitlines():
        match = re.match(r".(\d{8} \d\d:\d\d:\d\d\.\d{6}) ", line)
        if match and re.search(pattern, line):
            times.append(datetime.datetime.strptime(match[1], "%Y%m%d %H:%M:%S.%f").timestamp())
    return times


def first_after(times, moment):
    return min(t for t in times if t >= moment - 1e-4)


def prefill_speed(cluster, prompts):
    """Prompt tokens a second with nothing else to do, from 16 clients."""
    begin = time.time()
    calls = [cluster.start(prompt, max_tokens=1, ignore_eos=True, cache_salt="fresh") for prompt in prompts]
    for call in calls:
        call.result()
    return sum(map(len, prompts)) / (time.time() - begin)


def run_round(cluster, prompts, want):
    streams = [cluster.stream(prompt, **OPTIONS) for prompt in prompts]
    messages = [[next(stream)] for stream in streams]
    time.sleep(random.uniform(0.3, 0.6))
    victim = random.choice(cluster.workers())
    killed = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    for stream, got in zip(streams, messages):
        got.extend(stream)
    assert [collect(got)[0][0].ids for got in messages] == want, "other tokens than undisturbed"
    lost = first_after(log_times(cluster.log, "the worker group is lost"), killed)
    ready = first_after(log_times(cluster.log, "the worker group is ready"), killed)
    return dict(seen=lost - killed, ready=ready - killed)


def replay_speed(cluster, prompts):
    """Tokens a second of a replay: from the group's return until nothing more is computed of the logs."""
    streams = [cluster.stream(prompt, **OPTIONS) for prompt in prompts]
    for stream in streams:
        next(stream)
    time.sleep(0.5)
    before = cluster.status()
    killed = time.time()
    os.kill(random.choice(cluster.workers()).pid, signal.SIGKILL)
    while (status := cluster.status()).epoch == before.epoch or not status.ready:
        time.sleep(0.001)
    last, since = before.prompt_tokens, time.time()
    while last == before.prompt_tokens or time.time() - since < 0.25:
        now = cluster.status().prompt_tokens
        if now != last:
            last, since = now, time.time()
        time.sleep(0.001)
    for stream in streams:
        stream.cancel()
    ready = first_after(log_times(cluster.log, "the worker group is ready"), killed)
    return (last - before.prompt_tokens) / (since - ready)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=1)
    args, flags = parser.parse_known_args()
    rng = random.Random(1)
    prompts = [[rng.randrange(1000, 40000) for _ in range(rng.randrange(100, 400))] for _ in range(CLIENTS)]
    with Cluster(args.model, *flags, tp=args.tp, pp=args.pp) as cluster:
        want = [collect(s)[0][0].ids for s in [cluster.stream(prompt, **OPTIONS) for prompt in prompts]]
        rounds = [run_round(cluster, prompts, want) for _ in range(args.rounds)]
        prefill = statistics.median(
            prefill_speed(cluster, [[rng.randrange(1000, 40000) for _ in prompt] for prompt in prompts]) for _ in range(5))
        replay = statistics.median(replay_speed(cluster, prompts) for _ in range(5))
    for name in "seen", "ready":
        values = [1000 * entry[name] for entry in rounds]
        print(f"{name:8} ms after the kill: median {statistics.median(values):.0f}, "
              f"{min(values):.0f} to {max(values):.0f}")
    print(f"prefill {prefill:.0f} tokens/s, replay {replay:.0f} tokens/s, ratio {replay / prefill:.2f}")


if __name__ == "__main__":
    main()
