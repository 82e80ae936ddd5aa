#!/usr/bin/env python3
"""The training step of two versions of the program, by turns in one run.

    versions.py OLD NEW [--rounds 8] [--steps 2] [-- OPTION…]

OLD and NEW are step_benchmark programs; OPTIONs go to both. `./dev bench versions COMMIT` builds the benchmark of a commit and
compares it with this tree's. Each round times the same number of steps of both, one after the other, and the next round begins
with the other program. Prints the median over the rounds of the seconds per step and of the processor seconds per step, which
other work on the machine disturbs less, each with the ratio of the new program to the old one. Both train the same job for the
same number of steps; the last line says whether their last losses are equal to the bit.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading

ROUND_SECONDS_MAX = 600


class Program:
    """A step benchmark that times steps whenever it is asked to."""

    def __init__(self, path, options):
        command = [path, "--on-request", "--no-roofline", *options]
        self.command = " ".join(command)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def time(self, steps):
        """Returns the seconds and the processor seconds of one step, as the mean over `steps` steps."""
        before = self.processor_seconds()
        late = threading.Timer(ROUND_SECONDS_MAX, self.process.kill)
        late.start()
        try:
            print(steps, file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            late.cancel()
        if not line:
            sys.exit(f"versions: {self.command} ended, or took over {ROUND_SECONDS_MAX} s")
        return statistics.mean(json.loads(line)), (self.processor_seconds() - before) / steps

    def loss(self):
        """Returns the loss of the last step as the program writes it, with all digits; None: it is older than the question."""
        try:
            print("loss", file=self.process.stdin, flush=True)
            return self.process.stdout.readline().strip() or None
        except BrokenPipeError:
            return None

    def stop(self):
        self.process.kill()
        self.process.wait()


def compare(programs, rounds, steps):
    """Returns for each program its times, one pair for each round."""
    times = ([], [])
    for program in programs:
        program.time(steps)  # warm
    for round_index in range(rounds):
        order = (0, 1) if round_index % 2 == 0 else (1, 0)
        for which in order:
            times[which].append(programs[which].time(steps))
        if sys.stderr.isatty():
            print(f"round {round_index + 1} of {rounds}", file=sys.stderr)
    return times


def table(times):
    lines = [f"{'':>24} {'old':>9} {'new':>9} {'new/old':>9}   middle half of the ratios"]
    for column, name in enumerate(("seconds per step", "processor seconds")):
        old, new = ([pair[column] for pair in of_program] for of_program in times)
        ratios = [b / a for a, b in zip(old, new)]
        low, _, high = statistics.quantiles(ratios, n=4)
        lines.append(f"{name:>24} {statistics.median(old):9.3f} {statistics.median(new):9.3f} "
                     f"{statistics.median(ratios):9.3f}   {low:.3f} to {high:.3f}")
    return "\n".join(lines)


def compare_losses(programs):
    """Returns a line that says whether the last losses are equal."""
    old, new = (program.loss() for program in programs)
    if old is None or new is None:
        which = " and ".join(name for name, loss in (("old", old), ("new", new)) if loss is None)
        return f"last losses not compared: the {which} program cannot tell its own"
    if old == new:
        return f"last losses are equal to the bit: {new}"
    return f"last losses differ: old {old}, new {new}; a change of arithmetic needs another numerics version"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the step_benchmark of the version to compare with")
    parser.add_argument("new", help="the step_benchmark of this version")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="steps that each program makes in a round")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:end])
    if options.rounds < 2 or options.steps < 1:
        parser.error("expected at least 2 rounds and 1 step")
    programs = [Program(path, sys.argv[end + 1:]) for path in (options.old, options.new)]
    try:
        print(table(compare(programs, options.rounds, options.steps)))
        print(compare_losses(programs))
    finally:
        for program in programs:
            program.stop()


if __name__ == "__main__":
    main()
