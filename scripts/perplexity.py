#!/usr/bin/env python3
"""Perplexity of a served model on a text, through prompt logprobs.

    .venv/bin/python scripts/perplexity.py [--server ADDR] [--text FILE] [--windows N]

The text (default: the GPL-3 that every Debian has) is cut into windows of 512 tokens; the second half of each is
scored given the first. Prints the mean negative log-likelihood and the perplexity.
"""

import argparse
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / ".venv" / "proto"))

import grpc  # noqa: E402
from shoal.v1 import inference_pb2, inference_pb2_grpc  # noqa: E402

WINDOW = 512


def score(stub, ids):
    """Negative log-likelihoods of the second half of `ids`."""
    request = inference_pb2.GenerateRequest(echo=True, top_logprobs=0)
    request.token_ids.ids.extend(ids)
    request.stop.max_tokens = 0
    logprobs = stub.Generate(request, timeout=600).choices[0].prompt_logprobs
    return [-position.chosen.logprob for position in logprobs[len(ids) // 2:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:8500")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--windows", type=int, default=0, help="at most this many; 0: all")
    args = parser.parse_args()
    stub = inference_pb2_grpc.InferenceServiceStub(grpc.insecure_channel(args.server))
    text = pathlib.Path(args.text).read_text()
    ids = stub.Tokenize(inference_pb2.TokenizeRequest(text=text, add_special_tokens=False)).ids
    windows = [ids[i:i + WINDOW] for i in range(0, len(ids) - WINDOW + 1, WINDOW)]
    windows = windows[:args.windows or None]
    losses = [loss for window in windows for loss in score(stub, window)]
    mean = sum(losses) / len(losses)
    print(f"{len(windows)} windows, {len(losses)} tokens scored: nll {mean:.5f}, perplexity {math.exp(mean):.4f}")


if __name__ == "__main__":
    main()
