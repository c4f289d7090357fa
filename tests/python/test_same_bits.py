"""Promise 1: prompt, parameters and seed fix the output, whatever else happens.

On a real model, by hand: .venv/bin/python -m pytest tests/python/test_same_bits.py --same-bits-model FILE.gguf
"""

import random

import pytest

from cluster import Cluster, collect

PROMPTS = [[(7 * i + 11 * j + i * j) % 500 for j in range(1, 20 + 5 * i)] for i in range(6)]
GREEDY = dict(max_tokens=24, ignore_eos=True)
SEEDED = dict(max_tokens=24, ignore_eos=True, temperature=0.9, top_p=0.95, top_k=50, seed=1234,
              repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1)
# As SmolLM2: heads that two ranks share unevenly, and a KV head that both touch.
SHAPE = dict(heads=9, kv_heads=3, embd=288, ffn=768, type="Q4_1", ctx=512, layers=4)


def answers(cluster, prompts=PROMPTS, max_tokens=24):
    """Ids and logprobs of every prompt, greedy and seeded, one after the other."""
    result = []
    for prompt in prompts:
        for options in (GREEDY, SEEDED):
            answer = cluster.generate(prompt, top_logprobs=2, **{**options, "max_tokens": max_tokens})
            result.append((answer.ids, [p.chosen.logprob for p in answer.choice.logprobs]))
    return result


@pytest.fixture(scope="module")
def model(models, request):
    return request.config.getoption("--same-bits-model") or models(**SHAPE)


@pytest.fixture(scope="module")
def solo(model):
    """Every request alone: one rank, one thread, no prefix cache."""
    with Cluster(model, "--no-prefix-cache") as cluster:
        return answers(cluster)


VARIANTS = {
    "tp=2": dict(tp=2),
    "tp=3": dict(tp=3),
    "tp=4": dict(tp=4),
    "pp=2": dict(pp=2),
    "pp=3": dict(pp=3),
    "tp=2 pp=2": dict(tp=2, pp=2),
    "tp=3 pp=2": dict(tp=3, pp=2),
    "stages of 1 and 3": dict(pp=2, flags=["--stage-layers", "1,3", "--max-plans-in-flight", 3]),
    "pp=2, chunks of 7": dict(pp=2, flags=["--max-prefill-chunk", 7, "--max-plans-in-flight", 1]),
    "2 threads": dict(threads=2),
    "chunks of 1": dict(flags=["--max-prefill-chunk", 1]),
    "chunks of 7": dict(flags=["--max-prefill-chunk", 7]),
    "chunks of 16": dict(flags=["--max-prefill-chunk", 16]),
    "avx2": dict(flags=["--isa", "avx2"]),
    "portable": dict(flags=["--isa", "portable"]),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_layout_does_not_change_a_bit(model, solo, variant, request):
    options = dict(VARIANTS[variant])
    with Cluster(model, *options.pop("flags", []), **options) as cluster:
        if variant == "portable" and request.config.getoption("--same-bits-model"):  # too slow for all of it
            few = answers(cluster, PROMPTS[:2], max_tokens=6)
            assert few == [(ids[:6], logprobs[:6]) for ids, logprobs in solo[:4]]
        else:
            assert answers(cluster) == solo


@pytest.mark.parametrize("layout", [dict(tp=2), dict(pp=3)], ids=["tp=2", "pp=3"])
def test_thirty_one_neighbours_do_not_change_a_bit(model, solo, layout):
    rng = random.Random(5)
    with Cluster(model, "--max-batch-tokens", 64, **layout) as cluster:
        noise = [cluster.start([rng.randrange(500) for _ in range(rng.randrange(3, 90))], temperature=1.0,
                               seed=i, max_tokens=rng.randrange(20, 60), ignore_eos=True) for i in range(31)]
        assert answers(cluster, PROMPTS[:3]) == solo[:6]
        for other in noise:
            other.result()


def test_identical_requests_at_once_are_bit_equal(model):
    with Cluster(model, tp=2) as cluster:
        calls = [cluster.start(PROMPTS[1], top_logprobs=1, **SEEDED) for _ in range(48)]
        results = {(tuple(c.token_ids), tuple(p.chosen.logprob for p in c.logprobs))
                   for call in calls for c in call.result().choices}
    assert len(results) == 1


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48])
def test_cache_hit_does_not_change_a_bit(tiny, length):
    prompt = [(3 * i + length) % 500 for i in range(length)]
    first = tiny.generate(prompt, echo=True, top_logprobs=3, **GREEDY)
    again = [tiny.generate(prompt, echo=True, top_logprobs=3, **GREEDY) for _ in range(2)]
    plain = tiny.generate(prompt, **GREEDY)
    assert plain.ids == first.ids
    assert len(first.choice.prompt_logprobs) == length
    for answer in again:
        assert answer.ids == first.ids
        assert answer.choice.prompt_logprobs == first.choice.prompt_logprobs
        assert answer.choice.logprobs == first.choice.logprobs
    # Without prompt logprobs the cache may serve all whole blocks before the last prompt token.
    assert plain.response.usage.cached_prompt_tokens == (length - 1) // 16 * 16


@pytest.mark.parametrize("layout", [dict(tp=2), dict(pp=2), dict(pp=3)], ids=["tp=2", "pp=2", "pp=3"])
def test_preemption_does_not_change_a_bit(model, solo, layout):
    # Room for about two sequences of 60 tokens: six at once must preempt each other.
    with Cluster(model, "--kv-cache-bytes", 1 << 26, **layout) as cluster:
        # A rank with more layers has fewer blocks: the fewest are the group's.
        largest = max(worker.kv_cache_bytes for worker in cluster.workers())
        block_bytes = largest // cluster.status().blocks_total
    flags = ["--kv-cache-bytes", 12 * block_bytes, "--max-seq-len", 128]
    with Cluster(model, *flags, **layout) as cluster:
        assert cluster.status().blocks_total == 12
        calls = [cluster.start(prompt, **GREEDY) for prompt in PROMPTS]
        ids = [list(call.result().choices[0].token_ids) for call in calls]
        assert cluster.status().preemptions > 0
    assert ids == [answer[0] for answer in solo[::2]]


def test_stream_equals_unary(tiny):
    for prompt in PROMPTS[:3]:
        for options in (GREEDY, SEEDED):
            unary = tiny.generate(prompt, **options)
            streamed, messages = collect(tiny.stream(prompt, **options))
            assert streamed[0].ids == unary.ids
            assert streamed[0].text == unary.text
            assert streamed[0].finish_reason == unary.finish_reason
            assert messages[-1].usage.completion_tokens == unary.response.usage.completion_tokens
            assert messages[-1].usage.prompt_tokens == unary.response.usage.prompt_tokens


def test_choices_of_n_equal_their_own_seeds(tiny):
    together = tiny.generate_all(PROMPTS[2], n=4, **SEEDED)
    again = tiny.generate_all(PROMPTS[2], n=4, **SEEDED)
    assert [a.ids for a in together] == [a.ids for a in again]
    assert len({tuple(a.ids) for a in together}) > 1
    assert together[0].ids == tiny.generate(PROMPTS[2], **SEEDED).ids


def test_broken_stream_resumes_with_the_same_continuation(tiny):
    whole = tiny.generate(PROMPTS[0], **SEEDED)
    rest = tiny.generate(PROMPTS[0], generated_token_ids=whole.ids[:9], **SEEDED)
    assert rest.ids == whole.ids[9:]
