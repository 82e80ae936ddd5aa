#!/usr/bin/env python3
"""What recording costs: processor time of the agent and of the workers' timer threads beside that of the job.

    recording.py --program megascale [--seconds 60]

Trains tests/bench/studies/layouts.yaml on four ranks (tensor 2 x data 2: the most exchanges) and accounts for the processor time of every
thread. An agent does nothing but record, report and watch while a job trains, so all of its time counts as recording. Spans and
exchange states are written by the workers' own threads: `telemetry_benchmark` times those.
"""

import argparse
import collections
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import layouts

LAYOUT = layouts.LAYOUTS[1][1]
FIRST_STEP = 3  # those before it touch memory for the first time
TIMER = "heartbeat"  # the thread of each worker that shows that it lives


def thread_seconds(pid):
    """Returns [(name, processor seconds)] of the threads of a process; nothing if it has ended."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            name, fields = parse_stat(task.read_text(encoding="utf-8"))
        except OSError:
            continue
        found.append((name, fields / os.sysconf("SC_CLK_TCK")))
    return found


def parse_stat(text):
    """Returns a thread's name and its ticks, user and system, of a line of /proc/PID/task/TID/stat. A name may hold anything."""
    begin, end = text.index("("), text.rindex(")")
    fields = text[end + 2 :].split()
    return text[begin + 1 : end], int(fields[11]) + int(fields[12])


def group(process, thread):
    """Returns where the time of a thread belongs: "agent", "timer threads", "workers", "hosts", "driver"."""
    if process.startswith("megascale-w"):
        return "timer threads" if thread == TIMER else "workers"
    return {"megascale-host": "hosts", "megascale-agent": "agent", "megascale-drv": "driver"}.get(process, "other")


def measure(pids):
    """Returns the processor seconds of each group."""
    seconds = collections.Counter()
    for pid in pids:
        try:
            process = pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
        except OSError:
            continue
        for thread, used in thread_seconds(pid):
            seconds[group(process, thread)] += used
    return seconds


def descendants(pid):
    """Returns a process and all that it, and they, have started."""
    children = collections.defaultdict(list)
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            continue
        children[int(text[text.rindex(")") + 2 :].split()[1])].append(int(path.parent.name))
    found = [pid]
    for known in found:
        found += children[known]
    return found


def report(before, after, wall):
    """Returns lines: each group's share of a core and of the job's processor time, and the verdict."""
    used = {name: after[name] - before.get(name, 0) for name in after}
    job = used.get("workers", 0) + used.get("hosts", 0)
    lines = [f"{'':<16}{'of a core':>12}{'of the job':>12}"]
    for name in sorted(used, key=used.get, reverse=True):
        lines.append(f"{name:<16}{100 * used[name] / wall:>10.2f} %{100 * used[name] / job:>10.3f} %")
    share = 100 * (used.get("agent", 0) + used.get("timer threads", 0)) / job
    lines.append(f"agent and timer threads: {share:.3f} % of the job's processor time, limit 0.5 %")
    return lines


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends, too
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="megascale")
    parser.add_argument("--seconds", type=int, default=60)
    flags = parser.parse_args()
    if flags.seconds < 1:
        parser.error("--seconds is at least 1")
    with tempfile.TemporaryDirectory(prefix="megascale-recording-") as directory:
        with layouts.Cluster(flags.program, pathlib.Path(directory)) as cluster:
            cluster.submit("recorded", LAYOUT, steps=100000)
            deadline = time.monotonic() + layouts.DEADLINE_SECONDS
            while int(json.loads(cluster.run("status", "recorded", "-o", "json")).get("last_step", 0)) < FIRST_STEP:
                if time.monotonic() > deadline:
                    sys.exit("recording: the job did not begin to train")
                time.sleep(1)
            pids = descendants(os.getpid())
            before, begin = measure(pids), time.monotonic()
            time.sleep(flags.seconds)
            after, wall = measure(pids), time.monotonic() - begin
            steps = json.loads(cluster.run("status", "recorded", "-o", "json"))["last_step"]
    print(f"{wall:.0f} s, up to step {steps}")
    print("\n".join(report(before, after, wall)))


if __name__ == "__main__":
    main()
