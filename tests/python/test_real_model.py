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


def test_a_shared_prefix_makes_the_first_token_come_sooner(smol):
    ratios = []
    for i in range(3):
        prefix = [(7 * j + 1001 * i) % 40000 + 100 for j in range(500)]
        first = smol.generate(prefix + [20, 30, 40], max_tokens=1).response
        second = smol.generate(prefix + [50, 60, 70], max_tokens=1).response
        assert first.usage.cached_prompt_tokens == 0 and second.usage.cached_prompt_tokens == 496
        cold, warm = (r.timings.time_to_first_token.ToNanoseconds() for r in (first, second))
        ratios.append(cold / warm)
    # One of three: the machine may be busy with other things in the others.
    assert max(ratios) >= 5, ratios
