#!/usr/bin/env python3
"""Writes the tokeniser fixtures of tests/model_text/data, with Hugging Face's tokenizers as oracle.

Run by hand, in a virtual environment with PyPI's `tokenizers`:

    python3 tests/python/tokenizer_oracle.py [--seed N] [--cases N] [--out FOLDER]

  <name>_bpe.json            a small byte-level BPE trained with that model's split pattern: its
                             vocabulary and merges, and texts with their token ids
  pretokenizer_splits.json   texts with the words (as byte lengths) each pattern cuts them into

Characters that this Python's Unicode lacks are left out of the random texts: the regex engine of
`tokenizers` is newer than Shoal's (PCRE2 10.42: Unicode 14, as Python 3.11), and cuts them by
properties that they did not have then.

A large --cases with a --out of its own, and SHOAL_TOKENIZER_DATA set to that folder, makes
model_text_test compare that many strings.
"""

import argparse
import json
import pathlib
import random
import unicodedata

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# tokenizer.ggml.pre -> the patterns of a model's tokenizer.json, applied in turn.
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [
        CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        + SPACES
    ],
    "qwen2": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
    ],
    "qwen35": [
        CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
        + SPACES
    ],
    "gpt-4o": [
        f"{BEFORE}{UPPER}*{LOWER}+{CONTRACTIONS}?|{BEFORE}{UPPER}+{LOWER}*{CONTRACTIONS}?|"
        + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
        + SPACES
    ],
    "tekken": [
        f"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|"
        + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
        + SPACES
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
        + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
        + SPACES,
    ],
}

# Whether a word that is a token is taken whole, whatever the merges say.
IGNORE_MERGES = {"llama-bpe"}

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", "\r\n", "\r\n\r\n", " \r\n \r",
    "a", " a", "a ", "  a  ", "Hello there", " Hello there", "Hello There", " Hello  There!",
    "Good morning, town!", " (good) morning; town?", "we are 42 years and 7 days, 1234567890",
    "3", "33", "333", "3333", "33333", "333333", "3333333", "33333333", "333333333",
    "v1.2.3-rc4 +0.5e-10 1,000,000.00 ½ ² Ⅷ ٣٤٥ ৪২",
    "I'll, you've, he'd, it's, we're, I'm, don't; I'LL, YOU'VE, HE'D, IT'S, WE'RE, I'M, DON'T",
    "'s't're've'm'll'd 'S'T'RE'VE'M'LL'D ''s 'ſ 'sa '\n's",
    "rock'n'roll o'clock ’s ‘t’ it’s", "camelCase PascalCase SCREAMING_CASE snake_case x2y",
    "ÀÉÎÕÜ àéîõü ÀéÎõÜ straße STRASSE ǅungla ǆ İstanbul ıssız", "caf\u00e9 cafe\u0301 e\u0301\u0323",
    "\u1112\u1161\u11ab \ud55c 한국어 문장입니다.", "日本語のテキスト、カタカナとひらがな。１２３",
    "中文没有空格。中文123中文abc", "Это русское предложение, да?", "Ελληνικό κείμενο· ναι;",
    "שלום עולם, מה נשמע", "السلام عليكم ٠١٢٣", "हिन्दी में लिखा हुआ", "ภาษาไทยไม่มีช่องว่าง",
    "ខ្មែរ ភាសា", "বাংলা লেখা", "🙂🙃 😀😀😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 👍🏽", "✅ ☃️ ❤️‍🔥 (three)",
    "tab\there\tand  two   three    four", "line one\nline two\n\nline four\n   indented\n\t\ttabs\n",
    "if (x != y) { return *p++ && q->r[3]; } // why?", "/usr/local/bin:/opt/x-y_z/~user?a=b&c=d#e",
    "<|im_start|>user<|im_end|> <s></s> [INST] <0x0A> <unk>", "!!!!!! ......... ------- ====== ####",
    "\"quoted\" 'single' `back` «guillemets» “curly” ‚low‘", "nul\x00in the\x00 middle\x00",
    "\x01\x02\x1b[0m \x7f \u0085 \u00a0nbsp\u00a0 \u00ad", "\ufeffBOM \u200b\u200c\u200d\u2060 zero",
    "\u1680\u180e\u2000\u2003\u2028\u2029\u202f\u205f\u3000spaces", "a\u180eb \u180e c\u0085d",
    "\U00010000\U0001f9ff\U000e0001\U0010ffff \ue000\uf8ff \ufffd\ufffe", "aaaaaaaaaaaaaaaaaaaaaaaa",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "éééééééé ééé", "the the the The THE tHe", "x" * 70 + " " * 70 + "\n" * 9,
]

ATOMS = [
    " ", " ", " ", "  ", "\n", "\r\n", "\r", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e",
    "'s", "'T", "'ll", "'RE", "'", "’", "a", "the", "The", "THE", "ing", "Z", "é", "e\u0301", "ß",
    "ǅ", "ʰ", "\u0301", "ж", "Ж", "中", "の", "ア", "한", "ا", "ि", "अ", "0", "12", "345", "٣", "½", "Ⅷ",
    ".", ",", "!", "?", "/", "-", "_", "(", "}", "+", "$", "€", "🙂", "👩\u200d👧", "🇩🇪", "\x00", "\x1b",
    "\u200d", "\ufeff", "\U0010ffff",
]

TRAINING = """
When in the course of a long walk the town comes into sight, we stop there and look at it. It's
said that the town's oldest house, the one there on the hill, isn't as old as they'd like it to be.
We're told the keeper has 1234 books and 56 maps of 7890 places; he'll show them if you've time.
def walk(town, hill=None):\n    if hill is None:\n        return town\n    return hill + town\n
for (int i = 0; i < 100; ++i) { total += values[i] * weights[i]; }\r\n
Это предложение о городе. 这是一个关于城镇的句子。これは町についての文です。 한국어 문장입니다.
Ein Städtchen für über dreißig Häuser; la ville était déjà là. 🙂 🙂 🙃
"""


def pre_tokenizer(name):
    """The cuts alone: words of plain text."""
    splits = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in PATTERNS[name]
    ]
    return splits[0] if len(splits) == 1 else pre_tokenizers.Sequence(splits)


def train(name, vocab_size):
    """Returns (vocabulary by id, merges) of a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizer(name), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING] + TEXTS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = sorted(model["vocab"], key=model["vocab"].get)
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    return vocabulary, merges


def build(name, vocabulary, merges):
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(vocabulary)},
            merges=merges,
            ignore_merges=name in IGNORE_MERGES,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizer(name), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def random_text(rng):
    if rng.random() < 0.2:  # any characters
        chars = [
            chr(rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0xD800)]))
            for _ in range(rng.randrange(1, 8))
        ]
        return "".join(c for c in chars if unicodedata.category(c) != "Cn")
    return "".join(rng.choice(ATOMS) for _ in range(rng.randrange(1, 12)))


def bpe_fixture(name, vocab_size, texts):
    vocabulary, merges = train(name, vocab_size)
    if name in IGNORE_MERGES:
        # Without every seventh merge some whole words are only found because merges are ignored.
        merges = [merge for i, merge in enumerate(merges) if i % 7 != 6]
    tokenizer = build(name, vocabulary, merges)
    return {
        "pre": name,
        "tokens": vocabulary,
        "merges": [" ".join(merge) for merge in merges],
        "cases": [[text, tokenizer.encode(text).ids] for text in texts],
    }


def split_fixture(texts):
    fixture = {"texts": texts, "splits": {}}
    for name in PATTERNS:
        splitter = pre_tokenizer(name)
        fixture["splits"][name] = [
            [len(word.encode()) for word, _ in splitter.pre_tokenize_str(text)] for text in texts
        ]
    return fixture


def write(path, fixture):
    """One case a line, so that changes can be read."""
    text = json.dumps(fixture, ensure_ascii=True, separators=(",", ":"))
    path.write_text(text.replace('],["', '],\n["').replace('],"', '],\n"') + "\n")
    print(f"{path}: {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=200, help="random texts per fixture")
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--out", type=pathlib.Path, default=here.parent / "model_text" / "data")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for name, file in [("qwen2", "qwen2_bpe.json"), ("llama-bpe", "llama3_bpe.json")]:
        texts = TEXTS + [random_text(rng) for _ in range(args.cases)]
        write(args.out / file, bpe_fixture(name, 700, texts))
    write(
        args.out / "pretokenizer_splits.json",
        split_fixture(TEXTS + [random_text(rng) for _ in range(args.cases)]),
    )


if __name__ == "__main__":
    main()
