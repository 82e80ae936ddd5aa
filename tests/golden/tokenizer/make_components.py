"""Lists the fields of components that the reference, the tokenizers package from PyPI, writes into a tokenizer.json.

    /tmp/reference/bin/python tests/golden/tokenizer/make_components.py

Run it from the repository's root, once with tokenizers 0.22.2 and once with 0.23.3: each adds its list to
tests/golden/tokenizer/tokenizer_components.json. It loads each tokenizer.json of this directory, which are those of the
supported families, adds tokens, saves it, and walks what was written. Neither product nor tests need it.
"""

import json
import pathlib

import tokenizers

FOLDER = pathlib.Path("tests/golden/tokenizer")
OUTPUT = FOLDER / "tokenizer_components.json"
SECTIONS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors",
            "decoder": "decoders"}


def walk(section, component, found):
    if component is None:
        return
    found |= {(section, component["type"], field) for field in component}
    for inner in component.get(SECTIONS[section], []):
        walk(section, inner, found)


def main():
    found = set()
    for path in sorted(FOLDER.glob("*.json")):
        if "model" not in json.loads(path.read_text()):
            continue
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.add_special_tokens(["<|new|>"])
        tokenizer.add_tokens([tokenizers.AddedToken("<new>", lstrip=True)])
        file = json.loads(tokenizer.to_str())
        found |= {("", "", field) for field in file}
        found |= {("added_tokens", "", field) for token in file["added_tokens"] for field in token}
        found |= {("model", file["model"]["type"], field) for field in file["model"]}
        for section in SECTIONS:
            walk(section, file[section], found)
    lists = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    lists[tokenizers.__version__] = sorted(found)
    lines = ",\n".join(f" {json.dumps(version)}: {json.dumps(fields)}" for version, fields in sorted(lists.items()))
    OUTPUT.write_text("{\n" + lines + "\n}\n")


main()
