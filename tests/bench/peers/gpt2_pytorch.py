"""Times a training step of GPT-2 124M in PyTorch on this machine's CPU: the peer of step_benchmark.

Prints one JSON object per configuration: {"peer": "pytorch 2.x", "mode": "eager"|"compiled",
"precision": "fp32"|"bf16", "seconds": median of the timed steps, "least_seconds": …, "loss": …}.

The step is what PyTorch's own examples recommend for speed: scaled_dot_product_attention, tied
embeddings, fused AdamW, clipping of the gradient's norm, bf16 by autocast over fp32 weights.

    python3 -m venv peers && peers/bin/pip install torch numpy
    peers/bin/python tests/bench/peers/gpt2_pytorch.py --threads 2
"""

import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.input_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.attention_out = nn.Linear(hidden, hidden)
        self.post_attention_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x_BTC):
        batch, seq, hidden = x_BTC.shape
        qkv = self.qkv(self.input_norm(x_BTC)).view(batch, seq, 3, self.heads, hidden // self.heads)
        q_BHTD, k_BHTD, v_BHTD = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        x_BTC = x_BTC + self.attention_out(attended.transpose(1, 2).reshape(batch, seq, hidden))
        inner = F.gelu(self.up(self.post_attention_norm(x_BTC)), approximate="tanh")
        return x_BTC + self.down(inner)


class Gpt2(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.positions = nn.Embedding(args.seq_length, args.hidden_size)
        self.blocks = nn.ModuleList(Block(args.hidden_size, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.hidden_size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BT, targets_BT):
        positions = torch.arange(tokens_BT.shape[1])
        x_BTC = self.tokens(tokens_BT) + self.positions(positions)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits = F.linear(self.norm(x_BTC), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())


def measure(args, precision, mode):
    torch.manual_seed(1)
    model = Gpt2(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if mode == "compiled" else model
    data = torch.randint(0, args.vocab_size, (args.batch, args.seq_length + 1))

    def step():
        optimizer.zero_grad(set_to_none=args.set_to_none)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = run(data[:, :-1], data[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    for _ in range(args.warmup):
        loss = step()
    seconds = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - begin)
    return {
        "peer": f"pytorch {torch.__version__}",
        "mode": mode,
        "precision": precision,
        "seconds": statistics.median(seconds),
        "least_seconds": min(seconds),
        "loss": loss,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each configuration")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocab-size", type=int, default=50304)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp32"], choices=["bf16", "fp32"])
    parser.add_argument("--mode", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    parser.add_argument("--set-to-none", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for precision in args.precision:
        for mode in args.mode:
            try:
                print(json.dumps(measure(args, precision, mode)), flush=True)
            except Exception as error:  # a mode that this installation cannot run is said, not hidden
                line = str(error).strip().splitlines()[0]
                print(f"gpt2_pytorch: {precision}, {mode}: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
