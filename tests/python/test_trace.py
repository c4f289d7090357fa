"""`shoalctl trace`: the next steps of the router and of every rank, on one axis."""

import json
import os
import signal
import subprocess
import threading
import time

import grpc
import pytest

from cluster import BIN, Cluster, admin_pb2, collect

ENDLESS = dict(max_tokens=3000, ignore_eos=True)


@pytest.fixture(scope="module")
def served(models):
    with Cluster(models(ctx=4096), "--max-seq-len", 4096, tp=2) as cluster:
        yield cluster


def trace(cluster, *flags):
    return subprocess.run([str(BIN / "shoalctl"), "trace", "--admin", cluster.admin_address, *map(str, flags)],
                          capture_output=True, text=True, timeout=60)


def test_a_trace_has_the_steps_of_router_and_ranks(served, tmp_path):
    stream = served.stream([1, 2, 3], **ENDLESS)
    next(stream)
    done = trace(served, "--steps", 20, "-o", tmp_path / "trace.json")
    stream.cancel()
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["rank-0", "rank-1", "router"]
    ranks = {worker.pid: worker.worker_id for worker in served.workers()}
    for pid, name in names.items():
        spans = [e for e in events if e["pid"] == pid and e["ph"] == "X"]
        assert len({e["args"]["step"] for e in spans}) == 20
        kinds = {e["name"] for e in spans}
        if name == "router":
            assert kinds == {"plan", "send", "in flight", "commit", "deliver"}
            counts = [e["args"] for e in events if e["ph"] == "C"]
            assert counts == [{"sequences": 1, "tokens": 1}] * 20
            continue
        assert ranks[pid] == name
        steps = {e["args"]["step"]: e for e in spans if e["name"] == "step"}
        assert {"receive", "Embed", "sample", "MatMul head", "reply"} <= kinds and any("AllGather" in kind for kind in kinds)
        assert any(kind.startswith("layer 1 ") for kind in kinds)
        for span in spans:
            step = steps[span["args"]["step"]]
            if span["name"] in ("receive", "reply"):  # before and after it
                assert span["ts"] + span["dur"] <= step["ts"] + 1 or span["ts"] + 1 >= step["ts"] + step["dur"]
                continue
            assert step["ts"] <= span["ts"] + 1 and span["ts"] + span["dur"] <= step["ts"] + step["dur"] + 1
    # The table: ops of all layers in one line.
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["rank-1", "step", "1"] in [line[:3] for line in lines] and "100.0%" in done.stdout
    assert "layer" not in done.stdout and "between steps" in done.stdout
    assert done.stdout.startswith("median batch: sequences 1, tokens 1\n")


def test_an_idle_cluster_ends_a_trace_in_time_with_what_there_is(served):
    done = trace(served, "--steps", 5, "--wait", 0.3)
    assert done.returncode == 0 and "(0 of 5 steps ran in 300ms)" in done.stderr and done.stdout == ""


def begin_idle_trace(cluster):
    """A trace that has begun and has 30 s to wait, and what a second one is told."""
    first = cluster.admin.TraceSteps.future(admin_pb2.TraceStepsRequest(steps=5))
    for _ in range(200):
        done = trace(cluster, "--steps", 5, "--wait", 0.05)
        if done.returncode != 0:
            break
        threading.Event().wait(0.01)
    return first, done.stderr


def trace_again(cluster):
    for _ in range(200):
        done = trace(cluster, "--steps", 5, "--wait", 0.05)
        if done.returncode == 0:
            break
        threading.Event().wait(0.01)
    return done


def test_one_trace_at_a_time_and_one_that_nobody_awaits_ends(served):
    first, refusal = begin_idle_trace(served)
    assert "a trace is being recorded already" in refusal
    first.cancel()
    assert trace_again(served).returncode == 0, "the abandoned one holds the recorder for its 30 s"
    stream = served.stream([1, 2, 3], max_tokens=50, ignore_eos=True)
    assert len(collect(stream)[0][0].ids) == 50


def test_a_rank_that_dies_ends_the_trace_and_the_next_has_its_successor(served):
    first, _ = begin_idle_trace(served)
    os.kill(served.pids()[1], signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(grpc.RpcError) as error:
        first.result()
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE and "rank 1" in error.value.details()
    assert time.monotonic() - begin < 15, "it had 30 s"
    assert trace_again(served).returncode == 0


def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_recorded(served, tmp_path):
    done = trace(served, "-o", tmp_path / "no" / "such" / "folder")
    assert done.returncode == 1 and "cannot write" in done.stderr
    with pytest.raises(grpc.RpcError) as error:
        served.admin.TraceSteps(admin_pb2.TraceStepsRequest(steps=0), timeout=5)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
