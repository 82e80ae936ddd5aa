#!/usr/bin/env python3
"""What the driver and two agents cost while a job trains on a folder of many files: CPU and memory.

    tests/bench/control/many_files.py bazel-bin/cli/megascale --files 20000

Runs real processes in a folder of their own: a driver, two agents and a small job with a rank on each. Prints one line
for each process, measured from when the job trains. CPU is the time that the process used, so other load on the machine
changes it little.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

JOB = """name: many-files
model: {hidden_size: 128, num_hidden_layers: 4, num_attention_heads: 4, position_embedding: rotary}
data: {files: [%s]}
train: {steps: 1000000, seq_length: 256, global_batch_size: 16, micro_batch_size: 2, seed: 1, eval_interval: 0}
optimizer: {lr: 1e-3}
parallel: {data_parallel_size: 2}
checkpoint: {interval: 1000, keep: 1}
"""
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def bytes_below(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(program, num_files, seconds):
    with tempfile.TemporaryDirectory(prefix="many-files-") as name:
        root = pathlib.Path(name)
        data = root / "data"
        data.mkdir()
        for i in range(num_files):
            line = f"This is line {i} of a text in very many files.\n"
            (data / f"{i:06d}.txt").write_text(line * max(4, 1000 // num_files))
        (root / "job.yaml").write_text(JOB % data)
        address = f"unix:{root}/driver.sock"
        environment = dict(os.environ, XDG_RUNTIME_DIR=str(root), XDG_STATE_HOME=str(root))
        log = open(root / "log", "w", encoding="utf-8")

        def start(*arguments):
            return subprocess.Popen([program, *arguments], env=environment, stdout=log, stderr=log)

        processes = {"driver": start("driver", "--listen", address, "--state-dir", f"{root}/state")}
        try:
            for node in ("n0", "n1"):
                processes[f"agent {node}"] = start(
                    "agent", "--driver", address, "--slots", "1", "--node-id", node, "--state-dir", f"{root}/{node}")
            submit = subprocess.run(
                [program, "submit", f"{root}/job.yaml", "--address", address, "--job-id", "j"],
                env=environment, stdout=log, stderr=log, timeout=60, check=False)
            if submit.returncode != 0:
                sys.exit((root / "log").read_text())
            deadline = time.monotonic() + 120
            steps = root / "state/jobs/j/metrics.jsonl"
            while not steps.exists() or steps.stat().st_size == 0:
                if time.monotonic() > deadline:
                    sys.exit((root / "log").read_text()[-4000:])
                time.sleep(0.5)
            time.sleep(5)
            begin = time.monotonic()
            before = {name: cpu_seconds(process.pid) for name, process in processes.items()}
            time.sleep(seconds)
            passed = time.monotonic() - begin
            for name, process in processes.items():
                share = 100 * (cpu_seconds(process.pid) - before[name]) / passed
                print(f"{num_files} files, {name}: {share:.1f} % of a core, {resident_mib(process.pid):.0f} MiB")
            print(f"{num_files} files, the driver's log: {bytes_below(root / 'state/log') / 1e6:.1f} MB", flush=True)
        finally:
            for process in reversed(processes.values()):
                process.send_signal(signal.SIGKILL)
                process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--files", type=int, nargs="+", default=[1, 20000])
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    for num_files in options.files:
        measure(options.program, num_files, options.seconds)


if __name__ == "__main__":
    main()
