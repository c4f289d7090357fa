#!/usr/bin/env python3
"""Greedy continuations of 8 prompts beside llama.cpp's, on the same weights.

    PYTHON scripts/compare_greedy.py MODEL [--tp N] [--tokens N]

Run by hand, never by CI. PYTHON needs llama-cpp-python beside grpcio and protobuf (tests/python/requirements.txt);
build/release and .venv/proto must be there (scripts/build.sh, scripts/python_env.sh), and room for MODEL as F32 in the
temporary folder. Both sides have an f16 KV cache.

Serves the model and generates greedily, ends of turns ignored. llama.cpp gets the same ids (its own tokenizer must
agree) and follows Shoal's tokens one by one, so that every position can be compared: up to the first difference this is
its own greedy text. Where its best token is another one, the gap between Shoal's two best logprobs is shown.

Twice: with MODEL as it is, and with its weights unpacked to F32 by llama.cpp. With quantised weights both sides round
activations to 8 bits, each after sums in its own order: what they compute differs by that noise. Unpacked, they
compute the same, and a first difference must lie where the gap is within 0.1 nat, else the script ends with 1.
"""

import argparse
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import llama_cpp  # noqa: E402
import numpy as np  # noqa: E402

from cluster import Cluster  # noqa: E402
from shoal.v1 import inference_pb2  # noqa: E402

BOUND = 0.1  # nat
CONTEXT = 1024
PROMPTS = [  # text is continued, a (role, content) is a chat
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a lower temperature on a mountain because",
    ("user", "Explain in a few sentences why the sky is blue."),
    ("user", "Write a short poem about the ocean."),
    ("user", "List five uses of a paper clip."),
    ("user", "What is the difference between a list and a tuple in Python?"),
]


# --- llama.cpp --------------------------------------------------------------------------------------


class Peer:
    """llama.cpp on one thread. Its extra buffer types are off: its AMX path crashes on some machines."""

    def __init__(self, path):
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = False
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            sys.exit(f"error: llama.cpp cannot load {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def close(self):
        llama_cpp.llama_model_free(self.model)

    def tokenize(self, text, special):
        """special: parse control tokens in the text; a BOS only if the model wants one and the text is no chat."""
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, len(ids), not special, special)
        return list(ids[:count])

    def logits_after(self, prompt, tokens):
        """Yields [vocabulary] after the prompt, then after each of the tokens but the last."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = CONTEXT
        params.n_threads = params.n_threads_batch = 1
        context = llama_cpp.llama_init_from_model(self.model, params)
        for step in [prompt, *([token] for token in tokens[:-1])]:
            ids = (llama_cpp.llama_token * len(step))(*step)
            if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, len(ids))) != 0:
                sys.exit("error: llama_decode failed")
            logits = llama_cpp.llama_get_logits_ith(context, -1)
            yield np.ctypeslib.as_array(logits, shape=(self.vocab_size,))
        llama_cpp.llama_free(context)


def unpack(source, target):
    """Writes the model with all its matrices as F32."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_ALL_F32
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params) != 0:
        sys.exit(f"error: llama.cpp cannot unpack {source}")


@llama_cpp.llama_log_callback
def silent(level, text, data):
    pass


# --- The comparison ---------------------------------------------------------------------------------


def prompt_ids(cluster, peer, prompt):
    if isinstance(prompt, str):
        ids = cluster.stub.Tokenize(inference_pb2.TokenizeRequest(text=prompt)).ids
        peer_ids = peer.tokenize(prompt, special=False)
    else:
        request = inference_pb2.ApplyChatTemplateRequest()
        request.chat.messages.add(role=prompt[0], content=prompt[1])
        response = cluster.stub.ApplyChatTemplate(request)
        ids, peer_ids = response.ids, peer.tokenize(response.prompt, special=True)
    if list(ids) != peer_ids:
        sys.exit(f"error: ids of {prompt!r}: Shoal {list(ids)}, llama.cpp {peer_ids}")
    return peer_ids


def differences(cluster, peer, prompt, num_tokens):
    """[(position, gap of Shoal's two best logprobs, llama.cpp's best is Shoal's second best)]"""
    ids = prompt_ids(cluster, peer, prompt)
    answer = cluster.generate(ids, max_tokens=num_tokens, ignore_eos=True, top_logprobs=2)
    found = []
    for position, logits in enumerate(peer.logits_after(ids, answer.ids)):
        best = int(logits.argmax())
        if best != answer.ids[position]:
            first, second = answer.choice.logprobs[position].top
            found.append((position, first.logprob - second.logprob, best == second.token_id))
    return found


def compare(path, tp, num_tokens):
    """Prints a table. Returns the largest gap at a first difference."""
    peer = Peer(path)
    worst = 0.0
    print("| prompt | same greedy tokens | gap there, nat | later positions with another best token, largest gap |")
    print("| --- | --- | --- | --- |")
    with Cluster(path, tp=tp) as cluster:
        for prompt in PROMPTS:
            found = differences(cluster, peer, prompt, num_tokens)
            cells = [f"all {num_tokens}", "", ""]
            if found:
                position, gap, is_second = found[0]
                worst = max(worst, gap)
                cells[:2] = str(position), f"{gap:.3f}" + ("" if is_second else ", not the second best")
            if found[1:]:
                cells[2] = f"{len(found) - 1}, {max(gap for _, gap, _ in found[1:]):.3f}"
            text = prompt if isinstance(prompt, str) else prompt[1]
            print(f"| {' '.join(text.split())} | {' | '.join(cells)} |", flush=True)
    peer.close()
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    print(f"llama-cpp-python {llama_cpp.__version__}\n\nAs it is:\n")
    compare(args.model, args.tp, args.tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "unpacked.gguf"
        unpack(args.model, path)
        print("\nUnpacked to F32:\n")
        worst = compare(path, args.tp, args.tokens)
    print(f"\nUnpacked, the largest gap at a first difference is {worst:.3f} nat, the bound {BOUND}")
    return worst > BOUND


if __name__ == "__main__":
    sys.exit(main())
