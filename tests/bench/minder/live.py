#!/usr/bin/env python3
"""Four agents train; one loses processors; how long does `megascale minder watch` take to name it?

    live.py --program megascale [--calm 900] [--continuity 4m] [--every 20s] [--train | --models FILE]
            [--keep DIR]

Each agent runs in a control group of its own, with a quota of processors. After the calm time the quota of one machine
is cut to a third. Prints what was found in the calm time, and the seconds from the cut to the driver's suspicion. Ends
with 1 if the machine is not named, or another one is. With --train, the models are those of the calm time. Needs root,
or a cpu control group that this user may divide.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

JOB = pathlib.Path(__file__).with_name("live.yaml")
NODES = ("n0", "n1", "n2", "n3")
SLOW = "n2"
JOB_ID = "live"
PERIOD_US = 100_000
STEP_DEADLINE = 300
VERDICT_DEADLINE = 900


def cpu_groups():
    """The folder of this process's cpu control group, and whether it is of version 2."""
    for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return pathlib.Path("/sys/fs/cgroup/cpu" + path), False
    return pathlib.Path("/sys/fs/cgroup" + path), True


class Machine:
    """A control group with a quota, in which an agent runs."""

    def __init__(self, name):
        parent, self.is_version2 = cpu_groups()
        self.directory = parent / f"minder-live-{os.getpid()}-{name}"
        self.directory.mkdir()

    def limit(self, cores):
        quota = int(cores * PERIOD_US)
        if self.is_version2:
            (self.directory / "cpu.max").write_text(f"{quota} {PERIOD_US}", encoding="utf-8")
        else:
            (self.directory / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="utf-8")
            (self.directory / "cpu.cfs_quota_us").write_text(str(quota), encoding="utf-8")

    def enter(self):
        (self.directory / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")

    def remove(self):
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.directory.rmdir()
                return
            time.sleep(0.1)


class Cluster:
    """A driver and four agents."""

    def __init__(self, program, directory, cores):
        self.program = program
        self.directory = pathlib.Path(directory)
        self.environment = dict(os.environ, MEGASCALE_ADDRESS=f"unix:{directory}/driver")
        self.machines = {}
        self.cores = cores
        self.ends = contextlib.ExitStack()

    def __enter__(self):
        self.start("driver", None, "driver", "--state-dir", str(self.directory / "state"))
        for node in NODES:
            machine = Machine(node)
            self.ends.callback(machine.remove)
            machine.limit(self.cores)
            self.machines[node] = machine
            self.start(node, machine.enter, "agent", "--node-id", node, "--run-dir", str(self.directory / node))
        return self

    def __exit__(self, *error):
        self.ends.close()

    def start(self, name, enter, *arguments, out=None):
        log = self.ends.enter_context(open(self.directory / f"{name}.log", "wb"))
        process = subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn
            [self.program, *arguments], stdout=out or log, stderr=log, env=self.environment, preexec_fn=enter)
        self.ends.callback(stop, process)
        return process

    def run(self, *arguments):
        command = [self.program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, check=False, timeout=300)
        if done.returncode != 0:
            sys.exit(f"live: {' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def job(self):
        return json.loads(self.run("status", JOB_ID, "-o", "json"))

    def train(self):
        self.run("submit", str(JOB), "--job-id", JOB_ID, "--retry-for", "60s")
        deadline = time.monotonic() + STEP_DEADLINE
        while int(self.job().get("last_step", 0)) < 1:
            if time.monotonic() > deadline:
                sys.exit(f"live: no step after {STEP_DEADLINE} s: {self.job()}")
            time.sleep(1)


def stop(process):
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def first_verdict(cluster, flags):
    """Runs `minder watch` until it has a verdict that lasts; returns it with what the driver did."""
    models = ("--models", str(flags.models)) if flags.models else ()
    watch = cluster.start("watch", None, "minder", "watch", JOB_ID, "--every", flags.every, "--continuity",
                          flags.continuity, "-o", "json", *models, out=subprocess.PIPE)
    timer_end = time.monotonic() + VERDICT_DEADLINE
    for line in watch.stdout:
        look = json.loads(line)
        if look["verdict"] and look["verdict"]["lasts"]:
            return look
        if time.monotonic() > timer_end:
            break
    return None


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends, too
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="megascale")
    parser.add_argument("--calm", type=int, default=900, help="seconds before a machine becomes slow")
    parser.add_argument("--cores", type=float, default=0.3, help="each machine's quota")
    parser.add_argument("--continuity", default="4m", help="as `megascale minder watch`")
    parser.add_argument("--every", default="20s", help="as `megascale minder watch`")
    parser.add_argument("--models", type=pathlib.Path, help="watch with these models, not the program's")
    parser.add_argument("--train", action="store_true", help="watch with models of the calm time")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the recordings")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="megascale-minder-") as directory:
        with Cluster(flags.program, directory, flags.cores) as cluster:
            cluster.train()
            print(f"{len(NODES)} machines of {flags.cores} cores train; calm for {flags.calm} s", flush=True)
            time.sleep(flags.calm)
            steps = int(cluster.job()["last_step"])
            print(f"calm, {steps / flags.calm:.2f} steps/s:", flush=True)
            print(cluster.run("minder", "check", JOB_ID, "--continuity", flags.continuity), end="", flush=True)
            folder = flags.keep or cluster.directory
            cluster.run("minder", "record", JOB_ID, "--out", str(folder / "calm.csv"))
            if flags.train:
                flags.models = cluster.directory / "models.json"
                cluster.run("minder", "train", str(folder / "calm.csv"), "--out", str(flags.models))
            cluster.machines[SLOW].limit(flags.cores / 3)
            begin = time.monotonic()
            print(f"{SLOW} has {flags.cores / 3:.2f} cores from now on", flush=True)
            look = first_verdict(cluster, flags)
            seconds = time.monotonic() - begin
            cluster.run("minder", "record", JOB_ID, "--out", str(folder / "slow.csv"))
            print(json.dumps(look))
            print("status:", cluster.run("status", JOB_ID))
    if look is None or look["verdict"]["machine"] != SLOW:
        sys.exit(f"live: {SLOW} was not named within {seconds:.0f} s")
    print(f"{SLOW} was named {seconds:.0f} s after it became slow, by its {look['verdict']['metric']}; "
          f"driver: {look.get('driver', '-')}")


if __name__ == "__main__":
    main()
