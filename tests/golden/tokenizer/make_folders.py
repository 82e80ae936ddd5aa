"""Asks the reference, AutoTokenizer of the transformers package from PyPI, what folders of several files mean.

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install transformers==4.57.3 sentencepiece protobuf
    /tmp/reference/bin/python tests/golden/tokenizer/make_folders.py

Run it from the repository's root. It writes tests/golden/tokenizer/folders.json: folders by hand, which the program
must read, and random ones, which it reads in the same way or refuses. A folder is the tokenizer's file of this directory
with the content of the other files; the ids of each text are those of the fast classes. Neither product nor tests need
it.
"""

import json
import os
import pathlib
import random
import shutil
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import transformers  # noqa: E402

VERSION = "4.57.3"
FOLDER = pathlib.Path("tests/golden/tokenizer")
TEXTS = [
    "",
    "The quick fox",
    " leading  spaces\n and é 人生 🜚 12345",
    "<s>The<s> quick</s> fox </s>",
    "<|im_start|>user\nhello<|im_end|> x<|im_start|> y",
    "a<|endoftext|>b <|endoftext|>",
    "a <mask> b<mask>c <unk> [PAD]x",
    "<|begin_of_text|>ab<|eot_id|>",
]
SENTENCEPIECE = ("sentencepiece-fallback.model",)
LLAMA = ("llama2.json", "mistral.json")
BYTES = ("gpt2.json", "gpt2-prefix.json", "neox.json", "qwen2.json", "llama3.json", "llama3-plain.json")


def token(content, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True, **flags}


def size_of(base):
    if base.endswith(".model"):
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(str(FOLDER / base)).get_piece_size()
    return len(transformers.PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / base)))


def by_hand():
    sp = "sentencepiece-fallback.model"
    first = size_of(sp)
    chat = {str(first): token("<|im_start|>"), str(first + 1): token("<|im_end|>")}
    llama = {"tokenizer_class": "LlamaTokenizer", "legacy": False}
    yield sp, {"config.json": {"model_type": "llama"}}
    yield sp, {"config.json": {"model_type": "mistral"}}
    yield sp, {"tokenizer_config.json": llama}
    yield sp, {"tokenizer_config.json": {**llama, "legacy": True}}
    yield sp, {"tokenizer_config.json": {**llama, "add_bos_token": False, "add_eos_token": True}}
    yield sp, {"tokenizer_config.json": {**llama, "add_prefix_space": False}}
    yield sp, {"tokenizer_config.json": {**llama, "added_tokens_decoder": chat, "eos_token": "<|im_end|>"}}
    yield sp, {"tokenizer_config.json": {**llama, "legacy": True, "added_tokens_decoder": chat}}
    added = {"<|im_start|>": first, "<|im_end|>": first + 1}
    yield sp, {"tokenizer_config.json": {**llama, "eos_token": "<|im_end|>"}, "added_tokens.json": added}
    yield sp, {"tokenizer_config.json": {**llama, "legacy": True}, "added_tokens.json": added}
    yield sp, {"tokenizer_config.json": llama, "special_tokens_map.json": {"pad_token": "[PAD]"}}
    yield sp, {"tokenizer_config.json": {**llama, "pad_token": "[PAD]"}}
    for base in LLAMA:
        yield base, {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True}}
        yield base, {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}}
        yield base, {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True}}
        yield base, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}}
        yield base, {"config.json": {"model_type": "mistral"}}
    yield "llama3.json", {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast",
                                                    "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}}
    yield "qwen2.json", {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": True,
                                                   "add_prefix_space": False, "bos_token": None,
                                                   "pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}}
    yield "gpt2.json", {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True,
                                                  "add_prefix_space": False, "pad_token": "[PAD]"}}
    yield "gpt2-prefix.json", {"tokenizer_config.json": {"tokenizer_class": "GPT2TokenizerFast"}}
    yield "gpt2-prefix.json", {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}}
    yield "neox.json", {"tokenizer_config.json": {"tokenizer_class": "GPTNeoXTokenizerFast", "add_bos_token": True}}
    yield "neox.json", {"tokenizer_config.json": {"tokenizer_class": "GPTNeoXTokenizer"}}
    yield "gpt2.json", {"config.json": {"model_type": "gpt2"}}
    yield "neox.json", {"config.json": {"model_type": "gpt_neox"}}
    yield "qwen2.json", {"config.json": {"model_type": "qwen3"}}


def random_flags(generator):
    return {name: generator.random() < 0.3 for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}


def at_random(generator):
    base = generator.choice(SENTENCEPIECE * 3 + LLAMA * 2 + BYTES)
    first = size_of(base)
    names = {"bytes": ["PreTrainedTokenizerFast", "GPT2Tokenizer", "GPTNeoXTokenizerFast", "Qwen2TokenizerFast"],
             "llama": ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer"]}
    config = {"tokenizer_class": generator.choice(names["bytes" if base in BYTES else "llama"])}
    for field in ("add_bos_token", "add_eos_token", "legacy", "add_prefix_space"):
        if generator.random() < 0.3:
            config[field] = generator.choice([True, False, None])
    contents = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "[PAD]", "<mask>", "The", "x"]
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
            "files": {name: json.dumps(content, ensure_ascii=False) for name, content in files.items()}}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(FOLDER / base, pathlib.Path(folder, "tokenizer" + pathlib.Path(base).suffix))
        for name, content in made["files"].items():
            pathlib.Path(folder, name).write_text(content)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # the program may read such a folder or not
            assert not must, (base, files, error)
            return None
        made["size"] = len(tokenizer)
        made["ids"] = [tokenizer(text)["input_ids"] for text in TEXTS]
    return made


def main():
    assert transformers.__version__ == VERSION, f"needs transformers {VERSION}, found {transformers.__version__}"
    folders = [answer(base, files, True) for base, files in by_hand()]
    generator = random.Random(11)
    for _ in range(150):
        made = answer(*at_random(generator), False)
        if made:
            folders.append(made)
    lines = ",\n".join(json.dumps(folder, ensure_ascii=False, separators=(",", ":")) for folder in folders)
    texts = json.dumps(TEXTS, ensure_ascii=False)
    (FOLDER / "folders.json").write_text(f'{{"texts": {texts},\n"folders": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
