#!/usr/bin/env python3
"""What recording costs: processor time of the agent and of the workers' timer threads beside that of the job.

    recording.py --program megascale [--seconds 60]
    recording.py --program megascale --paired [--rounds 30] [--steps 12] [--set FIELD=VALUE]…

Trains tests/bench/studies/layouts.yaml on four ranks (tensor 2 x data 2: the most exchanges) and accounts for the processor time of every
thread. An agent does nothing but record, report and watch while a job trains, so all of its time counts as recording. Spans and
exchange states are written by the workers' own threads: `telemetry_benchmark` times those. Exits with 1 above 0.5 %.

With --paired trains the same job with recording and without it (MEGASCALE_RECORDING=off), by turns, and says how many tokens/s recording
costs, with the 95 % interval of the mean over the rounds. Ends once the interval is within 0.25 % to each side, or after --rounds. Exits
with 1 if the interval lies above 0.5 %. --set changes the job: where a step takes 20 s, a job of `--set model.num_hidden_layers=2 --set
train.global_batch_size=4` takes seconds.
"""

import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time

import layouts

LAYOUT = layouts.LAYOUTS[1][1]
FIRST_STEP = 3  # those before it touch memory for the first time
TIMER = "heartbeat"  # the thread of each worker that shows that it lives
LIMIT_PERCENT = 0.5
HALF_INTERVAL_PERCENT = 0.25  # of the paired runs: then they end
ROUNDS_MIN = 5
# Quantile 0.975 of Student's t, by degrees of freedom; beyond the table, the normal distribution's with Cornish and Fisher's correction.
STUDENT_T = (None, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


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
    """Returns lines (each group's share of a core and of the job's processor time, and the verdict), and whether the limit is kept."""
    used = {name: after[name] - before.get(name, 0) for name in after}
    job = used.get("workers", 0) + used.get("hosts", 0)
    lines = [f"{'':<16}{'of a core':>12}{'of the job':>12}"]
    if job <= 0:
        return lines + ["the job used no processor time: nothing to compare with"], False
    for name in sorted(used, key=used.get, reverse=True):
        lines.append(f"{name:<16}{100 * used[name] / wall:>10.2f} %{100 * used[name] / job:>10.3f} %")
    share = 100 * (used.get("agent", 0) + used.get("timer threads", 0)) / job
    is_kept = share <= LIMIT_PERCENT
    lines.append(f"agent and timer threads: {share:.3f} % of the job's processor time, limit {LIMIT_PERCENT} %: "
                 + ("kept" if is_kept else "EXCEEDED"))
    return lines, is_kept


def student_t(freedom):
    if freedom < len(STUDENT_T):
        return STUDENT_T[freedom]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval(costs):
    """Returns the mean of `costs` and half of its 95 % interval; infinity for fewer than two."""
    mean = statistics.mean(costs)
    if len(costs) < 2:
        return mean, math.inf
    return mean, student_t(len(costs) - 1) * statistics.stdev(costs) / math.sqrt(len(costs))


def cost_percent(with_recording, without):
    """Returns how many percent of the tokens/s recording costs, of the steps of one round: each side's median."""
    return 100 * (1 - statistics.median(without) / statistics.median(with_recording))


def paired_report(costs):
    """Returns a line, and whether the limit is kept: it is unless the whole interval lies above it."""
    mean, half = interval(costs)
    is_kept = mean - half <= LIMIT_PERCENT
    reached = "" if half <= HALF_INTERVAL_PERCENT else f"; +/- {HALF_INTERVAL_PERCENT} % was not reached on this machine"
    verdict = "EXCEEDED" if not is_kept else "kept" if mean + half <= LIMIT_PERCENT else "not told apart"
    return (f"recording costs {mean:+.3f} % of the tokens/s, 95 % interval {mean - half:+.3f} to {mean + half:+.3f} %, {len(costs)} rounds"
            f"{reached}; limit {LIMIT_PERCENT} %: {verdict}"), is_kept


def compare(train, rounds):
    """Returns a cost for each round. `train(recording, round)` returns the seconds of each step; who is first changes by turns."""
    costs = []
    for number in range(rounds):
        seconds = {}
        for is_recording in ((True, False) if number % 2 == 0 else (False, True)):
            seconds[is_recording] = train(is_recording, number)
        costs.append(cost_percent(seconds[True], seconds[False]))
        mean, half = interval(costs)
        print(f"round {number + 1} of at most {rounds}: {costs[-1]:+.2f} %; mean {mean:+.3f} % +/- {half:.3f}", file=sys.stderr)
        if len(costs) >= ROUNDS_MIN and half <= HALF_INTERVAL_PERCENT:
            break
    return costs


def run_paired(program, rounds, steps, changes):
    """Trains on two clusters that take turns: one records, one does not."""
    with contextlib.ExitStack() as stack:
        clusters = {}
        for is_recording in (True, False):
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="megascale-recording-"))
            clusters[is_recording] = layouts.Cluster(program, pathlib.Path(directory))
            clusters[is_recording].environment["MEGASCALE_RECORDING"] = "on" if is_recording else "off"
            stack.enter_context(clusters[is_recording])

        def train(is_recording, number):
            records, _ = clusters[is_recording].train(f"paired-{number}", LAYOUT, steps, changes)
            return [record["seconds"] for record in records[layouts.SKIPPED:]]

        return compare(train, rounds)


def account(program, seconds):
    """Prints the shares of processor time. Returns whether the limit is kept."""
    with tempfile.TemporaryDirectory(prefix="megascale-recording-") as directory:
        with layouts.Cluster(program, pathlib.Path(directory)) as cluster:
            cluster.submit("recorded", LAYOUT, steps=100000)
            deadline = time.monotonic() + layouts.DEADLINE_SECONDS
            while int(json.loads(cluster.run("status", "recorded", "-o", "json")).get("last_step", 0)) < FIRST_STEP:
                if time.monotonic() > deadline:
                    sys.exit("recording: the job did not begin to train")
                time.sleep(1)
            pids = descendants(os.getpid())
            before, begin = measure(pids), time.monotonic()
            time.sleep(seconds)
            after, wall = measure(pids), time.monotonic() - begin
            steps = json.loads(cluster.run("status", "recorded", "-o", "json"))["last_step"]
    print(f"{wall:.0f} s, up to step {steps}")
    lines, is_kept = report(before, after, wall)
    print("\n".join(lines))
    return is_kept


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends, too
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="megascale")
    parser.add_argument("--seconds", type=int, default=60, help="for which processor time is accounted for")
    parser.add_argument("--paired", action="store_true", help="compares tokens/s with and without recording instead")
    parser.add_argument("--rounds", type=int, default=30, help="of --paired, at most")
    parser.add_argument("--steps", type=int, default=12, help=f"of a run of --paired; the first {layouts.SKIPPED} do not count")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE", help="a field of --paired's job")
    flags = parser.parse_args()
    if flags.seconds < 1 or flags.rounds < 2 or flags.steps <= layouts.SKIPPED:
        parser.error(f"--seconds is at least 1, --rounds at least 2, --steps at least {layouts.SKIPPED + 1}")
    if flags.paired:
        line, is_kept = paired_report(run_paired(flags.program, flags.rounds, flags.steps, flags.changes))
        print(line)
    else:
        is_kept = account(flags.program, flags.seconds)
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
