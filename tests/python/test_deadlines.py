"""A call's deadline is what its client needs: what cannot make it is refused at once, and told when to come back."""

import time

import grpc
import pytest

from cluster import Cluster, collect, inference_pb2

LONG = [[(7 * i + 3 * j) % 500 for j in range(1500)] for i in range(24)]


@pytest.fixture(scope="module")
def cluster(models):
    with Cluster(models(ctx=2048, layers=8), "--max-batch-tokens", 128, "--max-batch-seqs", 4) as running:
        for i in range(3):  # what steps take is learnt from steps
            running.generate(LONG[i][:700 + i], max_tokens=8, ignore_eos=True)
        yield running


def test_who_cannot_make_it_is_refused_with_the_time_to_come_back(cluster):
    calls = [cluster.start(prompt, max_tokens=4, ignore_eos=True, priority=inference_pb2.PRIORITY_HIGH) for prompt in LONG]
    begin = time.monotonic()
    while cluster.status().queued_requests < 12:
        assert time.monotonic() - begin < 10
    begin = time.monotonic()
    with pytest.raises(grpc.RpcError) as refused:
        cluster.generate([1, 2, 3], timeout=0.5, max_tokens=4)
    assert time.monotonic() - begin < 0.45, "before its deadline"
    error = refused.value
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "the first token would come in about" in error.details() and "retry later" in error.details()
    pushback = int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"])
    assert 1 <= pushback < 60_000
    # Who gives it more time is let in, and those that came before are not disturbed.
    assert len(cluster.generate([1, 2, 3], timeout=60, max_tokens=4, ignore_eos=True).ids) == 4
    assert all(len(call.result().choices[0].token_ids) == 4 for call in calls)


def test_a_prompt_that_takes_longer_than_there_is_time_is_told_so(cluster):
    with pytest.raises(grpc.RpcError) as refused:
        cluster.generate(LONG[20][::-1], timeout=0.02, max_tokens=4)
    assert refused.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)
    if refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:  # else the machine was too busy even to refuse
        assert "which alone take" in refused.value.details()
        assert "grpc-retry-pushback-ms" not in dict(refused.value.trailing_metadata()), "it would be no better later"


def test_status_says_how_well_steps_are_predicted(cluster):
    for i in range(4):
        cluster.generate(LONG[i][:300], max_tokens=100, ignore_eos=True)
    assert 0 < cluster.status().step_prediction_error < 1


def steps_of_a_prompt_beside_a_stream(model, *flags):
    with Cluster(model, "--max-batch-tokens", 512, *flags) as cluster:
        for i in range(6):
            cluster.generate(LONG[i][:100 * i + 40], max_tokens=30, ignore_eos=True)
        stream = cluster.stream([5, 6, 7], max_tokens=400, ignore_eos=True)
        next(stream)
        before = cluster.status().steps
        cluster.generate(LONG[10], max_tokens=1, ignore_eos=True)
        steps = cluster.status().steps - before
        stream.cancel()
        return steps


def test_prompts_beside_a_stream_are_cut_to_the_target(models):
    """Counted in steps, not in seconds: a paced prompt takes many more of them."""
    model = models(ctx=2048, layers=8)
    whole = steps_of_a_prompt_beside_a_stream(model, "--profile", "throughput")
    paced = steps_of_a_prompt_beside_a_stream(model, "--inter-token-target", 0.004)
    assert paced > whole + 10, (paced, whole)
