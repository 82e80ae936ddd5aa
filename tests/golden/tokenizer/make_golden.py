"""Makes the golden files of this folder by PyPI's `tokenizers` alone, never by the code that they test.

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install tokenizers==0.23.3
    /tmp/reference/bin/python tests/golden/tokenizer/make_golden.py
    /tmp/reference/bin/python tests/golden/tokenizer/make_golden.py --check bazel-bin/cli/megascale

Run it from the repository's root. It writes

    train.txt             what the vocabularies are trained on: pages of docs/ when it was first made, and many scripts
    cases.json            texts to encode: [name, [[bytes in hexadecimal, repeats], …]]
    FAMILY.json           a small tokenizer.json with the family's exact pipeline
    FAMILY.expected.json  for each case: "ids"; "raw", if special tokens in the text count as text, and "text", the
                          digest of the ids decoded without the tokens around the text, only where they differ

Ids are run-length encoded: "5 7*3" is 5 7 7 7. With --check it writes nothing: it lets the program train a vocabulary
and encode, and compares both with what the reference makes of the same file, on random texts too.
"""

import argparse
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

VERSION = "0.23.3"
FOLDER = pathlib.Path("tests/golden/tokenizer")
VOCABULARY = 700

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace(r"\p{N}{1,3}", r"\p{N}")

CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
FORMER_CL100K = LLAMA3.replace("]?", "]?+", 1)
HAN = "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK_LLM = [
    "[\r\n]",
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺΑ-Ωα-ωЀ-ҁҊ-ԯＡ-Ｚａ-ｚ]+",
    "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "\\s+$",
    HAN,
]
DEEPSEEK_CODER = ["[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN]

SCRIPTS = """All human beings are born free and equal in dignity and rights.
Tous les êtres humains naissent libres et égaux en dignité et en droits.
Alle Menschen sind frei und gleich an Würde und Rechten geboren.
Все люди рождаются свободными и равными в своем достоинстве и правах.
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.
人人生而自由，在尊严和权利上一律平等。
すべての人間は、生まれながらにして自由であり、尊厳と権利とについて平等である。
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।
يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.
כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם.
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm.
ყველა ადამიანი იბადება თავისუფალი და თანასწორი.
"""

POOLS = [
    list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    list("eta oin shr "),
    list("0123456789"),
    list(" \t\n\r\v\f"),
    list("\u00a0\u1680\u2003\u2028\u2029\u202f\u3000\u0085\u200b\ufeff\u180e"),
    list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
    list("\0\x01\x1f\x7f\x80\x9f"),
    list("éàüßøŁžſıİ"),
    list("абвгдежЁЩ"),
    list("αβγΩΣς"),
    list("人生而自由尊严"),
    list("すべての人間ガギ"),
    list("한국어인간"),
    list("सभीमनुष्यों"),
    list("يولدجميع"),
    list("מנולדו"),
    list("มนุษย์"),
    list("\u0301\u0300\u0327\u0323\u0345\u0334\u20dd"),
    list("²³¼Ⅷ٣०५㊿𝟘"),
    ["😀", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "❤\ufe0f"],
    ["'s", "'S", "'ll", "'LL", "'re", "'Ve", "'ſ", "'t", "'d", "'x"],
    ["the ", " and", "ing", "tion ", " data", "parallel"],
    ["  ", "   ", "    ", "\n\n", "\r\n", " \n", "\n "],
    ["\u1100\u1161\u11a8", "e\u0301", "\u212b", "\u0958", "\ufb01", "a\u0323\u0307"],
    ["▁", "▁▁", "Ġ", "<0x41>", "<unk>"],
    ["\U00016fe0", "\U0001e900", "\U000323af", "\U0010ffff", "\U000e0041"],
]


def random_text(generator, pieces, special):
    pools = [generator.choice(POOLS) for _ in range(generator.randint(1, 5))]
    text = ""
    for _ in range(generator.randint(0, pieces)):
        text += (
            generator.choice(special)
            if special and generator.random() < 0.06
            else generator.choice(generator.choice(pools))
        )
    return text


SPECIAL = [
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<s>",
    "</s>",
    "<unk>",
    "<mask>",
    "<word>",
    "  ",
]


def cases():
    texts = {
        "empty": "",
        "space": " ",
        "newline": "\n",
        "word": "hello",
        "sentence": "Hello, world! It's 2024; we'll see 3,141,592.",
        "contractions": "I'm you're he's they'd we'll I've don't "
        "I'M YOU'RE HE'S THEY'D WE'LL I'VE DON'T 'S'T 'ſ 'lL 'x ''s '",
        "digits": "1 12 123 1234 12345 123456 1234567 ١٢٣٤ Ⅷ²³ ½ 1a2b3c",
        "spaces": "a  b   c    d\t\te \t f\u00a0g\u3000h ",
        "newlines": "a\n\nb\r\nc\r\r\nd\n \n e\n\t\nf\n",
        "leading": "   leading and trailing   ",
        "only-spaces": "      ",
        "control": "a\0b\x01\x02\x7f\x80\x9fc",
        "zero-width": "a\u200bb\u200cc\u200dd\ufeffe\u2060f",
        "combining": "e\u0301 e\u0301\u0327 e\u0327\u0301 \u0301 a\u0323\u0307 a\u0307\u0323 "
        "\u1100\u1161\u11a8 \u0958 \u212b \u2126",
        "emoji": "😀👩\u200d👩\u200d👧\u200d👦🇩🇪👍🏽❤\ufe0f1\ufe0f\u20e3",
        "scripts": SCRIPTS,
        "code": "def f(x):\n    return x ** 2  # ok\n\n\tif a==b{};",
        "punctuation": "...!!!???---(([[{{<<>>}}]]))\"\"''``~~@@##$$%%^^&&**__++==||\\\\//::;;,,",
        "mixed-punctuation": "a-b_c/d\\e.f,g;h:i!j?k (l) [m] {n} <o> \"p\" 'q' `r`",
        "marker": "▁a▁▁b ▁ c▁ Ġd <0x0A> <0xFF><0xE4>",
        "special": "a<|endoftext|>b <|endoftext|> c<s> d </s>e<|im_start|>user\nhi<|im_end|>\n<|begin_of_text|>x",
        "special-parts": "<|endoftext| ><|endoftext|<|endoftext|>> <s <s></s> </s",
        "mask": "a <mask> b<mask>c  <mask>  <mask>\n<mask>",
        "single-word": "<word> a<word> <word>b a<word>b \u0301<word> <word>_ é<word> (<word>)",
        "unknown": "🜚🜛 a🜚b 🜚🜚 ☃☃ x☃",
        "url": "https://example.org/a?b=c&d=e%20f#g",
        "titles": "ǅ ǈ ß ẞ ſ ﬁ ﬀ K Å",
        "bidirectional": "abc \u202eאבג\u202c ١٢٣",
        "planes": "\U00010000\U0001ffff\U000323af\U000e0001\U0010ffff\ufffd\ufffe\uffff",
        "unassigned": "\u0378\u05ff\u2ffe\ua7ff",
    }
    made = [[name, [[text.encode().hex(), 1]]] for name, text in texts.items()]
    for name, part, repeats in (
        ("long-a", "a", 1000),
        ("long-ab", "ab", 300),
        ("long-the", "the", 200),
        ("long-word", "parallelization", 30),
        ("long-accent", "é", 300),
        ("long-digits", "1234567890", 20),
        ("long-spaces", " ", 999),
        ("long-lines", "\n", 500),
        ("long-mixed", " \n", 60),
        ("long-han", "人生", 40),
        ("long-dots", ".", 600),
        ("long-emoji", "😀", 40),
        ("long-marker", "▁", 300),
    ):
        made.append([name, [[part.encode().hex(), repeats]]])
    for name, data in (
        ("invalid", "61ff62c3c328e282e28228a0f09f98f09f9880ed a080c0af".replace(" ", "")),
        ("cut", "68c3a9e4bd"),
        ("latin1", "e9e8e0fc20df"),
        ("surrogates", "eda0bdedb880"),
    ):
        made.append([name, [[data, 1]]])
    generator = random.Random(21)
    for index in range(60):
        made.append([f"random-{index}", [[random_text(generator, 30, SPECIAL).encode().hex(), 1]]])
    return made


def text_of(case):
    return b"".join(bytes.fromhex(part) * repeats for part, repeats in case[1]).decode("utf-8", errors="replace")


def run_lengths(ids):
    words = []
    for i in ids:
        if words and words[-1][0] == i:
            words[-1][1] += 1
        else:
            words.append([i, 1])
    return " ".join(str(i) if count == 1 else f"{i}*{count}" for i, count in words)


# --- the families -------------------------------------------------------------------------------------------------


def training_text():
    path = FOLDER / "train.txt"
    if not path.exists():
        pages = "".join(
            pathlib.Path("docs", name).read_text() for name in ("architecture.md", "testing.md", "how-a-step-runs.md")
        )
        path.write_text(pages[:30000] + SCRIPTS)
    return path.read_text()


def trained(pre_tokenizer, special, **options):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=options.pop("size", VOCABULARY), special_tokens=special, show_progress=False, **options
    )
    tokenizer.train_from_iterator([training_text()], trainer)
    return json.loads(tokenizer.to_str())


def byte_level(split):
    if split is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def splits_then_digits(expressions):
    """As in DeepSeek's files."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
        + [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def digits(individual):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=individual), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def added(content, **flags):
    return {
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
        **flags,
    }


def assemble(base, added_tokens, **changes):
    """A tokenizer.json with the vocabulary of `base`; ids of added tokens as the reference gives them."""
    model = {**base["model"], **changes.pop("model", {})}
    next_id = len(model["vocab"])
    numbered = []
    for token in added_tokens:
        if token["content"] in model["vocab"]:
            numbered.append({"id": model["vocab"][token["content"]], **token})
        else:
            numbered.append({"id": next_id, **token})
            next_id += 1
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": numbered,
        "normalizer": None,
        "pre_tokenizer": base["pre_tokenizer"],
        "post_processor": None,
        "decoder": None,
        **changes,
        "model": model,
    }


def as_json(component):
    return json.loads(component.__getstate__())


BYTE_LEVEL_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
BYTE_LEVEL_PROCESSOR = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def template(begin, end=()):
    """begin, end: (token, id)"""
    parts = [{"SpecialToken": {"id": token, "type_id": 0}} for token, _ in begin] + [
        {"Sequence": {"id": "A", "type_id": 0}}
    ]
    parts += [{"SpecialToken": {"id": token, "type_id": 0}} for token, _ in end]
    return {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": parts + [{"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]} for token, i in [*begin, *end]},
    }


def byte_level_families():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    gpt2 = trained(byte_level(None), ["<|endoftext|>"], initial_alphabet=alphabet)
    llama3 = trained(byte_level(LLAMA3), ["<|endoftext|>"], initial_alphabet=alphabet)
    qwen2 = trained(byte_level(QWEN2), ["<|endoftext|>"], initial_alphabet=alphabet)
    end = [added("<|endoftext|>")]
    yield "gpt2", assemble(gpt2, end, post_processor=BYTE_LEVEL_PROCESSOR, decoder=BYTE_LEVEL_DECODER)
    yield "gpt2-prefix", assemble(
        gpt2,
        end + [added("<mask>", lstrip=True), added("<word>", single_word=True, special=False, normalized=True)],
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        decoder=BYTE_LEVEL_DECODER,
    )
    spaces = [added(" " * n, special=False, normalized=True) for n in range(24, 1, -1)]
    yield "neox", assemble(
        gpt2, end + spaces, normalizer={"type": "NFC"}, post_processor=BYTE_LEVEL_PROCESSOR, decoder=BYTE_LEVEL_DECODER
    )
    begin = len(llama3["model"]["vocab"])
    # Tokens that no merge reaches, which ignore_merges finds.
    vocabulary = dict(
        llama3["model"]["vocab"],
        **{"Ġparallelization": begin, "Hello": begin + 1, "123": begin + 2, "ĠåĪ©": begin + 3},
    )
    yield "llama3", assemble(
        llama3,
        [added(f"<|{name}|>") for name in ("begin_of_text", "end_of_text", "reserved_special_token_0", "eot_id")],
        post_processor={
            "type": "Sequence",
            "processors": [BYTE_LEVEL_PROCESSOR, template([("<|begin_of_text|>", begin + 4)])],
        },
        decoder=BYTE_LEVEL_DECODER,
        model={"vocab": vocabulary, "ignore_merges": True},
    )
    strings = [" ".join(pair) for pair in qwen2["model"]["merges"]]
    yield "qwen2", assemble(
        qwen2,
        end + [added("<|im_start|>"), added("<|im_end|>"), added("<tool_call>", special=False)],
        normalizer={"type": "NFC"},
        post_processor=BYTE_LEVEL_PROCESSOR,
        decoder=BYTE_LEVEL_DECODER,
        model={"merges": strings},
    )
    tekken = trained(byte_level(TEKKEN), ["<|endoftext|>"], initial_alphabet=alphabet)
    yield "tekken", assemble(tekken, end, decoder=BYTE_LEVEL_DECODER)
    o200k = trained(byte_level(O200K), ["<|endoftext|>"], initial_alphabet=alphabet)
    yield "o200k", assemble(o200k, end, decoder=BYTE_LEVEL_DECODER)
    for name, split in (
        ("cl100k", byte_level(CL100K)),
        ("cl100k-former", byte_level(FORMER_CL100K)),
        ("deepseek-llm", splits_then_digits(DEEPSEEK_LLM)),
        ("deepseek-coder", splits_then_digits(DEEPSEEK_CODER)),
        ("line-ends", splits_then_digits(["\\s+$", "\\s?[a-f]", "[\\-\\\\0-9]+"])),
    ):
        model = trained(split, ["<|endoftext|>"], initial_alphabet=alphabet)
        yield name, assemble(model, end, decoder=BYTE_LEVEL_DECODER)
    smollm = trained(digits(True), ["<|endoftext|>"], initial_alphabet=alphabet)
    yield "smollm", assemble(smollm, end, decoder=BYTE_LEVEL_DECODER, model={"byte_fallback": True})
    numbers = trained(digits(False), ["<|endoftext|>"], initial_alphabet=alphabet)
    yield "numbers", assemble(
        numbers,
        end,
        decoder=BYTE_LEVEL_DECODER,
        post_processor={
            "type": "RobertaProcessing",
            "sep": ["<|endoftext|>", 0],
            "cls": ["a", numbers["model"]["vocab"]["a"]],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
    )
    yield "llama3-plain", assemble(llama3, end, decoder=BYTE_LEVEL_DECODER)


def with_runs_of_spaces(base):
    """As in Llama's vocabulary: tokens of several markers."""
    vocabulary, merges = dict(base["model"]["vocab"]), list(base["model"]["merges"])
    for length in (2, 4, 8):
        vocabulary["▁" * length] = len(vocabulary)
        merges.append(["▁" * (length // 2)] * 2)
    return {**base, "model": {**base["model"], "vocab": vocabulary, "merges": merges}}


def character_families():
    control, byte_tokens = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]
    words = with_runs_of_spaces(
        trained(pre_tokenizers.Metaspace(), control + byte_tokens, size=900, limit_alphabet=60)
    )
    lines = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\n"), "isolated"), pre_tokenizers.Metaspace(split=False)]
    )
    across = trained(lines, control + byte_tokens, size=900, limit_alphabet=60)
    plain = trained(pre_tokenizers.Metaspace(), control, size=500, limit_alphabet=60)
    tokens = [added(token) for token in control]
    prepend = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    fallback = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    begin = template([("<s>", 1)])
    yield "llama2", assemble(
        words, tokens, normalizer=prepend, pre_tokenizer=None, post_processor=begin, decoder=decoder, model=fallback
    )
    yield "llama2-across", assemble(
        across,
        tokens,
        normalizer=prepend,
        pre_tokenizer=None,
        post_processor=template([("<s>", 1)], [("</s>", 2)]),
        decoder=decoder,
        model=fallback,
    )
    first = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    yield "mistral", assemble(
        words,
        tokens + [added("<mask>", lstrip=True, rstrip=True)],
        pre_tokenizer=first,
        post_processor=begin,
        decoder=decoder,
        model=fallback,
    )
    always = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    yield "metaspace", assemble(words, tokens, pre_tokenizer=always, decoder=always, model=fallback)
    never = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}
    yield "metaspace-never", assemble(
        plain, tokens, pre_tokenizer=never, decoder=never, model={"unk_token": "<unk>", "fuse_unk": False}
    )
    yield "unknown-fused", assemble(
        plain, tokens, pre_tokenizer=first, decoder=always, model={"unk_token": "<unk>", "fuse_unk": True}
    )
    yield "unknown-dropped", assemble(plain, tokens, pre_tokenizer=always)


def expected(tokenizer, case):
    text = text_of(case)
    ids = tokenizer.encode(text).ids
    answer = {"ids": run_lengths(ids)}
    tokenizer.encode_special_tokens = True
    raw = tokenizer.encode(text).ids
    tokenizer.encode_special_tokens = False
    if raw != ids:
        answer["raw"] = run_lengths(raw)
    decoded = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
    if decoded != text:
        answer["text"] = hashlib.sha256(decoded.encode()).hexdigest()[:16]
    return answer


def write():
    made = cases()
    (FOLDER / "cases.json").write_text(json.dumps(made, indent=0) + "\n")
    for name, content in [*byte_level_families(), *character_families()]:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        (FOLDER / f"{name}.json").write_text(text + "\n")
        tokenizer = Tokenizer.from_str(text)
        answers = [json.dumps(expected(tokenizer, case), ensure_ascii=False) for case in made]
        (FOLDER / f"{name}.expected.json").write_text("[\n" + ",\n".join(answers) + "\n]\n")


# --- comparing a program ------------------------------------------------------------------------------------------


def encoded(program, file, texts, folder):
    """What the program makes of each text: one JSON line each."""
    source = pathlib.Path(folder, "texts.jsonl")
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    output = subprocess.run(
        [program, "tokenizer", "encode", "--tokenizer", str(file), "--json-field", "text", str(source), "-o", "json"],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    return [json.loads(line)["ids"] for line in output.splitlines()]


def check(program):
    generator = random.Random(7)
    texts = [random_text(generator, 200, SPECIAL) for _ in range(3000)] + training_text().split("\n\n")
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(
            path for path in FOLDER.glob("*.json") if pathlib.Path(f"{path}".replace(".json", ".expected.json")).exists()
        )
        for split in ("gpt2", "llama3", "qwen2"):
            path = pathlib.Path(folder, f"trained-{split}.json")
            subprocess.run(
                [
                    program,
                    "tokenizer",
                    "train",
                    "--vocab-size",
                    "2000",
                    "--split",
                    split,
                    str(FOLDER / "train.txt"),
                    "--out",
                    str(path),
                ],
                check=True,
            )
            files.append(path)
        for path in files:
            reference = Tokenizer.from_file(str(path))
            ours = encoded(program, path, texts, folder)
            theirs = [reference.encode(text).ids for text in texts]
            wrong = [i for i in range(len(texts)) if ours[i] != theirs[i]]
            print(f"{path.name}: {len(texts)} texts, {sum(map(len, theirs))} tokens, {len(wrong)} differ")
            if wrong or len(ours) != len(theirs):
                sys.exit(f"{path}: {texts[wrong[0]]!r}: {ours[wrong[0]]}, expected {theirs[wrong[0]]}")


def main():
    assert tokenizers.__version__ == VERSION, f"needs tokenizers {VERSION}, found {tokenizers.__version__}"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", metavar="PROGRAM", help="compare this program with the reference")
    options = parser.parse_args()
    if options.check:
        check(options.check)
    else:
        write()


main()
