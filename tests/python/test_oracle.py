"""The served model against an independent numpy forward pass, through prompt logprobs."""

import numpy as np
import pytest

import oracle
from cluster import Cluster

TOKENS = [(i * 37 + i * i) % 500 for i in range(1, 97)]

MODELS = {
    "llama": dict(),
    "llama-rope-freqs-tied": dict(rope_freqs=True, tied=True),
    "llama-9-heads": dict(heads=9, kv_heads=3, embd=288, ffn=768),
    "llama-spm": dict(spm=True),
    "qwen2": dict(arch="qwen2"),
    "qwen3": dict(arch="qwen3"),
}


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def served_logprobs(cluster, tokens):
    """[positions - 1, ...] of the logprob of each next token, and the best 20 as {id: logprob}."""
    choice = cluster.generate(tokens, max_tokens=1, echo=True, top_logprobs=20).choice
    assert len(choice.prompt_logprobs) == len(tokens)
    chosen = [p.chosen.logprob for p in choice.prompt_logprobs[1:]]
    top = [{t.token_id: t.logprob for t in p.top} for p in choice.prompt_logprobs[1:]]
    return chosen, top


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2])
def test_logits_equal_the_numpy_forward_pass(models, name, tp):
    path = models(**MODELS[name])
    expected = oracle.Model(path).logits(TOKENS)
    scale = np.abs(expected).max(axis=-1)
    want = log_softmax(expected)
    with Cluster(path, "--kv-cache-dtype", "f32", tp=tp) as cluster:
        chosen, top = served_logprobs(cluster, TOKENS)
    for position, following in enumerate(TOKENS[1:]):
        tolerance = 2e-4 * scale[position]  # 1e-4 of the largest logit, twice: numerator and sum
        assert abs(chosen[position] - want[position, following]) <= tolerance, f"position {position}"
        best = set(np.argsort(-want[position])[:20])
        for token, logprob in top[position].items():
            assert abs(logprob - want[position, token]) <= tolerance
        assert len(best & set(top[position])) >= 18, f"position {position}: other tokens are best"


@pytest.mark.parametrize("weights", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q4_K_M"])
def test_every_weight_type_is_near_the_oracle(models, weights):
    # Activations are rounded to 8 bits in products with quantised weights: the bound is of that size.
    path = models(type=weights, embd=256, ffn=768)
    want = log_softmax(oracle.Model(path).logits(TOKENS[:48]))
    with Cluster(path, "--kv-cache-dtype", "f32") as cluster:
        chosen, _ = served_logprobs(cluster, TOKENS[:48])
    errors = np.array([chosen[p] - want[p, t] for p, t in enumerate(TOKENS[1:48])])
    bound = 1e-3 if weights in ("F16", "BF16") else 0.25
    assert np.abs(errors).max() <= bound
    spread = np.std([want[p, t] for p, t in enumerate(TOKENS[1:48])])
    assert spread > 5 * np.sqrt(np.mean(errors**2)), "the logprobs say nothing about the model"


def test_greedy_tokens_equal_the_oracles(models):
    path = models()
    expected = oracle.Model(path).generate(TOKENS[:10], 24)
    with Cluster(path, "--kv-cache-dtype", "f32", tp=2) as cluster:
        answer = cluster.generate(TOKENS[:10], max_tokens=24, ignore_eos=True)
    assert answer.ids == list(expected)[-24:]
