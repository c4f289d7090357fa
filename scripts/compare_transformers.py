#!/usr/bin/env python3
"""Shoal's logits beside transformers', on tiny random models of every architecture.

    PYTHON scripts/compare_transformers.py [--only NAME] [--tp N ...]

Run by hand, never by CI. PYTHON needs torch and transformers 5 (CPU is enough) beside the packages of
tests/python/requirements.txt; build/release and .venv/proto must be there (scripts/build.sh, scripts/python_env.sh).

transformers makes each model from its configuration; the script draws the weights from a fixed seed, writes the
same ones as GGUF in F32, serves the file with an f32 KV cache and asks for the logprobs of 160 prompt tokens and of 32
greedy ones. An error is the difference of a logprob (the chosen token and the 20 best of each position) divided by the
position's largest logit, by magnitude. Prints a table; ends with 1 where an error is over 1e-4.
"""

import argparse
import datetime
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import torch  # noqa: E402
import transformers  # noqa: E402

import tiny_models  # noqa: E402
from cluster import Cluster  # noqa: E402

BOUND = 1e-4
NUM_PROMPT, NUM_GREEDY = 160, 32
PROMPT = [(i * 37 + i * i) % 500 for i in range(1, NUM_PROMPT + 1)]
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip

# name -> (configuration and model of transformers, its own options, options of the GGUF file)
MODELS = {
    "llama": ("Llama", {}, {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}, {"tied": True}),
    "llama, 9 heads": ("Llama", {}, {"heads": 9, "kv_heads": 3, "embd": 288, "ffn": 768}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}, {"rope_freqs": True}),
    "mistral, own head size": ("Mistral", {"sliding_window": None}, {"head_dim": 48}),
    "qwen2": ("Qwen2", {}, {"arch": "qwen2"}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}, {"arch": "qwen2", "tied": True}),
    "qwen3": ("Qwen3", {}, {"arch": "qwen3"}),
}


# --- The model in transformers --------------------------------------------------------------------


def make_model(family, options, c):
    """A float32 model of transformers with the sizes of the tiny_models.Config `c`."""
    config = getattr(transformers, family + "Config")(**{
        "hidden_size": c.embd,
        "intermediate_size": c.ffn,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab,
        "max_position_embeddings": c.ctx,
        "rms_norm_eps": 1e-5 if c.arch == "llama" else 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_base},
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
        "dtype": "float32",
    } | options)  # fmt: skip
    model = getattr(transformers, family + "ForCausalLM")(config).float().eval()
    draw_weights(model, c.seed)
    return model


@torch.no_grad()
def draw_weights(model, seed):
    """Random weights that keep activations near 1 and logits a few units apart."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 2:
            weight.copy_(noise * (1.5 / weight.shape[1] ** 0.5))
        elif name.endswith("bias"):
            weight.copy_(noise * 0.5)
        else:
            weight.copy_(1 + noise * 0.1)


@torch.no_grad()
def expected_logits(model, tokens):
    """[tokens, vocabulary], float64."""
    return model(torch.tensor([tokens])).logits[0].double()


# --- The same weights as GGUF -----------------------------------------------------------------------

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def gguf_name(name):
    """model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight"""
    base, _, kind = name.rpartition(".")
    if base.startswith("model.layers."):
        layer, _, part = base.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"
    return f"{GGUF_NAMES[base]}.{kind}"


def adjacent_pairs(weight, heads):
    """Reorders rows of q or k from halves, which transformers rotates, to adjacent pairs, which GGUF's llama has."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def write_gguf(path, model, c):
    writer = tiny_models.GgufWriter()
    tiny_models.add_hyperparameters(writer, c)
    tiny_models.add_bpe_vocabulary(writer, c.vocab, c.separate_eot)

    def add(name, weight):
        writer.tensor(name, tuple(weight.shape), "F32", weight.detach().contiguous().numpy().astype("<f4").tobytes())

    for name, weight in model.named_parameters():
        if c.arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            weight = adjacent_pairs(weight, c.heads if ".q_proj." in name else c.kv_heads)
        add(gguf_name(name), weight)
    if c.rope_freqs:
        add("rope_freqs.weight", frequency_divisors(model, c))
    writer.write(path)


def frequency_divisors(model, c):
    """What transformers' scaled frequencies are divided by: [head_dim / 2]."""
    plain = c.rope_base ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
    return (plain / model.model.rotary_emb.inv_freq.double()).float()


# --- The comparison ---------------------------------------------------------------------------------


def served_logprobs(cluster):
    """The prompt with its greedy continuation, and the logprobs {id: logprob} of each token after the first."""
    choice = cluster.generate(
        PROMPT, max_tokens=NUM_GREEDY, ignore_eos=True, echo=True, top_logprobs=20).choice
    ids = list(choice.token_ids)
    positions = [*choice.prompt_logprobs[1:], *choice.logprobs[-NUM_GREEDY:]]
    tokens = PROMPT + ids[-NUM_GREEDY:]
    if len(positions) != len(tokens) - 1 or [p.chosen.token_id for p in positions] != tokens[1:]:
        sys.exit(f"error: {len(positions)} logprobs for {len(tokens)} tokens, or of other tokens")
    return tokens, [{t.token_id: t.logprob for t in [p.chosen, *p.top]} for p in positions]


def errors(model, tokens, served):
    """The largest error of each position, and how many greedy tokens are transformers' best ones too."""
    logits = expected_logits(model, tokens)[:-1]
    expected = torch.log_softmax(logits, dim=-1)
    scale = logits.abs().amax(dim=-1)
    worst = [
        max(abs(logprob - expected[i, token].item()) for token, logprob in best.items()) / scale[i].item()
        for i, best in enumerate(served)
    ]
    first = len(PROMPT) - 1
    same = (logits[first:].argmax(dim=-1) == torch.tensor(tokens[first + 1:])).sum().item()
    return worst, same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--tp", type=int, nargs="+", default=[1, 2], help="numbers of ranks (default: 1 2)")
    args = parser.parse_args()
    print(f"{datetime.date.today()}, transformers {transformers.__version__}, torch {torch.__version__}\n")
    print("| model | ranks | prompt: largest error | greedy: largest error | same greedy tokens |")
    print("| --- | --- | --- | --- | --- |")
    worst_of_all = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in [args.only] if args.only else MODELS:
            family, options, sizes = MODELS[name]
            config = tiny_models.Config(**sizes)
            model = make_model(family, options, config)
            path = pathlib.Path(folder) / "model.gguf"
            write_gguf(path, model, config)
            for tp in args.tp:
                with Cluster(path, "--kv-cache-dtype", "f32", tp=tp) as cluster:
                    tokens, served = served_logprobs(cluster)
                worst, same = errors(model, tokens, served)
                prompt, greedy = max(worst[:NUM_PROMPT - 1]), max(worst[NUM_PROMPT - 1:])
                worst_of_all = max(worst_of_all, prompt, greedy)
                print(f"| {name} | {tp} | {prompt:.1e} | {greedy:.1e} | {same} of {NUM_GREEDY} |", flush=True)
    print(f"\nLargest error {worst_of_all:.1e}, bound {BOUND:.0e}")
    return worst_of_all > BOUND


if __name__ == "__main__":
    sys.exit(main())
