#!/usr/bin/env python3
"""Writes tiny random GGUF models for tests: same arguments, same bytes.

    tiny_models.py --arch llama --type Q8_0 --layers 4 --out tiny.gguf

Needs numpy only. From Python: write_model(path, Config(arch="qwen2", ...)).
"""

import argparse
import collections
import dataclasses
import re
import struct
import sys
import zlib

import numpy as np

# --- Block formats --------------------------------------------------------------------------------
# Each quantiser takes float32 [blocks, 32] and gives uint8 [blocks, bytes of a block], rounding as
# ggml's reference quantisers do.


def _f16_bytes(values):
    return np.asarray(values, np.float32).astype("<f2").view(np.uint8).reshape(len(values), 2)


def _inverse(d):
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _signed_maximum(x):
    """The value of largest magnitude of each block, with its sign."""
    return x[np.arange(len(x)), np.argmax(np.abs(x), axis=1)]


def _nibbles(q):
    return (q[:, :16] & 15 | (q[:, 16:] & 15) << 4).astype(np.uint8)


def _high_bits(q):
    return np.packbits(q >> 4 & 1, axis=1, bitorder="little")


def _around_zero(x, zero):
    d = _signed_maximum(x) / np.float32(-zero)
    level = x * _inverse(d)[:, None] + np.float32(zero + 0.5)
    return d, np.minimum(level.astype(np.int32), 2 * zero - 1).astype(np.uint8)


def _range(x, max_level):
    low = x.min(axis=1)
    d = (x.max(axis=1) - low) / np.float32(max_level)
    level = (x - low[:, None]) * _inverse(d)[:, None] + np.float32(0.5)
    return d, low, np.minimum(level.astype(np.int32), max_level).astype(np.uint8)


def quantize_q8_0(x):
    d = np.abs(x).max(axis=1) / np.float32(127)
    scaled = x * _inverse(d)[:, None]
    q = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled).astype(np.int8)
    return np.hstack([_f16_bytes(d), q.view(np.uint8)])


def quantize_q4_0(x):
    d, q = _around_zero(x, 8)
    return np.hstack([_f16_bytes(d), _nibbles(q)])


def quantize_q4_1(x):
    d, m, q = _range(x, 15)
    return np.hstack([_f16_bytes(d), _f16_bytes(m), _nibbles(q)])


def quantize_q5_0(x):
    d, q = _around_zero(x, 16)
    return np.hstack([_f16_bytes(d), _high_bits(q), _nibbles(q)])


def quantize_q5_1(x):
    d, m, q = _range(x, 31)
    return np.hstack([_f16_bytes(d), _f16_bytes(m), _high_bits(q), _nibbles(q)])


def to_bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


# K-quants are made of random blocks (a real quantiser searches for its scales), whose values have
# about the standard deviation `std` and mean 0.


def _pack_scales6(scale, minimum):
    """uint8 [blocks, 8] twice -> [blocks, 12]: the 6-bit pairs of Q4_K and Q5_K."""
    first = scale[:, :4] | (scale[:, 4:] >> 4) << 6
    second = minimum[:, :4] | (minimum[:, 4:] >> 4) << 6
    third = scale[:, 4:] & 15 | (minimum[:, 4:] & 15) << 4
    return np.hstack([first, second, third]).astype(np.uint8)


def random_q45_k(rng, blocks, std, five_bits):
    levels = 32 if five_bits else 16
    scale = rng.integers(16, 64, (blocks, 8))
    minimum = np.clip(scale + rng.integers(-1, 2, (blocks, 8)), 0, 63)
    d = std / (40 * levels / 12**0.5) * rng.uniform(0.8, 1.25, blocks)
    dmin = d * (levels - 1) / 2
    parts = [_f16_bytes(d), _f16_bytes(dmin), _pack_scales6(scale, minimum)]
    if five_bits:
        parts.append(rng.integers(0, 256, (blocks, 32), np.uint8))
    parts.append(rng.integers(0, 256, (blocks, 128), np.uint8))
    return np.hstack(parts)


def random_q6_k(rng, blocks, std):
    scale = rng.integers(16, 128, (blocks, 16)) * rng.choice([-1, 1], (blocks, 16))
    d = std / (72 * 64 / 12**0.5) * rng.uniform(0.8, 1.25, blocks)
    bits = rng.integers(0, 256, (blocks, 192), np.uint8)
    return np.hstack([bits, scale.astype(np.int8).view(np.uint8), _f16_bytes(d)])


QUANTIZERS = {
    "Q8_0": quantize_q8_0,
    "Q4_0": quantize_q4_0,
    "Q4_1": quantize_q4_1,
    "Q5_0": quantize_q5_0,
    "Q5_1": quantize_q5_1,
}
TYPE_IDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8,
            "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30}  # fmt: skip
K_TYPES = ("Q4_K", "Q5_K", "Q6_K")


def encode_tensor(values, std, type_name, rng):
    """float32 [..., cols] of deviation std -> the stored bytes. K-quants use size and std alone."""
    if type_name == "F32":
        return values.astype("<f4").tobytes()
    if type_name == "F16":
        return values.astype("<f2").tobytes()
    if type_name == "BF16":
        return to_bf16(values).tobytes()
    if type_name in QUANTIZERS:
        return QUANTIZERS[type_name](values.reshape(-1, 32)).tobytes()
    if type_name == "Q6_K":
        return random_q6_k(rng, values.size // 256, std).tobytes()
    return random_q45_k(rng, values.size // 256, std, type_name == "Q5_K").tobytes()


def storable_type(type_name, cols):
    """`type_name`, or what real files use instead for rows that are no whole number of blocks."""
    if type_name in K_TYPES and cols % 256 != 0:
        type_name = "Q8_0"
    if type_name in QUANTIZERS and cols % 32 != 0:
        type_name = "F16"
    return type_name


# --- GGUF -----------------------------------------------------------------------------------------


class GgufWriter:
    """Collects metadata and tensors, then writes the file (version 3, alignment 32)."""

    ALIGNMENT = 32

    def __init__(self):
        self.metadata = []  # (key, type id, value bytes)
        self.tensors = []  # (name, shape with the contiguous axis last, type name, bytes)

    def u32(self, key, value):
        self.metadata.append((key, 4, struct.pack("<I", value)))

    def f32(self, key, value):
        self.metadata.append((key, 6, struct.pack("<f", value)))

    def boolean(self, key, value):
        self.metadata.append((key, 7, struct.pack("<?", value)))

    def string(self, key, value):
        self.metadata.append((key, 8, self._string(value)))

    def strings(self, key, values):
        self._array(key, 8, len(values), b"".join(map(self._string, values)))

    def f32s(self, key, values):
        self._array(key, 6, len(values), np.asarray(values, "<f4").tobytes())

    def i32s(self, key, values):
        self._array(key, 5, len(values), np.asarray(values, "<i4").tobytes())

    def tensor(self, name, shape, type_name, data):
        self.tensors.append((name, shape, type_name, data))

    def write(self, path):
        infos, data_size = [], 0
        for name, shape, type_name, data in self.tensors:
            dims = tuple(reversed(shape))
            infos.append(
                self._string(name)
                + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
                + struct.pack("<IQ", TYPE_IDS[type_name], data_size)
            )
            data_size += len(data) + self._padding(len(data))
        header = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata))
        for key, type_id, value in self.metadata:
            header += self._string(key) + struct.pack("<I", type_id) + value
        header += b"".join(infos)
        with open(path, "wb") as file:
            file.write(header + bytes(self._padding(len(header))))
            for _, _, _, data in self.tensors:
                file.write(data + bytes(self._padding(len(data))))

    def _array(self, key, type_id, count, data):
        self.metadata.append((key, 9, struct.pack("<IQ", type_id, count) + data))

    @staticmethod
    def _string(value):
        data = value.encode("utf-8") if isinstance(value, str) else value
        return struct.pack("<Q", len(data)) + data

    def _padding(self, size):
        return -size % self.ALIGNMENT


# --- Vocabularies ---------------------------------------------------------------------------------

TRAINING_TEXT = """
A shoal of fish turns as one body, though no fish leads it. Each of them watches its nearest
neighbours, keeps its distance, and takes their direction; the rest follows. When a shark comes,
the shoal opens, flows around it and closes again behind its tail. The fish at the edge are in
danger and press towards the middle, so the edge is always made of others. Nothing is decided,
and yet the whole moves faster than any single fish could think. The weather was grey in the
morning, but the water of the bay lay still, and one could see the bottom between the stones. We
had been told to wait for the second boat; it was late. "What would you do," she asked, "if they
didn't come back?" I said that I'd go and look for them, that we'll see, that it's only the
wind. There were questions which nobody had answered: where does the current begin, how long can
a net hold, and why should the light under the water be green? Then the first of them jumped,
then hundreds, and the sound was like rain on a roof.
"""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # tokenizer.ggml.token_type


def byte_characters():
    """GPT-2's printable character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable}
    table.update({b: chr(256 + i) for i, b in enumerate(others)})
    return [table[b] for b in range(256)]


def train_merges(words, num_merges):
    """Byte pair encoding of a Counter of words (tuples of symbols): a list of pairs, best first."""
    merges = []
    while len(merges) < num_merges:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        merged = collections.Counter()
        for word, count in words.items():
            symbols, i = [], 0
            while i < len(word):
                step = 2 if word[i : i + 2] == best else 1
                symbols.append("".join(word[i : i + step]))
                i += step
            merged[tuple(symbols)] += count
        words = merged
    return merges


def merges_for(words, alphabet, num_merges):
    """Exactly num_merges: trained ones, then all pairs of the alphabet, all triples and so on."""
    merges = train_merges(words, num_merges)
    known = set(alphabet) | {a + b for a, b in merges}
    pieces = collections.deque(alphabet)
    while len(merges) < num_merges:
        piece = pieces.popleft()
        for letter in alphabet:
            if piece + letter not in known and len(merges) < num_merges:
                merges.append((piece, letter))
                known.add(piece + letter)
                pieces.append(piece + letter)
    return merges


def add_bpe_vocabulary(writer, size, separate_eot):
    """Byte-level BPE as SmolLM2 has it: control tokens, 256 bytes, merges."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    table = byte_characters()
    pattern = r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+(?!\S)|\s+"
    words = collections.Counter(
        tuple(table[b] for b in word.encode()) for word in re.findall(pattern, TRAINING_TEXT)
    )
    num_merges = size - len(control) - 256
    if num_merges < 0:
        raise ValueError(f"vocab size {size} is below {len(control) + 256}")
    letters_first = sorted(table, key=lambda c: (not c.isascii(), c))
    merges = merges_for(words, letters_first, num_merges)
    writer.string("tokenizer.ggml.model", "gpt2")
    writer.string("tokenizer.ggml.pre", "smollm")
    writer.strings("tokenizer.ggml.tokens", control + table + [a + b for a, b in merges])
    writer.i32s("tokenizer.ggml.token_type", [CONTROL] * 3 + [NORMAL] * (size - 3))
    writer.strings("tokenizer.ggml.merges", [f"{a} {b}" for a, b in merges])
    writer.u32("tokenizer.ggml.bos_token_id", 1)
    writer.u32("tokenizer.ggml.eos_token_id", 0 if separate_eot else 2)
    if separate_eot:
        writer.u32("tokenizer.ggml.eot_token_id", 2)
    writer.u32("tokenizer.ggml.unknown_token_id", 0)
    writer.boolean("tokenizer.ggml.add_bos_token", False)


def add_spm_vocabulary(writer, size):
    """SentencePiece BPE: <unk> <s> </s>, 256 bytes, pieces with scores, two control tokens."""
    text = "▁" + re.sub(r"\s+", "▁", TRAINING_TEXT.strip())
    words = collections.Counter(tuple(word) for word in re.findall(r"▁[^▁]*", text))
    alphabet = sorted(set(text))
    num_merges = size - 3 - 256 - len(alphabet) - 2
    if num_merges < 0:
        raise ValueError(f"vocab size {size} is below {3 + 256 + len(alphabet) + 2}")
    merges = merges_for(words, alphabet, num_merges)
    pieces = [a + b for a, b in merges] + alphabet
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces) + [CONTROL] * 2
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))] + [0.0] * 2
    writer.string("tokenizer.ggml.model", "llama")
    writer.string("tokenizer.ggml.pre", "default")
    writer.strings("tokenizer.ggml.tokens", tokens + pieces + ["<|im_start|>", "<|im_end|>"])
    writer.f32s("tokenizer.ggml.scores", scores)
    writer.i32s("tokenizer.ggml.token_type", types)
    writer.u32("tokenizer.ggml.bos_token_id", 1)
    writer.u32("tokenizer.ggml.eos_token_id", 2)
    writer.u32("tokenizer.ggml.eot_token_id", size - 1)
    writer.u32("tokenizer.ggml.unknown_token_id", 0)
    writer.boolean("tokenizer.ggml.add_bos_token", True)
    writer.boolean("tokenizer.ggml.add_space_prefix", True)


# --- Models ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    arch: str = "llama"  # llama, qwen2, qwen3
    type: str = "F32"  # of the weights; Q4_K_M mixes Q4_K and Q6_K as real files do
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    embd: int = 256
    head_dim: int = 0  # 0: embd / heads; for qwen3 twice that
    ffn: int = 704
    ctx: int = 256
    vocab: int = 512
    seed: int = 1
    tied: bool = False  # the head is the embedding
    rope_freqs: bool = False  # a tensor of frequency divisors, as Llama 3.1 has
    rope_base: float = 0.0  # 0: 10000 for llama, 1000000 for qwen
    spm: bool = False  # SentencePiece instead of byte-level BPE
    separate_eot: bool = False  # BPE: eos is <|endoftext|>, the end of a turn another token
    template: bool = True

    def __post_init__(self):
        if self.arch not in ("llama", "qwen2", "qwen3"):
            raise ValueError(f"unknown arch {self.arch!r}")
        if self.heads % self.kv_heads != 0:
            raise ValueError(f"{self.heads} heads do not share {self.kv_heads} KV heads evenly")
        if self.head_dim == 0:
            self.head_dim = self.embd // self.heads * (2 if self.arch == "qwen3" else 1)
        if self.head_dim % 2 != 0:
            raise ValueError(f"head size {self.head_dim} is odd")
        if self.rope_base == 0:
            self.rope_base = 10000.0 if self.arch == "llama" else 1000000.0


def weight_type(config, name):
    if config.type != "Q4_K_M":
        return config.type
    return "Q6_K" if re.search(r"attn_v|ffn_down|output\.weight|token_embd", name) else "Q4_K"


def add_hyperparameters(writer, c):
    writer.string("general.architecture", c.arch)
    writer.string("general.name", f"tiny-{c.arch}-{c.type}-{c.seed}")
    writer.u32("general.quantization_version", 2)
    writer.u32("general.alignment", GgufWriter.ALIGNMENT)
    for key, value in {
        "vocab_size": c.vocab,
        "context_length": c.ctx,
        "embedding_length": c.embd,
        "block_count": c.layers,
        "feed_forward_length": c.ffn,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "rope.dimension_count": c.head_dim,
    }.items():
        writer.u32(f"{c.arch}.{key}", value)
    if c.head_dim * c.heads != c.embd or c.arch == "qwen3":
        writer.u32(f"{c.arch}.attention.key_length", c.head_dim)
        writer.u32(f"{c.arch}.attention.value_length", c.head_dim)
    writer.f32(f"{c.arch}.rope.freq_base", c.rope_base)
    writer.f32(f"{c.arch}.attention.layer_norm_rms_epsilon", 1e-5 if c.arch == "llama" else 1e-6)


def add_tensors(writer, c):
    """Random weights of a size that keeps activations near 1 and logits a few units apart."""

    def rng_of(name):
        return np.random.default_rng([c.seed, zlib.crc32(name.encode())])

    def matrix(name, rows, cols):
        rng = rng_of(name)
        std = 1.5 / cols**0.5
        values = rng.standard_normal((rows, cols), np.float32) * np.float32(std)
        type_name = storable_type(weight_type(c, name), cols)
        writer.tensor(name, (rows, cols), type_name, encode_tensor(values, std, type_name, rng))

    def vector(name, size, mean, std):
        values = (mean + std * rng_of(name).standard_normal(size)).astype("<f4")
        writer.tensor(name, (size,), "F32", values.tobytes())

    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    matrix("token_embd.weight", c.vocab, c.embd)
    vector("output_norm.weight", c.embd, 1.0, 0.1)
    if not c.tied:
        matrix("output.weight", c.vocab, c.embd)
    if c.rope_freqs:
        divisors = np.linspace(1, 8, c.head_dim // 2, dtype="<f4")
        writer.tensor("rope_freqs.weight", divisors.shape, "F32", divisors.tobytes())
    for i in range(c.layers):
        blk = f"blk.{i}."
        vector(blk + "attn_norm.weight", c.embd, 1.0, 0.1)
        for part, rows in ("q", q), ("k", kv), ("v", kv):
            matrix(f"{blk}attn_{part}.weight", rows, c.embd)
            if c.arch == "qwen2":
                vector(f"{blk}attn_{part}.bias", rows, 0.0, 0.5)
        if c.arch == "qwen3":
            vector(blk + "attn_q_norm.weight", c.head_dim, 1.5, 0.1)
            vector(blk + "attn_k_norm.weight", c.head_dim, 1.5, 0.1)
        matrix(blk + "attn_output.weight", c.embd, q)
        vector(blk + "ffn_norm.weight", c.embd, 1.0, 0.1)
        matrix(blk + "ffn_gate.weight", c.ffn, c.embd)
        matrix(blk + "ffn_up.weight", c.ffn, c.embd)
        matrix(blk + "ffn_down.weight", c.embd, c.ffn)


def write_model(path, config):
    """Writes the model file and returns its path."""
    writer = GgufWriter()
    add_hyperparameters(writer, config)
    if config.spm:
        add_spm_vocabulary(writer, config.vocab)
    else:
        add_bpe_vocabulary(writer, config.vocab, config.separate_eot)
    if config.template:
        writer.string("tokenizer.chat_template", CHATML)
    add_tensors(writer, config)
    writer.write(path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="file to write")
    for field in dataclasses.fields(Config):
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=field.default)
        else:
            parser.add_argument(flag, type=field.type, default=field.default)
    arguments = vars(parser.parse_args())
    path = arguments.pop("out")
    types = [*TYPE_IDS, "Q4_K_M"]
    if arguments["type"] not in types:
        parser.error(f"--type must be one of {', '.join(types)}")
    try:
        write_model(path, Config(**arguments))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
