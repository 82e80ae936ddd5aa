"""Times a training step of GPT-2 124M in PyTorch on this machine's CPU, by turns with Megascale's.

The step is what PyTorch's own examples recommend for speed: scaled_dot_product_attention, tied
embeddings, fused AdamW, clipping of the gradient's norm, bf16 by autocast over fp32 weights.

A machine that others use too is faster in one minute than in the next. So with --against, which
names Megascale's step_benchmark, all are warmed up and then take turns: a few steps of one, a few of
the next, in rounds; who waits, sleeps. Medians are over all rounds, and the ratio of each round is
printed beside; the peer of a ratio is the best mode of PyTorch. Without --against PyTorch is timed
alone. The mode max-autotune measures kernels for each product while it is warmed up, which takes
minutes. The processor and its instruction sets for products are printed first, because ratios differ
between them.

    python3 -m venv peers && peers/bin/pip install torch numpy
    peers/bin/python tests/bench/peers/gpt2_pytorch.py --against bazel-bin/tests/bench/step_benchmark
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
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


SIZES = {
    "threads": 2,
    "layers": 12,
    "hidden-size": 768,
    "heads": 12,
    "vocab-size": 50304,
    "batch": 4,
    "seq-length": 256,
}
ROUND_SECONDS_MAX = 600
# By mode of this program: that of torch.compile.
COMPILE_MODES = {"compiled": "default", "max-autotune": "max-autotune"}
MODES = ["eager", *COMPILE_MODES]
# Flags of /proc/cpuinfo that decide how matrix products are computed, the widest last.
INSTRUCTION_SETS = ["avx2", "avx512f", "avx512_bf16", "amx_bf16"]


def machine():
    """Names the processor and what it has for matrix products."""
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    flags = found.get("flags", "").split()
    sets = [name for name in INSTRUCTION_SETS if name in flags]
    return f"{found.get('model name', 'unknown processor')}, {os.cpu_count()} threads, {' '.join(sets) or 'no AVX2'}"


class PyTorchStep:
    """The step in one mode and precision. Called with a number of steps, returns their seconds."""

    def __init__(self, args, precision, mode):
        torch.manual_seed(1)
        self.name = f"PyTorch {torch.__version__}, {mode}"
        self.precision = precision
        self.set_to_none = args.set_to_none
        self.model = Gpt2(args)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.run = self.model if mode == "eager" else torch.compile(self.model, mode=COMPILE_MODES[mode])
        self.data = torch.randint(0, args.vocab_size, (args.batch, args.seq_length + 1))
        self(args.warmup)

    def step(self):
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            loss = self.run(self.data[:, :-1], self.data[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def __call__(self, steps):
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - begin)
        return seconds


class MegascaleStep:
    """As PyTorchStep, for `step_benchmark --on-request`, which is a separate process."""

    name = "Megascale"

    def __init__(self, args, precision):
        sizes = [f"--{name}={getattr(args, name.replace('-', '_'))}" for name in SIZES]
        # The user's settings of threads are for PyTorch; these processes choose their own.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
        self.process = subprocess.Popen(
            [args.against, "--on-request", "--precision", precision, *sizes],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, steps):
        late = threading.Timer(ROUND_SECONDS_MAX, self.process.kill)
        late.start()
        try:
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            late.cancel()
        if not line:
            raise SystemExit(f"gpt2_pytorch: {self.process.args[0]} ended, or took over {ROUND_SECONDS_MAX} s")
        return json.loads(line)

    def end(self):
        self.process.kill()
        self.process.wait()


def take_turns(runs, num_steps, steps_of_round):
    """Returns, by run, the seconds of each round: [[s, …], …]."""
    seconds = [[] for _ in runs]
    for begin in range(0, num_steps, steps_of_round):
        for of_run, run in zip(seconds, runs):
            of_run.append(run(min(steps_of_round, num_steps - begin)))
    return seconds


def compare(args, precision):
    runs = [MegascaleStep(args, precision)] if args.against else []
    try:
        if args.against:
            runs[0](1)  # warms up while nothing else runs
        for mode in args.mode:
            try:
                runs.append(PyTorchStep(args, precision, mode))
            except Exception as error:  # a mode that this installation cannot run is said, not hidden
                line = (str(error).strip() or repr(error)).splitlines()[0]
                print(f"gpt2_pytorch: {precision}, {mode}: {line}", file=sys.stderr)
        if not any(isinstance(run, PyTorchStep) for run in runs):
            raise SystemExit(f"gpt2_pytorch: {precision}: this PyTorch runs in none of: {', '.join(args.mode)}")
        rounds = take_turns(runs, args.steps, args.steps_of_round)
    finally:
        if args.against:
            runs[0].end()
    medians = []
    for run, of_run in zip(runs, rounds):
        steps = [second for of_round in of_run for second in of_round]
        medians.append(statistics.median(steps))
        print(
            f"{precision}: {run.name}: {medians[-1] * 1e3:.1f} ms "
            f"(median of {len(steps)}; least {min(steps) * 1e3:.1f})",
            flush=True,
        )
    if args.against:
        of_rounds = [
            min(statistics.median(peer[i]) for peer in rounds[1:]) / statistics.median(rounds[0][i])
            for i in range(len(rounds[0]))
        ]
        print(
            f"{precision}: Megascale's step is {min(medians[1:]) / medians[0]:.2f} times as fast as the best of "
            f"these; by round: {' '.join(f'{ratio:.2f}' for ratio in of_rounds)}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="PROGRAM", help="step_benchmark, to take turns with")
    parser.add_argument("--steps", type=int, default=9, help="timed steps of each")
    parser.add_argument("--steps-of-round", type=int, default=3, help="steps before it is the next one's turn")
    parser.add_argument("--warmup", type=int, default=3)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp32"], choices=["bf16", "fp32"])
    parser.add_argument("--mode", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--set-to-none", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    if min(args.steps, args.steps_of_round) < 1:
        parser.error("--steps and --steps-of-round must be at least 1")
    if args.against and not os.access(args.against, os.X_OK):
        parser.error(f"--against: {args.against} is no program; build //tests/bench:step_benchmark first")
    torch.set_num_threads(args.threads)
    print(machine(), flush=True)
    for precision in args.precision:
        compare(args, precision)


if __name__ == "__main__":
    main()
