#!/usr/bin/env python3
"""Whether two versions of the program train to the same bits.

    bits.py OLD NEW [--steps 20]

OLD and NEW are megascale programs; `./dev bench bits COMMIT` builds that of a commit and compares it with this tree's. Each trains
the same small jobs, of several models in several layouts and precisions, with `megascale local`. Prints a line for each job: the
digest of its last checkpoint (weights, optimizer state, step, data position), or both where they differ. Exits with 1 if one does.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import layouts

DEADLINE_SECONDS = 300
JOB = """name: bits
model: {hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4}
data: {files: [TEXT]}
train: {steps: 20, seq_length: 32, global_batch_size: 16, micro_batch_size: 2, seed: 3}
optimizer: {lr: 3e-3, warmup_steps: 5, clip_grad: 1.0}
checkpoint: {interval: 10, keep: 2}
"""
LLAMA = ("model.num_key_value_heads=2", "model.position_embedding=rotary", "model.norm=rmsnorm", "model.hidden_act=swiglu")
BF16 = ("train.precision=bf16",)
JOBS = {
    "one rank": (),
    "one rank, bf16": BF16,
    "one rank, as Llama": LLAMA,
    "data 2": ("parallel.data_parallel_size=2",),
    "data 2, as Llama, bf16": ("parallel.data_parallel_size=2", *LLAMA, *BF16),
    "data 2, ZeRO 2": ("parallel.data_parallel_size=2", "parallel.zero_stage=2"),
    "pipeline 2": ("parallel.pipeline_model_parallel_size=2",),
    "pipeline 2, zero bubble": ("parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=zb_h1"),
    "pipeline 2, interleaved": ("parallel.pipeline_model_parallel_size=2", "parallel.virtual_pipeline_model_parallel_size=2"),
    "tensor 2": ("parallel.tensor_model_parallel_size=2",),
    "data 2, pipeline 2, as Llama": ("parallel.data_parallel_size=2", "parallel.pipeline_model_parallel_size=2", *LLAMA),
    "pipeline 2, tensor 2, bf16": ("parallel.pipeline_model_parallel_size=2", "parallel.tensor_model_parallel_size=2", *BF16),
}


def compare(digests):
    """Returns a line for each job, and how many differ. `digests`: those of the old and the new program, by job."""
    lines = []
    num_different = 0
    for name, (old, new) in digests.items():
        if old == new:
            lines.append(f"{name:<32} {new}")
        else:
            num_different += 1
            lines.append(f"{name:<32} differs: old {old}, new {new}")
    return lines, num_different


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=DEADLINE_SECONDS)
    if done.returncode != 0:
        sys.exit(f"bits: {' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def train(program, settings, steps):
    """Trains a job and returns the digest of its last checkpoint."""
    with tempfile.TemporaryDirectory(prefix="megascale-bits-") as folder:
        directory = pathlib.Path(folder)
        job = layouts.write_job(directory, JOB)
        flags = [flag for setting in (f"train.steps={steps}", *settings) for flag in ("--set", setting)]
        run([program, "local", job, "--job-id", "bits", "--state-dir", directory / "out", *flags])
        last = max((directory / "out/jobs/bits/checkpoints").glob("step-*"))
        return run([program, "checkpoint", "digest", last]).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the megascale program of the version to compare with")
    parser.add_argument("new", help="that of this version")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("expected at least 1 step")
    digests = {}
    for name, settings in JOBS.items():
        digests[name] = tuple(train(program, settings, options.steps) for program in (options.old, options.new))
        print(compare({name: digests[name]})[0][0], flush=True)
    num_different = compare(digests)[1]
    print(f"{len(digests) - num_different} of {len(digests)} jobs have the same bits")
    sys.exit(1 if num_different else 0)


if __name__ == "__main__":
    main()
