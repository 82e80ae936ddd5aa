#!/usr/bin/env python3
"""Four processes of one thread beside one process of two threads: tokens/s of the same job, and where its time goes.

    layouts.py --program megascale [--rounds 3] [--steps 12]

Trains tests/bench/studies/layouts.yaml under each layout by turns, on a driver and an agent of its own. Medians over the steps of all
rounds without the first ones. The table below each layout is `megascale status --times` of its last steps.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

JOB = pathlib.Path(__file__).with_name("layouts.yaml")
SKIPPED = 3  # first steps, which touch memory for the first time
DEADLINE_SECONDS = 600
# Label for people, and the fields of `parallel`. The other layouts are compared with the first.
LAYOUTS = (
    ("1 process, 2 threads", {"threads_per_rank": 2}),
    ("tensor 2 x data 2", {"threads_per_rank": 1, "tensor_model_parallel_size": 2, "data_parallel_size": 2}),
    ("pipeline 2 x data 2", {"threads_per_rank": 1, "pipeline_model_parallel_size": 2, "data_parallel_size": 2}),
)
PARTS = ("compute", "optimizer", "tensor", "pipeline", "data_parallel", "data_wait", "bubble")


def write_job(directory, job):
    """Writes a text, and the job with its path for TEXT, below the folder; returns the job's path."""
    text = directory / "text"
    text.write_text("".join(f"the {i * i % 97}th of {i % 13} lines\n" for i in range(2000)), encoding="utf-8")
    path = directory / "job.yaml"
    path.write_text(job.replace("TEXT", str(text)), encoding="utf-8")
    return path


class Cluster:
    """A driver and an agent with four slots, in their own folder."""

    def __init__(self, program, directory):
        self.program = program
        self.directory = directory
        self.environment = dict(os.environ, MEGASCALE_ADDRESS=f"unix:{directory}/driver")
        self.processes = contextlib.ExitStack()

    def __enter__(self):
        self.start("driver", "--state-dir", str(self.directory / "state"), "--machine-tests", "off")
        self.start("agent", "--slots", "4", "--run-dir", str(self.directory / "run"))
        return self

    def start(self, *arguments):
        log = self.processes.enter_context(open(self.directory / f"{arguments[0]}.log", "wb"))
        process = subprocess.Popen([self.program, *arguments], stdout=log, stderr=log, env=self.environment)
        self.processes.callback(self.stop, process)

    @staticmethod
    def stop(process):
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __exit__(self, *error):
        self.processes.close()

    def run(self, *arguments):
        command = [self.program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, check=False, timeout=60)
        if done.returncode != 0:
            sys.exit(f"layouts: {' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def submit(self, job_id, fields, steps, changes=()):
        """Submits the job with these fields of its section `parallel`, and with `changes`: fields of any section, NAME=VALUE."""
        arguments = ["submit", str(JOB), "--job-id", job_id, "--retry-for", "30s", "--set", f"train.steps={steps}"]
        for field, value in fields.items():
            arguments += ["--set", f"parallel.{field}={value}"]
        for change in changes:
            arguments += ["--set", change]
        self.run(*arguments)

    def train(self, job_id, fields, steps, changes=()):
        """Returns seconds and tokens of each step, and where the time of the last steps went."""
        self.submit(job_id, fields, steps, changes)
        deadline = time.monotonic() + DEADLINE_SECONDS
        stages = []
        while True:
            job = json.loads(self.run("status", job_id, "-o", "json", "--times"))
            stages = job.get("stage_times") or stages
            if job["state"] == "JOB_STATE_SUCCEEDED":
                break
            if job["state"] in ("JOB_STATE_FAILED", "JOB_STATE_CANCELLED") or time.monotonic() > deadline:
                sys.exit(f"layouts: {job_id} is {job['state']}: {job.get('message', '')}")
            time.sleep(1)
        (metrics,) = (self.directory / "state").glob(f"**/{job_id}/**/metrics.jsonl")
        return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()], stages


def shares(stage):
    """Returns where the time of a stage's step went, in percent; parts of less than 0.05 % are left out."""
    step = stage["step_seconds"]
    found = ((part, 100 * stage.get(f"{part}_seconds", 0.0) / step) for part in PARTS)
    return ", ".join(f"{part.replace('_', ' ')} {share:.1f} %" for part, share in found if share >= 0.05)


def table(seconds, tokens):
    """A row for each layout: label, median seconds, tokens/s, and tokens/s relative to the first layout's."""
    rows = []
    for label, _ in LAYOUTS:
        median = statistics.median(seconds[label])
        rows.append((label, median, tokens / median, statistics.median(seconds[LAYOUTS[0][0]]) / median))
    return rows


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends, too
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="megascale")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help=f"of a run; the first {SKIPPED} do not count")
    flags = parser.parse_args()
    if flags.rounds < 1 or flags.steps <= SKIPPED:
        parser.error(f"--rounds is at least 1, --steps at least {SKIPPED + 1}")
    seconds = {label: [] for label, _ in LAYOUTS}
    stages = {}
    tokens = 0
    with tempfile.TemporaryDirectory(prefix="megascale-layouts-") as directory:
        with Cluster(flags.program, pathlib.Path(directory)) as cluster:
            for turn in range(flags.rounds):
                for number, (label, fields) in enumerate(LAYOUTS):
                    records, measured = cluster.train(f"layout-{number}-{turn}", fields, flags.steps)
                    seconds[label] += [record["seconds"] for record in records[SKIPPED:]]
                    tokens = int(records[-1]["tokens"])
                    stages[label] = measured or stages.get(label, [])
                    print(f"round {turn + 1} of {flags.rounds}, {label}: done", file=sys.stderr)
    print(f"{'layout':<22}  {'step, ms':>9}  {'tokens/s':>9}  of one process")
    for label, median, rate, ratio in table(seconds, tokens):
        print(f"{label:<22}  {1e3 * median:>9.1f}  {rate:>9.0f}  {100 * ratio:>12.1f} %")
        for stage in stages[label]:
            print(f"    stage {stage.get('stage', 0)}: {shares(stage)}")


if __name__ == "__main__":
    main()
