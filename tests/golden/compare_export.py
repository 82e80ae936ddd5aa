"""Measures an exported folder in `transformers`: bits per byte, over the windows that `megascale evaluate` measures.

    megascale evaluate --checkpoint DIR --data book.txt --windows 64 -o json
    megascale checkpoint export DIR --format hf --out FOLDER
    python3 tests/golden/compare_export.py FOLDER book.txt --seq 64 --windows 64 --held-out 0.1

For byte-level models. Needs torch and transformers; no test runs it. Both numbers should agree to 1e-5.
"""

import argparse
import math

import torch
import transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("--seq", type=int, required=True, help="train.seq_length of the job")
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--held-out", type=float, default=0.1, help="data.held_out_fraction of the job")
    options = parser.parse_args()

    with open(options.text, "rb") as file:
        data = file.read()
    data = data[len(data) - int(len(data) * options.held_out):]
    windows = min(options.windows, (len(data) - 1) // options.seq)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    nats = 0.0
    with torch.no_grad():
        for window in range(windows):
            piece = data[window * options.seq:(window + 1) * options.seq + 1]
            tokens = torch.tensor(list(piece)).unsqueeze(0)
            logits = model(input_ids=tokens[:, :-1]).logits[0].double()
            nats += torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()
    print(f"{type(model).__name__}: {nats / math.log(2) / (windows * options.seq):.7f} bits per byte over {windows} "
          f"windows of {options.seq}; {len(data)} held-out bytes")


if __name__ == "__main__":
    main()
