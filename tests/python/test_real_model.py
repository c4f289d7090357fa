"""SmolLM2-135M-Instruct, served by two ranks."""

import pytest

from cluster import Cluster, collect


@pytest.fixture(scope="module")
def smol(real_model):
    with Cluster(real_model, tp=2) as cluster:
        yield cluster


GOLDEN = {
    "Give me a short greeting.": "Greeting. I'm glad you're here.",
    "Name the largest planet.": "The largest planet in our solar system is Neptune, but it's actually a planet in its own "
                                "right. It's a gas giant, and it's the eighth planet from the Sun.",
}


@pytest.mark.parametrize("prompt", GOLDEN)
def test_golden_greedy_text(smol, prompt):
    answer = smol.generate([("user", prompt)], max_tokens=64)
    assert answer.text == GOLDEN[prompt]
    assert answer.finish_reason == "stop_token"


def test_one_rank_gives_the_same_answer(smol, real_model):
    options = dict(max_tokens=40, temperature=0.8, top_p=0.9, seed=7)
    prompt = [("user", "Tell me a story about a lighthouse.")]
    two = smol.generate(prompt, **options)
    streamed, _ = collect(smol.stream(prompt, **options))
    with Cluster(real_model, threads=2) as alone:
        one = alone.generate(prompt, **options)
    assert one.ids == two.ids == streamed[0].ids


def test_a_long_shared_prefix_is_served_from_the_cache(smol):
    prefix = "The lighthouse keeper wrote in his book every night. " * 45
    first = smol.generate(prefix + "Then", max_tokens=1).response
    second = smol.generate(prefix + "Now", max_tokens=1).response
    assert first.usage.prompt_tokens > 400
    assert second.usage.cached_prompt_tokens >= first.usage.prompt_tokens - 32
