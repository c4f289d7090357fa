#!/usr/bin/env python3
"""The plain numpy forward pass that the engine is measured against.

    oracle.py MODEL.gguf --tokens 1,17,42 [--out logits.npy] [--generate N]

Reads llama, qwen2 and qwen3 models from GGUF with a reader and dequantiser of its own; it shares no
code with the engine or with tiny_models.py. Formulas: the models' papers, GGUF's naming of tensors,
ggml's block formats. Everything, keys and values too, is kept in one dtype: float64 unless told.
"""

import argparse
import struct
import sys

import numpy as np

# --- Dequantisation: uint8 [blocks, bytes] -> float [blocks, values] ------------------------------


def _f16(blocks, at):
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _low_nibbles_first(qs):
    return np.hstack([qs & 15, qs >> 4]).astype(np.int32)


def _bits(qh):
    return np.unpackbits(qh, axis=1, bitorder="little").astype(np.int32)


def _q8_0(b):
    return _f16(b, 0) * b[:, 2:].copy().view(np.int8)


def _q4_0(b):
    return _f16(b, 0) * (_low_nibbles_first(b[:, 2:]) - 8)


def _q4_1(b):
    return _f16(b, 0) * _low_nibbles_first(b[:, 4:]) + _f16(b, 2)


def _q5_0(b):
    return _f16(b, 0) * ((_low_nibbles_first(b[:, 6:]) | _bits(b[:, 2:6]) << 4) - 16)


def _q5_1(b):
    return _f16(b, 0) * (_low_nibbles_first(b[:, 8:]) | _bits(b[:, 4:8]) << 4) + _f16(b, 2)


def _k_scales(s):
    """uint8 [blocks, 12] -> scales and minima, each [blocks, 8, 1]."""
    low, middle, high = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    scale = np.hstack([low & 63, (high & 15) | (low >> 6) << 4])
    minimum = np.hstack([middle & 63, (high >> 4) | (middle >> 6) << 4])
    return scale[:, :, None].astype(np.float32), minimum[:, :, None].astype(np.float32)


def _k_nibbles(qs):
    """uint8 [blocks, 128] -> [blocks, 8, 32]: 32 bytes hold two sub-blocks, low nibbles first."""
    groups = qs.reshape(-1, 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)


def _k_values(b, q):
    scale, minimum = _k_scales(b[:, 4:16])
    d, dmin = _f16(b, 0)[:, :, None], _f16(b, 2)[:, :, None]
    return (d * scale * q.astype(np.float32) - dmin * minimum).reshape(-1, 256)


def _q4_k(b):
    return _k_values(b, _k_nibbles(b[:, 16:]))


def _q5_k(b):
    high = b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1
    return _k_values(b, _k_nibbles(b[:, 48:]) | high << 4)


def _q6_k(b):
    ql, qh = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate([ql & 15, ql >> 4], axis=2)  # [blocks, half, quarter, 32]
    high = qh >> np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None] & 3
    q = (low | high << 4).astype(np.float32) - 32
    scales = b[:, 192:208].copy().view(np.int8).astype(np.float32)
    d = b[:, 208:210].copy().view("<f2").astype(np.float32)
    return (q.reshape(-1, 16, 16) * (d * scales)[:, :, None]).reshape(-1, 256)


FORMATS = {  # type id: (values of a block, bytes of a block, function)
    2: (32, 18, _q4_0), 3: (32, 20, _q4_1), 6: (32, 22, _q5_0), 7: (32, 24, _q5_1),
    8: (32, 34, _q8_0), 12: (256, 144, _q4_k), 13: (256, 176, _q5_k), 14: (256, 210, _q6_k),
}  # fmt: skip


def dequantize(data, type_id, count):
    """`count` float32 values from the bytes of a tensor that start at data[0]."""
    if type_id == 0:
        return data[: 4 * count].view("<f4").astype(np.float32)
    if type_id == 1:
        return data[: 2 * count].view("<f2").astype(np.float32)
    if type_id == 30:
        return (data[: 2 * count].view("<u2").astype(np.uint32) << 16).view(np.float32)
    values, size, function = FORMATS[type_id]
    blocks = count // values
    return function(data[: blocks * size].reshape(blocks, size)).astype(np.float32).ravel()


# --- GGUF -----------------------------------------------------------------------------------------

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
           12: "d"}  # fmt: skip


class Gguf:
    """metadata: dict; tensors: name -> (shape with the contiguous axis last, type id, offset)."""

    def __init__(self, path):
        self.bytes = np.fromfile(path, np.uint8)
        self._at = 4
        if self.bytes[:4].tobytes() != b"GGUF" or self._scalar("I") not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        num_tensors, num_metadata = self._scalar("Q"), self._scalar("Q")
        self.metadata = {}
        for _ in range(num_metadata):
            key = self._string().decode()
            self.metadata[key] = self._value(self._scalar("I"))
        self.tensors = {}
        for _ in range(num_tensors):
            name = self._string().decode()
            dims = [self._scalar("Q") for _ in range(self._scalar("I"))]
            self.tensors[name] = (tuple(reversed(dims)), self._scalar("I"), self._scalar("Q"))
        alignment = self.metadata.get("general.alignment", 32)
        self._data = -(-self._at // alignment) * alignment

    def tensor(self, name):
        """float32, or None if there is no such tensor."""
        if name not in self.tensors:
            return None
        shape, type_id, offset = self.tensors[name]
        values = dequantize(self.bytes[self._data + offset :], type_id, int(np.prod(shape)))
        return values.reshape(shape)

    def _scalar(self, code):
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack("<" + code, self.bytes[self._at : self._at + size].tobytes())
        self._at += size
        return value

    def _string(self):
        size = self._scalar("Q")
        self._at += size
        return self.bytes[self._at - size : self._at].tobytes()

    def _value(self, type_id):
        if type_id == 8:
            return self._string()
        if type_id == 9:
            element_type, count = self._scalar("I"), self._scalar("Q")
            return [self._value(element_type) for _ in range(count)]
        return self._scalar(SCALARS[type_id])


# --- The forward pass -----------------------------------------------------------------------------


def rms_norm(x, weight, epsilon):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rope(x, angles, adjacent_pairs):
    """Rotates pairs of the first 2 * angles.shape[-1] elements of each head.

    x: [tokens, heads, head_dim]; angles: [tokens, pairs]. Pair i is (2i, 2i + 1) with adjacent
    pairs (llama), else (i, i + pairs) (NeoX: qwen).
    """
    pairs = angles.shape[-1]
    if adjacent_pairs:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    result = x.copy()
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., first] * sin + x[..., second] * cos
    return result


def attention(q, k, v):
    """Causal softmax(q k^T / sqrt(head_dim)) v. q: [n, heads, d]; k, v: [n, kv_heads, d]."""
    n, heads, head_dim = q.shape
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v)


class Model:
    def __init__(self, path, dtype=np.float64):
        self.dtype = dtype
        self.file = Gguf(path)
        self.arch = self.file.metadata["general.architecture"].decode()
        if self.arch not in ("llama", "qwen2", "qwen3"):
            raise ValueError(f"architecture {self.arch} is not known here")
        self.layers = self._get("block_count")
        self.heads = self._get("attention.head_count")
        self.kv_heads = self._get("attention.head_count_kv", self.heads)
        self.epsilon = self._get("attention.layer_norm_rms_epsilon")
        embd = self._get("embedding_length")
        self.head_dim = self._get("attention.key_length", embd // self.heads)
        self._weights = {}

    def _get(self, key, default=None):
        value = self.file.metadata.get(f"{self.arch}.{key}", default)
        if value is None:
            raise ValueError(f"no metadata {self.arch}.{key}")
        return value

    def weight(self, name):
        if name not in self._weights:
            values = self.file.tensor(name)
            self._weights[name] = None if values is None else values.astype(self.dtype)
        return self._weights[name]

    def angles(self, positions):
        """position * base^(-2i / rotated) / divisor_i: [tokens, pairs]."""
        rotated = self._get("rope.dimension_count", self.head_dim)
        base = self._get("rope.freq_base", 10000.0)
        frequencies = float(base) ** (-np.arange(0, rotated, 2) / rotated)
        divisors = self.weight("rope_freqs.weight")
        if divisors is not None:
            frequencies = frequencies / divisors
        scaling = self.file.metadata.get(f"{self.arch}.rope.scaling.type", b"none").decode()
        if scaling == "linear":
            frequencies = frequencies / self._get("rope.scaling.factor")
        elif scaling != "none":
            raise ValueError(f"rope scaling {scaling} is not known here")
        return (np.asarray(positions)[:, None] * frequencies[None, :]).astype(self.dtype)

    def linear(self, x, name):
        """x W^T + b, with W stored [out, in]."""
        y = x @ self.weight(name + ".weight").T
        bias = self.weight(name + ".bias")
        return y if bias is None else y + bias

    def norm(self, x, name):
        return rms_norm(x, self.weight(name + ".weight"), self.epsilon)

    def attend(self, x, blk, angles):
        q = self.linear(x, blk + "attn_q").reshape(len(x), self.heads, self.head_dim)
        k = self.linear(x, blk + "attn_k").reshape(len(x), self.kv_heads, self.head_dim)
        v = self.linear(x, blk + "attn_v").reshape(len(x), self.kv_heads, self.head_dim)
        if self.arch == "qwen3":
            q = self.norm(q, blk + "attn_q_norm")
            k = self.norm(k, blk + "attn_k_norm")
        adjacent = self.arch == "llama"
        out = attention(rope(q, angles, adjacent), rope(k, angles, adjacent), v)
        return self.linear(out.reshape(len(x), -1), blk + "attn_output")

    def feed_forward(self, x, blk):
        """SwiGLU: down(silu(gate x) * up x)."""
        gate = self.linear(x, blk + "ffn_gate")
        gated = gate / (1 + np.exp(-gate)) * self.linear(x, blk + "ffn_up")
        return self.linear(gated, blk + "ffn_down")

    def logits(self, token_ids):
        """[tokens, vocabulary]: row i predicts token i + 1."""
        x = self.weight("token_embd.weight")[np.asarray(token_ids)]
        angles = self.angles(np.arange(len(token_ids)))
        for i in range(self.layers):
            blk = f"blk.{i}."
            x = x + self.attend(self.norm(x, blk + "attn_norm"), blk, angles)
            x = x + self.feed_forward(self.norm(x, blk + "ffn_norm"), blk)
        x = self.norm(x, "output_norm")
        head = self.weight("output.weight")
        return x @ (self.weight("token_embd.weight") if head is None else head).T

    def generate(self, token_ids, count):
        """The next `count` tokens, greedily; ties go to the lowest id."""
        tokens = list(token_ids)
        for _ in range(count):
            tokens.append(int(np.argmax(self.logits(tokens)[-1])))
        return tokens[len(token_ids) :]


def logits(path, token_ids, dtype=np.float64):
    return Model(path, dtype).logits(token_ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", required=True, help="comma-separated ids")
    parser.add_argument("--out", help="save the logits as .npy")
    parser.add_argument("--generate", type=int, metavar="N", help="print N greedy tokens instead")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    args = parser.parse_args()
    tokens = [int(token) for token in args.tokens.split(",")]
    model = Model(args.model, np.dtype(args.dtype).type)
    if args.generate is not None:
        print(*model.generate(tokens, args.generate))
        return
    result = model.logits(tokens)
    if args.out:
        np.save(args.out, result)
    for row in result:
        best = np.argsort(-row, kind="stable")[:5]
        print("  ".join(f"{token}:{row[token]:.6f}" for token in best))


if __name__ == "__main__":
    sys.exit(main())
