"""Makes golden folders with vocab.json and merges.txt by the reference: the transformers package from PyPI, and nothing
else.

    python3 -m venv /tmp/reference
    /tmp/reference/bin/pip install transformers==4.57.6
    /tmp/reference/bin/python tests/golden/tokenizer/make_vocabularies.py

Run it from the repository's root: it rewrites tests/golden/tokenizer/vocabularies.json. A folder has the model of a
tokenizer.json of this directory as vocab.json and merges.txt, or files of its own, and others beside them. The ids of
each text are those of AutoTokenizer with its fast classes; an error means that the reference cannot read the folder, so
the program must refuse it, too. Neither product nor tests need it.
"""

import json
import os
import pathlib
import random
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import transformers  # noqa: E402
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode  # noqa: E402

VERSION = "4.57.6"
FOLDER = pathlib.Path("tests/golden/tokenizer")
TEXTS = [
    "",
    "The quick fox",
    " leading  spaces\n and é 人生 🜚 12345",
    "e\u0301\r\n it's I'LL 1234",
    "<|im_start|>user\nhello<|im_end|> x<|im_start|> y",
    "a<|endoftext|>b <|endoftext|>",
    "a <mask> b<mask>c <unk> [PAD]x",
    "abcabc abab",
]
GPT2 = {"tokenizer_class": "GPT2Tokenizer"}
QWEN2 = {"tokenizer_class": "Qwen2Tokenizer"}


def token(content, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True, **flags}


def files_of(base):
    model = json.loads((FOLDER / base).read_text())["model"]
    lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {"vocab.json": json.dumps(model["vocab"], ensure_ascii=False),
            "merges.txt": "#version: 0.2\n" + "".join(line + "\n" for line in lines)}


def letters(*tokens):
    vocabulary = {letter: i for i, letter in enumerate(sorted(bytes_to_unicode().values()))}
    for content in tokens:
        vocabulary[content] = len(vocabulary)
    return json.dumps(vocabulary, ensure_ascii=False)


def by_hand():
    size = len(json.loads((FOLDER / "gpt2.json").read_text())["model"]["vocab"])
    yield "gpt2.json", {"config.json": {"model_type": "gpt2"}}
    yield "gpt2.json", {"tokenizer_config.json": GPT2}
    yield "gpt2.json", {"tokenizer_config.json": {**GPT2, "add_bos_token": True, "add_eos_token": True}}
    yield "gpt2.json", {"tokenizer_config.json": {**GPT2, "add_prefix_space": True, "pad_token": "[PAD]"}}
    yield "gpt2.json", {"tokenizer_config.json": {**GPT2, "tokenizer_class": "GPT2TokenizerFast", "bos_token": "<s>",
                                                  "add_bos_token": True}}
    yield "gpt2.json", {"tokenizer_config.json": GPT2, "special_tokens_map.json": {
        "bos_token": token("<|endoftext|>", normalized=True), "pad_token": "[PAD]"}}
    yield "gpt2.json", {"tokenizer_config.json": GPT2, "added_tokens.json": {"<|im_start|>": size, "<|im_end|>": size + 1}}
    # One special token within another one.
    yield "gpt2.json", {"tokenizer_config.json": {**GPT2, "mask_token": "x", "pad_token": "[PAD]"}}
    yield "gpt2.json", {"tokenizer_config.json": {**GPT2, "mask_token": "end", "eos_token": "<|im_end|>"}}
    qwen2 = len(json.loads((FOLDER / "qwen2.json").read_text())["model"]["vocab"])
    yield "qwen2.json", {"config.json": {"model_type": "qwen3"}}
    yield "qwen2.json", {"tokenizer_config.json": {
        **QWEN2, "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "added_tokens_decoder": {
            str(qwen2 + i): token(content) for i, content in enumerate(["<|im_start|>", "<|im_end|>"])}}}
    yield "qwen2.json", {"tokenizer_config.json": {**QWEN2, "add_bos_token": True, "bos_token": "<s>"}}
    # The same files mean something else to the other class.
    yield "gpt2.json", {"tokenizer_config.json": QWEN2}
    yield "qwen2.json", {"tokenizer_config.json": GPT2}
    for config in (GPT2, QWEN2):
        for merges in ("#version: 0.2\na b\nab c\nab ab\n", "#version: 0.2\na b\nab c\nab ab", "ab ab\na b\nab c\n",
                       "#version: 0.2\r\na b\r\nab ab\r\nab c\r\n", "#version: 0.2\rab c\ra b\r", "#version: x\n\na b\n",
                       "#version: 0.2\nb c\na b\nb c\nab c\n", "#version: 0.2\n a\tb \nab\u00a0c\n", "#version: 0.2\n",
                       "\n", "#version: 0.2\na b c\n", "#version: 0.2\na\n", "#version: 0.2\nc a\n",
                       "#version: 0.2\na ?\u2003\n", "a b\n#version: 0.2\n", "#version: 0.2\n# a\nab c\n",
                       "#version: 0.2\na b\n\nab c\n"):
            yield "", {"vocab.json": letters("ab", "bc", "abc", "abab"), "merges.txt": merges,
                       "tokenizer_config.json": config}
        for vocabulary in ("", "[]", "7", "{\"a\": \"b\"}", "{", letters("ab")[:-1] + ", \"ab\": 256}"):
            yield "", {"vocab.json": vocabulary, "merges.txt": "#version: 0.2\na b\n", "tokenizer_config.json": config}
    for name in ("LlamaTokenizer", "GPTNeoXTokenizerFast", "PreTrainedTokenizerFast"):
        yield "gpt2.json", {"tokenizer_config.json": {"tokenizer_class": name}}
    for model in ("llama", "gpt_neox", "mistral"):
        yield "gpt2.json", {"config.json": {"model_type": model}}
    yield "gpt2.json", {}


def random_flags(generator):
    return {name: generator.random() < 0.3 for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}


def at_random(generator):
    base = generator.choice(["gpt2.json", "qwen2.json", "neox.json"])
    first = len(json.loads((FOLDER / base).read_text())["model"]["vocab"])
    config = dict(generator.choice([GPT2, QWEN2]))
    for field in ("add_bos_token", "add_eos_token", "add_prefix_space"):
        if generator.random() < 0.3:
            config[field] = generator.choice([True, False, None])
    contents = ["<s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "[PAD]", "<mask>", "The", "x"]
    for field in ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token"):
        if generator.random() < 0.4:
            config[field] = generator.choice(contents + [None])
            if config[field] and generator.random() < 0.3:
                config[field] = {"__type": "AddedToken", **token(config[field], **random_flags(generator))}
    files = {"tokenizer_config.json": config}
    kind = generator.randrange(4)
    new = generator.sample(["<|im_start|>", "<|im_end|>", "<mask>", "[PAD]"], generator.randrange(1, 4))
    if kind == 0:
        config["added_tokens_decoder"] = {
            str(first + i): token(content, **random_flags(generator)) for i, content in enumerate(new)}
    elif kind == 1:
        files["added_tokens.json"] = {content: first + i for i, content in enumerate(new)}
    elif kind == 2:
        files["special_tokens_map.json"] = {
            "pad_token": generator.choice(["[PAD]", token("<mask>", lstrip=True)]),
            "additional_special_tokens": new}
    if generator.random() < 0.2:
        config["additional_special_tokens"] = new
    return base, files


def answer(base, files, must):
    made = {"base": base, "must": must,
            "files": {name: content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
                      for name, content in files.items()}}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {**(files_of(base) if base else {}), **made["files"]}.items():
            pathlib.Path(folder, name).write_bytes(content.encode())
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            made["size"] = len(tokenizer)
            made["ids"] = [tokenizer(text)["input_ids"] for text in TEXTS]
        except Exception as error:
            made["error"] = type(error).__name__
    return made


def main():
    assert transformers.__version__ == VERSION, f"needs transformers {VERSION}, found {transformers.__version__}"
    folders = [answer(base, files, True) for base, files in by_hand()]
    generator = random.Random(12)
    folders += [answer(*at_random(generator), False) for _ in range(80)]
    lines = ",\n".join(json.dumps(folder, ensure_ascii=False, separators=(",", ":")) for folder in folders)
    texts = json.dumps(TEXTS, ensure_ascii=False)
    (FOLDER / "vocabularies.json").write_text(f'{{"texts": {texts},\n"folders": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
