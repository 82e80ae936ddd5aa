#!/usr/bin/env python3
"""What each overlap of communication is worth: a table like MegaScale's table 3, and its picture.

    ablation.py --program megascale --paced paced_benchmark --out ablation.svg

Trains tests/bench/studies/ablation.yaml with the overlaps of its plan switched on one after another, and with each one alone switched
off, in turn, round after round, so that whatever else the machine does hits all alike. Medians over the steps of all rounds;
"spread" is half the range of the middle half of them. A gain within the spread says nothing. All runs must end with the same
loss, to the last digit: a switch is no part of the numerics.

What tensor ranks exchange within passes is no part of a plan: a layout of two tensor ranks has a table of its own.

--paced adds the rows of the first table for one layout of eight processes whose passes and links take stated times (paced_benchmark.cc): what
the plan promises where nothing else is in the way. --out draws both; it needs matplotlib. On a busy machine
paced steps take longer than is stated: they are then left out of the picture, and this ends with 1.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

JOB = pathlib.Path(__file__).with_name("ablation.yaml")
SWITCHES = ("overlap_p2p_communication", "overlap_grad_reduce", "overlap_param_gather")
TENSOR_SWITCHES = ("tp_comm_overlap",)
# Name in paced_benchmark, label for people, the switches that are off. The other rows are compared with the first.
ROWS = (
    ("none", "no overlap", SWITCHES),
    ("p2p", "+ pipeline", ("overlap_grad_reduce", "overlap_param_gather")),
    ("p2p+grad", "+ gradients", ("overlap_param_gather",)),
    ("all", "+ parameters: all", ()),
    ("all-grad", "all but gradients", ("overlap_grad_reduce",)),
    ("all-p2p", "all but pipeline", ("overlap_p2p_communication",)),
)
TENSOR_ROWS = (
    ("none", "no overlap", TENSOR_SWITCHES),
    ("all", "+ tensor ranks", ()),
)
TENSOR_LAYOUT = (
    "parallel.tensor_model_parallel_size=2",
    "parallel.data_parallel_size=1",
    "parallel.pipeline_model_parallel_size=1",
    "parallel.virtual_pipeline_model_parallel_size=1",
)


def settings(off):
    """Arguments that set every switch, so that no default counts."""
    arguments = []
    for switch in (*SWITCHES, *TENSOR_SWITCHES):
        arguments += ["--set", f"parallel.{switch}={'false' if switch in off else 'true'}"]
    return arguments


def train(program, layout, off, steps, directory):
    """The records of one run."""
    command = [program, "local", str(JOB), "--slots", "4", "--state-dir", str(directory), "-o", "json"]
    for field in layout:
        command += ["--set", field]
    command += ["--set", f"train.steps={steps}"]
    command += settings(off)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ablation: {' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    (metrics,) = directory.glob("**/metrics.jsonl")
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]


def check_same_bits(losses):
    """Exits if two rows ended with different losses."""
    for name, loss in losses.items():
        if loss != losses["none"]:
            sys.exit(f"ablation: '{name}' ends with loss {loss}, 'none' with {losses['none']}: an overlap changed the numerics")


def spread(seconds):
    """Half the range of the middle half."""
    low, _, high = statistics.quantiles(seconds, n=4)
    return (high - low) / 2


def summarize(seconds_by_name, tokens=None, of=ROWS):
    """Returns a row for each case: its median, and its gain over the first, relative to the first's time."""
    rows = []
    for name, label, _ in of:
        seconds = seconds_by_name[name]
        median = statistics.median(seconds)
        rows.append(
            {
                "label": label,
                "seconds": median,
                "spread": spread(seconds) if len(seconds) > 1 else 0.0,
                "tokens_per_second": tokens / median if tokens else None,
            }
        )
    for row in rows:
        row["gain"] = rows[0]["seconds"] / row["seconds"] - 1
    return rows


def print_table(title, rows):
    print(title)
    print(f"{'configuration':<20}  {'step, ms':>9}  {'spread, ms':>10}  {'tokens/s':>9}  {'gain':>7}")
    for row in rows:
        tokens = f"{row['tokens_per_second']:.0f}" if row["tokens_per_second"] else ""
        print(
            f"{row['label']:<20}  {1e3 * row['seconds']:>9.2f}  {1e3 * row['spread']:>10.2f}  {tokens:>9}"
            f"  {100 * row['gain']:>+6.1f}%"
        )
    print(flush=True)


def measure_training(flags, skipped, of=ROWS, layout=()):
    """Rows of the real job."""
    seconds = {name: [] for name, _, _ in of}
    losses = {}
    for turn in range(flags.rounds):
        for name, label, off in of:
            with tempfile.TemporaryDirectory(prefix="megascale-ablation-") as directory:
                records = train(flags.program, layout, off, flags.steps, pathlib.Path(directory) / "run")
            losses[name] = records[-1]["loss"]
            tokens = int(records[-1]["tokens"])
            seconds[name] += [record["seconds"] for record in records[skipped:]]
            print(f"round {turn + 1} of {flags.rounds}, {label}: done", file=sys.stderr)
        check_same_bits(losses)
    return summarize(seconds, tokens, of)


def measure_paced(benchmark):
    """Returns the rows of the paced plan, the times that the longest path over each predicts, and whether they agree."""
    done = subprocess.run([benchmark, "--overlap", "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"ablation: {benchmark} ended with {done.returncode}")
    lines = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    rows = summarize({name: [line["measured_ms"] / 1e3] for name, line in lines.items()})
    stated = summarize({name: [line["simulated_ms"] / 1e3] for name, line in lines.items()})
    return rows, stated, done.returncode == 0


def draw(tables, target):
    """A bar for each row of each table: its gain."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "ablation"  # the same picture for the same numbers
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(1, len(tables), figsize=(6.5 * len(tables), 3.6), squeeze=False)
    for axes, (title, rows) in zip(grid[0], tables):
        places = range(len(rows))
        bars = axes.barh(
            places,
            [1e3 * row["seconds"] for row in rows],
            xerr=[1e3 * row["spread"] for row in rows],
            color=["tab:gray", *["tab:blue"] * 3, *["tab:orange"] * 2][: len(rows)],
        )
        axes.bar_label(bars, [f"{100 * row['gain']:+.1f} %" for row in rows], padding=4, fontsize=8)
        axes.set_yticks(places, [row["label"] for row in rows])
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_xlabel("step, ms; gain over no overlap")
        axes.set_title(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None} if target.endswith(".svg") else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="megascale")
    parser.add_argument("--paced", help="paced_benchmark; left out: only the real job")
    parser.add_argument("--out", help="an SVG to draw; left out: the tables alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30, help="of a run; the first 5 do not count")
    flags = parser.parse_args()
    skipped = 5
    if flags.rounds < 1 or flags.steps <= skipped + 1:
        parser.error(f"--rounds is at least 1, --steps at least {skipped + 2}")
    tables = []
    as_stated = True
    if flags.paced:
        rows, stated, as_stated = measure_paced(flags.paced)
        print_table("The longest path over the plan", stated)
        print_table("Paced by the wall clock in eight processes", rows)
        if as_stated:
            tables.append(("data 2 x pipeline 4 x 2 chunks, paced: times are stated", rows))
    for layout, of, sets in (("data 2 x pipeline 2 x 2 chunks", ROWS, ()), ("tensor 2", TENSOR_ROWS, TENSOR_LAYOUT)):
        rows = measure_training(flags, skipped, of, sets)
        tables.append((f"GPT-2 of 8 layers, {layout}, this machine", rows))
        print_table(f"Training: {tables[-1][0]}, {flags.rounds} rounds of {flags.steps - skipped} steps", rows)
    if flags.out:
        draw(tables, flags.out)
        print(f"drawn: {flags.out}")
    if not as_stated:
        sys.exit("ablation: the paced steps are not what is stated, so the machine was busy: measure again on a quiet one")


if __name__ == "__main__":
    main()
