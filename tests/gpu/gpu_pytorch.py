#!/usr/bin/env python3
"""PyTorch on this machine's GPU, at the shapes that gpu-check.sh gives to Megascale.

The step is what PyTorch recommends for speed: torch.compile, bf16 by autocast over fp32 weights,
scaled_dot_product_attention, tied embeddings, fused AdamW, clipping of the gradient's norm. The model is
that of gpt2_pytorch.py, which lies beside this file in the bundle.

    gpu_pytorch.py train --layers 12 --hidden-size 768 --heads 12 --seq-length 1024 --batch 16 --micro-batch 16
    gpu_pytorch.py attention --heads 32 --head-dim 128 --seq-length 4096 --batch 2

Prints one JSON object a line. Ends with 77 where there is no PyTorch, or PyTorch finds no GPU.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

LEFT_OUT = 77


def left_out(why):
    print(f"gpu_pytorch: {why}", file=sys.stderr)
    sys.exit(LEFT_OUT)


def import_torch():
    try:
        import torch
    except ImportError:
        left_out("PyTorch is not installed (pip install torch numpy)")
    if not torch.cuda.is_available():
        left_out(f"PyTorch {torch.__version__} finds no GPU")
    torch.set_default_device("cuda")
    return torch


def model_class():
    here = pathlib.Path(__file__).resolve().parent
    for folder in (here, here.parent / "bench" / "peers"):
        if (folder / "gpt2_pytorch.py").exists():
            sys.path.insert(0, str(folder))
            break
    from gpt2_pytorch import Gpt2

    return Gpt2


def seconds_of(torch, call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def train(args):
    torch = import_torch()
    torch.manual_seed(1)
    model = model_class()(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if args.mode == "compiled" else model
    data = torch.randint(0, args.vocab_size, (args.batch, args.seq_length + 1))
    micro_batches = data.split(args.micro_batch)

    def step():
        optimizer.zero_grad(set_to_none=True)
        for tokens in micro_batches:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = run(tokens[:, :-1], tokens[:, 1:])
            (loss / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(args.warmup):
        step()
    seconds = [seconds_of(torch, step) for _ in range(args.steps)]
    median = statistics.median(seconds)
    return {
        "what": "train",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens_per_second": args.batch * args.seq_length / median,
        "step_seconds": median,
        "memory_bytes": torch.cuda.max_memory_allocated(),
    }


def attention(args):
    torch = import_torch()
    shape = (args.batch, args.heads, args.seq_length, args.head_dim)
    q_BHTD, k_BHTD, v_BHTD = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    d_out_BHTD = torch.randn(shape, dtype=torch.bfloat16)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)

    # A causal query sees half of the keys; two products forward, and five backward.
    product_flops = args.batch * args.heads * args.seq_length**2 * args.head_dim
    def backward(out_BHTD):
        torch.autograd.grad(out_BHTD, (q_BHTD, k_BHTD, v_BHTD), d_out_BHTD)

    forwards, backwards = [], []
    for _ in range(args.warmup + args.steps):
        forwards.append(seconds_of(torch, forward))
        out_BHTD = forward()
        backwards.append(seconds_of(torch, lambda: backward(out_BHTD)))
    times = {
        "attention": statistics.median(forwards[args.warmup :]),
        "attention, backward": statistics.median(backwards[args.warmup :]),
    }
    return {
        "what": "attention",
        "operators": [
            {"name": name, "seconds": seconds, "per_second": num_products * product_flops / seconds, "unit": "FLOP"}
            for (name, seconds), num_products in zip(times.items(), (2, 5))
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_train = commands.add_parser("train")
    for name, default in (("layers", 12), ("hidden-size", 768), ("vocab-size", 50304), ("micro-batch", 16)):
        of_train.add_argument(f"--{name}", type=int, default=default)
    of_train.add_argument("--mode", choices=("compiled", "eager"), default="compiled")
    of_attention = commands.add_parser("attention")
    of_attention.add_argument("--head-dim", type=int, default=128)
    for command in (of_train, of_attention):
        for name, default in (("heads", 12), ("seq-length", 1024), ("batch", 16), ("steps", 30), ("warmup", 10)):
            command.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if args.command == "train" and args.batch % args.micro_batch != 0:
        parser.error(f"--batch {args.batch} is no multiple of --micro-batch {args.micro_batch}")
    result = {"train": train, "attention": attention}[args.command](args)
    torch = import_torch()
    result |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    result |= {name: value for name, value in vars(args).items() if name != "command"}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
