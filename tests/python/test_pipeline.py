"""Pipeline stages with real processes: they overlap, any of them may die or hang, and none is left behind."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

from cluster import BIN, Cluster, collect
from test_failure import LONG, PROMPTS, gone

DEEP = dict(layers=7)


@pytest.fixture(scope="module")
def model(models):
    return models(**DEEP)


@pytest.fixture(scope="module")
def want(model):
    with Cluster(model) as cluster:
        return [cluster.generate(prompt, **LONG).ids for prompt in PROMPTS]


def streams_through(cluster, disturb):
    """The tokens of all prompts at once, with `disturb` called when every stream has begun."""
    streams = [cluster.stream(prompt, **LONG) for prompt in PROMPTS]
    firsts = [next(stream) for stream in streams]
    disturb()
    return [collect([first, *stream])[0][0].ids for first, stream in zip(firsts, streams)]


@pytest.mark.parametrize("layers", [5, 6, 7])
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_layers_that_do_not_divide_evenly(models, layers, pp):
    model = models(layers=layers, tied=layers == 6)
    with Cluster(model) as alone:
        expected = [alone.generate(prompt, **LONG).ids for prompt in PROMPTS[:2]]
    with Cluster(model, pp=pp) as cluster:
        assert [cluster.generate(prompt, **LONG).ids for prompt in PROMPTS[:2]] == expected
        assert cluster.status().pipeline_parallel_size == pp


def test_what_the_last_stage_knows_of_a_prompt_is_what_one_rank_knows(model):
    """More rows with output than the head computes at once, choices, a stop string, and both again from the cache."""
    prompt = [(5 * i) % 500 for i in range(120)]

    def answers(cluster):
        echo = cluster.generate(prompt, echo=True, top_logprobs=3, max_tokens=12, ignore_eos=True).choice
        choices = cluster.generate_all(prompt, n=3, temperature=0.9, seed=5, max_tokens=20, ignore_eos=True)
        return [str(echo.prompt_logprobs), str(echo.logprobs), *[answer.ids for answer in choices]]

    with Cluster(model) as alone, Cluster(model, tp=2, pp=3) as cluster:
        want = answers(alone)
        assert answers(cluster) == want and answers(cluster) == want


def test_ranks_of_stages_take_what_the_plan_says(model):
    flags = ["--kv-cache-bytes", "8MiB"]
    done = subprocess.run([BIN / "shoalctl", "plan", model, "--pp", "3", "--tp", "2", *flags, "-o", "json"],
                          capture_output=True, text=True, timeout=20, check=True)
    ranks = json.loads(done.stdout)["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(6))
    with Cluster(model, *flags, tp=2, pp=3) as cluster:
        for planned, worker in zip(ranks, cluster.workers(), strict=True):
            assert abs(planned["weight_bytes"] - worker.weight_bytes) <= 0.03 * worker.weight_bytes
            assert planned["kv_cache_bytes"] == worker.kv_cache_bytes


@pytest.mark.parametrize("flags, words", [
    (["--pp", "8"], "7 layers"),
    (["--pp", "2", "--stage-layers", "3,3"], "the model has 7 layers for 2 stages"),
    (["--pp", "2", "--stage-layers", "7,0"], "the model has 7 layers for 2 stages"),
    (["--pp", "2", "--stage-layers", "7"], "--stage-layers has 1 numbers, but --pipeline-parallel-size is 2"),
    (["--pp", "2", "--max-plans-in-flight", "4"], "with 2 stages at most 3"),
    (["--max-plans-in-flight", "3"], "with 1 stage at most 2"),
    (["--pp", "17"], "--pp"),
])
def test_what_cannot_be_is_refused_by_name(model, flags, words):
    done = subprocess.run([BIN / "shoalctl", "serve", model, *flags, "--listen", "127.0.0.1:0", "--admin-listen",
                           "127.0.0.1:0"], capture_output=True, text=True, timeout=30)
    assert done.returncode != 0 and words in done.stderr, done.stderr


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_streams_outlive_a_killed_stage(model, want, victim):
    with Cluster(model, pp=3) as cluster:
        before = cluster.pids()
        assert streams_through(cluster, lambda: os.kill(before[victim], signal.SIGKILL)) == want
        after = cluster.pids()
        assert [a == b for a, b in zip(after, before)] == [rank != victim for rank in range(3)]


@pytest.mark.parametrize("victim", range(4))
def test_streams_outlive_a_killed_rank_of_shards_and_stages(model, want, victim):
    with Cluster(model, tp=2, pp=2) as cluster:
        assert streams_through(cluster, lambda: os.kill(cluster.pids()[victim], signal.SIGKILL)) == want


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stage_that_hangs_is_named_and_replaced(model, want, victim):
    with Cluster(model, "--step-timeout", 1, pp=2) as cluster:
        before = cluster.pids()
        assert streams_through(cluster, lambda: os.kill(before[victim], signal.SIGSTOP)) == want
        assert gone(before[victim])
        assert f"rank {victim} hangs: killing process {before[victim]}" in cluster.log


def test_the_bubble_is_reported(model):
    with Cluster(model, pp=2) as cluster:
        for stream in [cluster.stream(prompt, **LONG) for prompt in PROMPTS]:
            collect(stream)
        step_time = cluster.status().step_time.ToTimedelta()
        busy = [worker.compute_time.ToTimedelta() / step_time for worker in cluster.workers()]
        assert all(0 < share <= 1.02 for share in busy), busy
        table = subprocess.run([BIN / "shoalctl", "status", "--admin", cluster.admin_address], capture_output=True,
                               text=True, timeout=20, check=True).stdout
        assert "BUSY" in table and "step time" in table and all(f"{share:.0%}" in table for share in busy)


# A stage that waits for another one must not hold the end up.
@pytest.mark.parametrize("moment", [0, 0.01, 0.05])
def test_a_deep_pipeline_ends_with_streams_under_way(model, moment):
    cluster = Cluster(model, "--drain-timeout", 0, pp=7)
    streams = [cluster.stream(prompt, **LONG) for prompt in PROMPTS]
    next(streams[0])
    time.sleep(moment)
    pids = cluster.pids()
    begin = time.monotonic()
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.process.wait(timeout=20) == 1  # since requests were ended
    assert time.monotonic() - begin < 5
    assert "requests were ended that outlasted --drain-timeout" in cluster.log
    assert all(gone(pid) for pid in pids)


def test_clients_that_come_and_go_leave_nothing(model, want):
    rng = random.Random(3)
    with Cluster(model, "--max-batch-seqs", 6, tp=2, pp=2) as cluster:
        for _ in range(3):
            calls = [cluster.stream(rng.choice(PROMPTS), **LONG) for _ in range(24)]
            for call in calls[::2]:
                next(call)
            for call in calls:
                call.cancel()
        assert [cluster.generate(prompt, **LONG).ids for prompt in PROMPTS] == want
        status = cluster.status()
        assert status.running_requests == 0 and status.blocks_held == 0 and status.epoch == 1
