#!/usr/bin/env python3
"""What precompiled headers save: sources compiled as the build compiles them and without, by turns, in processor seconds.

Usage: compile_time.py [--sources N] [--seed N]     from the repository's root, after `./dev build`
"""

import argparse
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile

HEADER_FOLDER = "third_party/precompiled/made/"


def without_precompiled(command):
    """The command without its precompiled header."""
    at = command.index("-include")
    return command[:at] + command[at + 2:]


def with_outputs(command, folder):
    """The command with its object and its list of headers in `folder`."""
    command = list(command)
    for option in ("-o", "-MF"):
        if option in command:
            command[command.index(option) + 1] = os.path.join(folder, option[1:])
    return command


def processor_seconds(command, directory):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=directory, stderr=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"compile_time: {command[command.index('-c') + 1]} does not compile; expected a tree that is built: "
                 f"{done.stderr.strip()[:300]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compiles(actions):
    """The commands that begin with a precompiled header, of the actions that Bazel lists."""
    commands = [action["arguments"] for action in actions]
    return [command for command in commands if any(part.startswith(HEADER_FOLDER) for part in command)]


def table(rows):
    """`rows`: (kind, processor seconds with, without) of each source."""
    lines = ["| sources | number | without, s each | with, s each | with/without |", "| --- | --- | --- | --- | --- |"]
    for kind in sorted({row[0] for row in rows}):
        of_kind = [row for row in rows if row[0] == kind]
        mean = [sum(row[i] for row in of_kind) / len(of_kind) for i in (1, 2)]
        lines.append(f"| {kind} | {len(of_kind)} | {mean[1]:.2f} | {mean[0]:.2f} | {mean[0] / mean[1]:.2f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, default=40, help="how many of each kind (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    options = parser.parse_args()
    found = subprocess.run(["bazel", "aquery", 'mnemonic("CppCompile", //...)', "--output=jsonproto"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if found.returncode != 0:
        sys.exit("compile_time: `bazel aquery` failed; expected a tree that `./dev build` builds")
    commands = compiles(json.loads(found.stdout)["actions"])
    by_source = {command[command.index("-c") + 1]: command for command in commands}
    kinds = {"tests": [c for s, c in by_source.items() if s.endswith("_test.cc")],
             "others": [c for s, c in by_source.items() if not s.endswith("_test.cc")]}
    root = pathlib.Path("bazel-out").resolve().parent
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, of_kind in kinds.items():
            chosen = random.Random(options.seed).sample(of_kind, min(options.sources, len(of_kind)))
            for number, command in enumerate(chosen):
                command = with_outputs(command, folder)
                turns = [command, without_precompiled(command)]
                order = (0, 1) if number % 2 == 0 else (1, 0)
                seconds = {i: processor_seconds(turns[i], root) for i in order}
                rows.append((kind, seconds[0], seconds[1]))
                print(f"{command[command.index('-c') + 1]}: {seconds[0]:.2f} s with, {seconds[1]:.2f} s without",
                      file=sys.stderr)
    print(table(rows))


if __name__ == "__main__":
    main()
