"""Checks that the program reads random folders of tokenizers as the reference does, or refuses them.

    /tmp/reference/bin/python tests/golden/tokenizer/check_folders.py --program bazel-bin/cli/megascale --seeds 1 2 3

Run it from the repository's root, with transformers 4.57. The folders are those of make_folders.py and
make_vocabularies.py, of other seeds than the golden files have. It prints a line for each seed and ends with status 1 if
the program gives other tokens, or reads files that the reference cannot read. Run by hand; no test needs it.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import transformers  # noqa: E402

import make_folders  # noqa: E402
import make_vocabularies  # noqa: E402


def write(folder, generator, kind):
    """Writes a random folder and returns what it has, for people."""
    base, files = kind.at_random(generator)
    if kind is make_folders:
        name = "tokenizer" + pathlib.Path(base).suffix
        pathlib.Path(folder, name).write_bytes((kind.FOLDER / base).read_bytes())
    else:
        for name, content in kind.files_of(base).items():
            pathlib.Path(folder, name).write_text(content)
    for name, content in files.items():
        pathlib.Path(folder, name).write_text(make_folders.json.dumps(content))
    return f"{base} {files}"


def reference(folder):
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return [tokenizer(text)["input_ids"] for text in make_folders.TEXTS[1:]]
    except Exception:
        return None


def ours(program, folder):
    ids = []
    for text in make_folders.TEXTS[1:]:
        done = subprocess.run([program, "tokenizer", "encode", "--tokenizer", folder, "--text", text],
                              capture_output=True, text=True)
        if done.returncode != 0:
            return None
        ids.append([int(number) for number in done.stdout.split()])
    return ids


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--folders", type=int, default=60)
    options = parser.parse_args()
    failed = False
    for seed in options.seeds:
        for kind in (make_folders, make_vocabularies):
            generator = random.Random(seed)
            counts = {"same": 0, "refused": 0, "refused by both": 0, "read by us alone": 0, "WRONG": 0}
            for _ in range(options.folders):
                with tempfile.TemporaryDirectory() as folder:
                    shown = write(folder, generator, kind)
                    right, found = reference(folder), ours(options.program, folder)
                if found is None:
                    counts["refused by both" if right is None else "refused"] += 1
                elif found == right:
                    counts["same"] += 1
                elif right is None and kind is make_folders:
                    counts["read by us alone"] += 1  # it wants the tokenizer.model beside a tokenizer.json
                else:
                    counts["WRONG"] += 1
                    print(f"  {shown}\n  {right}\n  {found}")
            failed = failed or counts["WRONG"] > 0
            print(f"seed {seed}, {kind.__name__}: {counts}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
