"""Lists the fields that the reference, the transformers package from PyPI, writes into the files of tokenizers.

    /tmp/reference/bin/python tests/golden/tokenizer/make_fields.py

Run it from the repository's root, once with transformers 4.57.3 and once with 5.24.0: each adds its list to
tests/golden/tokenizer/tokenizer_fields.json. It loads a tokenizer of each supported class, saves it, and walks the
files. Neither product nor tests need it.
"""

import json
import os
import pathlib
import shutil
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import transformers  # noqa: E402

FOLDER = pathlib.Path("tests/golden/tokenizer")
OUTPUT = FOLDER / "tokenizer_fields.json"
FAMILIES = [
    ("llama2.json", "LlamaTokenizer"),
    ("mistral.json", "LlamaTokenizerFast"),
    ("llama2.json", "CodeLlamaTokenizer"),
    ("llama3.json", "PreTrainedTokenizerFast"),
    ("qwen2.json", "Qwen2Tokenizer"),
    ("gpt2.json", "GPT2Tokenizer"),
    ("neox.json", "GPTNeoXTokenizerFast"),
    ("sentencepiece-fallback.model", "LlamaTokenizer"),
]


def main():
    configs, parts = set(), set()
    for base, name in FAMILIES:
        with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as target:
            shutil.copy(FOLDER / base, pathlib.Path(source, "tokenizer" + pathlib.Path(base).suffix))
            config = {"tokenizer_class": name, "pad_token": "[PAD]", "chat_template": "{{ messages }}"}
            pathlib.Path(source, "tokenizer_config.json").write_text(json.dumps(config))
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
            tokenizer("a b", padding="max_length", truncation=True, max_length=8)
            tokenizer.save_pretrained(target)
            configs |= set(json.loads(pathlib.Path(target, "tokenizer_config.json").read_text()))
            parts |= set(json.loads(pathlib.Path(target, "tokenizer.json").read_text()))
    lists = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    lists[transformers.__version__] = {"tokenizer_config.json": sorted(configs), "tokenizer.json": sorted(parts)}
    OUTPUT.write_text(json.dumps(lists, indent=1, sort_keys=True) + "\n")


main()
