#!/usr/bin/env python3
"""What a toy job costs in processor time: to start and end it, a step, a checkpoint. Of several programs by turns.

    toy.py --program megascale [--program another] [--rounds 3]

Each run is a driver and an agent of its own that train the toy of tests/e2e on four ranks and end; the processor time is that of all
their processes. Three runs make a round: of one step, of many, and of many with checkpoints in between.
"""

import argparse
import ctypes
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import tempfile

import layouts

STEPS = 161
INTERVAL = 10
RUNS = {"start": (1, 1000), "steps": (STEPS, 1000), "checkpoints": (STEPS, INTERVAL)}  # steps, checkpoint interval
JOB = """name: toy
model: {hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4}
data: {files: [TEXT]}
train: {steps: 1, seq_length: 32, global_batch_size: 16, micro_batch_size: 2, seed: 3, eval_interval: 0}
optimizer: {lr: 3e-3, warmup_steps: 0, clip_grad: 1.0}
parallel: {data_parallel_size: 2, pipeline_model_parallel_size: 2}
"""
PR_SET_CHILD_SUBREAPER = 36


def costs(seconds):
    """Returns the processor seconds of start and end, a step and a checkpoint, from those of the three runs."""
    step = (seconds["steps"] - seconds["start"]) / (STEPS - 1)
    return {
        "start and end": seconds["start"] - step,
        "a step": step,
        "a checkpoint": (seconds["checkpoints"] - seconds["steps"]) / ((STEPS - 1) // INTERVAL),
    }


def used():
    """Returns the processor seconds of all processes that this one has started, and they, and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def reap():
    """Waits for the end of processes whose parents have ended."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def run(program, steps, interval):
    """Trains, and returns the processor seconds."""
    before = used()
    with tempfile.TemporaryDirectory(prefix="megascale-toy-") as folder:
        directory = pathlib.Path(folder)
        job = layouts.write_job(directory, JOB)
        with layouts.Cluster(program, directory) as cluster:
            cluster.run("submit", str(job), "--job-id", "toy", "--retry-for", "30s", "--set", f"train.steps={steps}", "--set",
                        f"checkpoint.interval={interval}")
            waiting = subprocess.run([program, "wait", "toy"], env=cluster.environment, capture_output=True, text=True, check=False,
                                     timeout=layouts.DEADLINE_SECONDS)
            if waiting.returncode != 0:
                sys.exit(f"toy: the job did not succeed:\n{waiting.stdout}{waiting.stderr}")
    reap()
    return used() - before


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends, too
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", action="append", required=True, help="megascale; several are measured by turns")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    found = {program: [] for program in flags.program}
    for turn in range(flags.rounds):
        for program in flags.program:
            seconds = {name: run(program, *what) for name, what in RUNS.items()}
            found[program].append(costs(seconds))
            print(f"round {turn + 1} of {flags.rounds}, {program}: " + ", ".join(f"{k} {v:.2f} s" for k, v in seconds.items()),
                  file=sys.stderr)
    for program, rounds in found.items():
        print(program)
        for part in rounds[0]:
            values = [1e3 * one[part] for one in rounds]
            print(f"    {part:<14}{statistics.median(values):>9.1f} ms of processor time ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
