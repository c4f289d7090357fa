"""`serve --record` and `shoalctl replay`: what a router decided is what it decides again."""

import os
import re
import signal
import stat
import subprocess

import grpc
import pytest

from cluster import BIN, Cluster, collect, request

OPTIONS = dict(max_tokens=60, ignore_eos=True, temperature=0.8, seed=11)
PROMPTS = [[(7 * i + 3 * j) % 500 for j in range(1, 30 + 5 * i)] for i in range(6)]


def replay(path):
    return subprocess.run([str(BIN / "shoalctl"), "replay", str(path)], capture_output=True, text=True, timeout=60)


def counts(output):
    return [int(n) for n in re.match(r"replayed (\d+) records: (\d+) requests, (\d+) plans", output).groups()]


@pytest.mark.parametrize("layout", [dict(tp=2), dict(pp=2)], ids=["tp=2", "pp=2"])
def test_a_history_with_a_killed_rank_replays(models, tmp_path, layout):
    path = tmp_path / "history"
    with Cluster(models(), "--record", path, "--max-plans-in-flight", 2, **layout) as cluster:
        streams = [cluster.stream(prompt, n=2, **OPTIONS) for prompt in PROMPTS]
        firsts = [next(stream) for stream in streams]
        os.kill(cluster.pids()[1], signal.SIGKILL)
        streams[0].cancel()
        for first, stream in zip(firsts[1:], streams[1:]):
            collect([first, *stream])
        with pytest.raises(grpc.RpcError):
            cluster.stub.Generate(request(PROMPTS[0], **OPTIONS), timeout=0.001)
        cluster.generate(PROMPTS[1], top_logprobs=2, echo=True, **OPTIONS)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    done = replay(path)
    assert done.returncode == 0, done.stderr
    records, requests, plans = counts(done.stdout)
    assert requests >= 7 and plans > 60 and records > 2 * plans
    assert "every plan is as recorded" in done.stdout


def test_what_a_killed_router_has_recorded_replays(models, tmp_path):
    path = tmp_path / "history"
    cluster = Cluster(models(), "--record", path)
    try:
        stream = cluster.stream(PROMPTS[0], **OPTIONS)
        for _ in range(5):
            next(stream)
        children = subprocess.run(["pgrep", "-P", str(cluster.process.pid), "shoal-router"], capture_output=True,
                                  text=True).stdout.split()
        os.kill(int(children[0]), signal.SIGKILL)
    finally:
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.process.wait(timeout=20) != 0
    done = replay(path)
    assert done.returncode == 0, done.stderr
    assert counts(done.stdout)[2] >= 5
    path.write_bytes(path.read_bytes()[:-3])
    done = replay(path)
    assert done.returncode == 0 and "in the middle of a record" in done.stdout


def test_a_recording_ends_at_its_limit_and_says_so(models, tmp_path):
    path = tmp_path / "history"
    with Cluster(models(), "--record", path, "--record-limit", "4KiB") as cluster:
        cluster.generate(PROMPTS[0], **OPTIONS)
        assert path.stat().st_size <= 4096
        assert cluster.log.count("ends at --record-limit, 4096 bytes") == 1
    assert replay(path).returncode == 0


def test_what_is_no_history_is_refused(models, tmp_path):
    done = replay(models())
    assert done.returncode == 1 and "is no history" in done.stderr and done.stdout == ""
    assert "cannot read" in replay(tmp_path / "none").stderr
    with pytest.raises(RuntimeError, match="cannot record to"):
        Cluster(models(), "--record", tmp_path / "none" / "history")
