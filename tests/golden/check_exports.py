"""Loads exported folders in `transformers` and compares logits, loss and token ids with ours.

    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install torch==2.6.0 transformers==4.57.1
    bazel build //cli:megascale
    MEGASCALE_PEER_PYTHON=/tmp/peer/bin/python
    $MEGASCALE_PEER_PYTHON tests/golden/check_exports.py

Run it from the repository's root; no test runs it. It checks

  models      every folder of tests/golden/folders, imported and exported again with the folder hidden, so that
              config.json is one that we wrote: logits within 1e-5 of the largest one
  tokenizers  jobs of one step with a learnt tokenizer and with those of tests/golden/tokenizer: the ids of AutoTokenizer
              on every case are those of `megascale tokenizer encode`; also what AutoTokenizer gives without our
              tokenizer_config.json
  loss        the exported model with the learnt tokenizer: the loss of `megascale evaluate` to 1e-5
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

FOLDERS = pathlib.Path("tests/golden/folders")
TOKENIZERS = pathlib.Path("tests/golden/tokenizer")
SEQUENCE = 32
JOB = """
name: peer
model:
  hidden_size: 32
  num_hidden_layers: 2
  num_attention_heads: 2
  norm: rmsnorm
  hidden_act: swiglu
  position_embedding: rotary
  attention_bias: false
  mlp_bias: false
data:
  files: [{text}]
  token_cache: {root}/tokens
  {tokenizer}
train:
  steps: {steps}
  seq_length: 32
  global_batch_size: 8
  micro_batch_size: 8
  precision: fp32
optimizer:
  lr: 3e-3
"""


class Checker:
    def __init__(self, program, root):
        self.program = str(pathlib.Path(program).resolve())
        self.root = pathlib.Path(root)
        self.failures = 0

    def run(self, *words):
        environment = dict(os.environ, XDG_STATE_HOME=str(self.root / "state"))
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            sys.exit(f"megascale {' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def report(self, what, good, found):
        self.failures += not good
        print(f"{'ok  ' if good else 'FAIL'} {what}: {found}", flush=True)

    def export_of_golden(self, name):
        imported, out = self.root / f"in-{name}", self.root / f"out-{name}"
        self.run("checkpoint", "import", FOLDERS / name, "--out", imported)
        shutil.rmtree(imported / "hugging_face")  # the origin is gone
        self.run("checkpoint", "export", imported, "--out", out)
        return out

    def check_model(self, name):
        out = self.export_of_golden(name)
        expected = safetensors.torch.load_file(FOLDERS / name / "expected.safetensors")
        model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(input_ids=expected["tokens"][:, :-1].long()).logits
        distance = (logits - expected["logits"]).abs().max() / expected["logits"].abs().max()
        self.report(f"model {name}, {type(model).__name__}", distance <= 1e-5,
                    f"logits differ by {distance:.1e} of the largest one")

    def train_and_export(self, name, tokenizer, steps):
        """Trains a job for some steps with a line of the data section that names a tokenizer; returns the export."""
        job, out = self.root / f"{name}.yaml", self.root / f"job-{name}"
        job.write_text(JOB.format(text=(TOKENIZERS / "train.txt").resolve(), root=self.root,
                                  tokenizer=tokenizer, steps=steps))
        self.run("local", job, "--agents", 1, "--slots", 1, "--job-id", name, "--state-dir", self.root / "runs")
        self.run("checkpoint", "export", self.root / "runs/jobs" / name / "checkpoints", "--out", out)
        return out

    def check_tokenizer(self, name, out, cases):
        ours = [list(map(int, line.split())) for line in
                self.run("tokenizer", "encode", "--tokenizer", out, cases).splitlines()]
        texts = [path.read_text() for path in sorted(cases.iterdir())]
        assert len(ours) == len(texts)
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        theirs = [tokenizer(text)["input_ids"] for text in texts]
        same = sum(a == b for a, b in zip(ours, theirs))
        self.report(f"tokenizer {name}, {type(tokenizer).__name__}, eos {tokenizer.eos_token}",
                    same == len(texts), f"{same} of {len(texts)} texts agree")
        (out / "tokenizer_config.json").unlink()
        try:
            plain = transformers.AutoTokenizer.from_pretrained(out)
            first = plain("Love is")["input_ids"]
            print(f"     without tokenizer_config.json: {type(plain).__name__}, 'Love is' is {first}, here it is "
                  f"{tokenizer('Love is')['input_ids']}")
        except Exception as error:  # whatever `transformers` says
            print(f"     without tokenizer_config.json: {type(error).__name__}: {str(error).splitlines()[0][:90]}")

    def check_loss(self, out):
        text = (TOKENIZERS / "train.txt").resolve()
        ours = json.loads(self.run("evaluate", "--checkpoint", out, "--data", text, "--whole", "--seq-length", SEQUENCE,
                                   "-o", "json"))["loss"]
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
        ids = torch.tensor(tokenizer(text.read_text())["input_ids"] + [model.config.eos_token_id])
        windows = (len(ids) - 1) // SEQUENCE
        inputs = ids[:windows * SEQUENCE].reshape(windows, SEQUENCE)
        targets = ids[1:windows * SEQUENCE + 1]
        with torch.no_grad():
            logits = model(input_ids=inputs).logits.reshape(windows * SEQUENCE, -1).double()
        theirs = torch.nn.functional.cross_entropy(logits, targets).item()
        self.report("loss of the trained model", abs(ours - theirs) <= 1e-5 * theirs,
                    f"ours {ours:.7f}, theirs {theirs:.7f} nats per token over {windows} windows of {SEQUENCE}")


def write_cases(folder):
    folder.mkdir()
    count = 0
    for _, parts in json.loads((TOKENIZERS / "cases.json").read_text()):
        content = b"".join(bytes.fromhex(part) * repeats for part, repeats in parts)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        if text and "\r" not in text:  # Python reads "\r" of a file as "\n"
            (folder / f"case-{count:03}.txt").write_bytes(content)
            count += 1
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="bazel-bin/cli/megascale")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as root:
        checker = Checker(options.program, root)
        for folder in sorted(FOLDERS.iterdir()):
            checker.check_model(folder.name)
        cases = write_cases(pathlib.Path(root) / "cases")
        learnt = checker.train_and_export("learnt", "tokenizer_vocab_size: 400", steps=60)
        checker.check_loss(learnt)
        checker.check_tokenizer("learnt", learnt, cases)
        for name in ("gpt2", "llama2", "llama3", "mistral", "qwen2", "neox"):
            path = (TOKENIZERS / f"{name}.json").resolve()
            checker.check_tokenizer(name, checker.train_and_export(name, f"tokenizer: {path}", steps=1), cases)
    sys.exit(1 if checker.failures else 0)


if __name__ == "__main__":
    main()
