"""Makes the golden files of SentencePiece models by PyPI's `sentencepiece` alone.

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install sentencepiece==0.2.3
    /tmp/reference/bin/python tests/golden/tokenizer/make_sentencepiece.py

Run it from the repository's root, after make_golden.py, whose cases it encodes. It writes

    sentencepiece-NAME.model          small models: "fallback" as Llama 2 has it, "plain" without bytes and prefix
    sentencepiece-NAME.expected.json  for each case the ids, run-length encoded: "5 7*3" is 5 7 7 7; and of the text that
                                      they decode to, the first 16 digits of the SHA-256
"""

import hashlib
import json
import pathlib

import sentencepiece

VERSION = "0.2.3"
FOLDER = pathlib.Path("tests/golden/tokenizer")
MODELS = {
    "fallback": dict(vocab_size=700, byte_fallback=True, add_dummy_prefix=True),
    "plain": dict(vocab_size=450, byte_fallback=False, add_dummy_prefix=False),
}


def run_lengths(ids):
    words = []
    for i in ids:
        if words and words[-1][0] == i:
            words[-1][1] += 1
        else:
            words.append([i, 1])
    return " ".join(str(i) if count == 1 else f"{i}*{count}" for i, count in words)


def text_of(case):
    return b"".join(bytes.fromhex(part) * repeats for part, repeats in case[1]).decode("utf-8", errors="replace")


def answer(processor, text):
    ids = processor.encode(text)
    decoded = processor.decode(ids)
    return {"ids": run_lengths(ids), "text": hashlib.sha256(decoded.encode()).hexdigest()[:16]}


def main():
    assert sentencepiece.__version__ == VERSION, f"needs {VERSION}, found {sentencepiece.__version__}"
    cases = json.loads((FOLDER / "cases.json").read_text())
    for name, options in MODELS.items():
        prefix = FOLDER / f"sentencepiece-{name}"
        sentencepiece.SentencePieceTrainer.train(
            input=str(FOLDER / "train.txt"), model_prefix=str(prefix), model_type="bpe", character_coverage=0.98,
            normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1,
            max_sentence_length=100000, minloglevel=2, **options)
        prefix.with_suffix(".vocab").unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
        answers = [json.dumps(answer(processor, text_of(case))) for case in cases]
        pathlib.Path(f"{prefix}.expected.json").write_text("[\n" + ",\n".join(answers) + "\n]\n")


main()
