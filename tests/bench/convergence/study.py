"""Whether what MegaScale changes in the training costs loss: LAMB at four times the batch beside AdamW, and the parallel
block with a sliding window beside the serial block with full attention (MegaScale, section 3.1 and figure 10). AdamW at four
times the batch shows what of LAMB's difference is the batch's.

    study.py --program bazel-bin/cli/megascale --out DIR        or: ./dev bench convergence [--out DIR]

Trains a small model on the text of Debian's package `fortunes` by `megascale local`, one thread a run, every run on the same
number of tokens. Each arm tries as many learning rates on one seed; its best one runs on three. Writes page.md (the tables),
convergence.json (every loss) and two figures into DIR. A run that is there already is not run again. Losses do not depend on
how busy the machine is: the same program, instruction set and text give the same digits.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import datetime
import hashlib
import json
import math
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys

import figure

TEXT = pathlib.Path("/usr/share/games/fortunes")
TOLERANCE_NATS = 0.02
SEQ_LENGTH = 256
BATCH = 4  # samples: B
SEEDS = (1, 2, 3)
TOKENS = 2400 * BATCH * SEQ_LENGTH  # of a run
ADAMW_RATES = (1e-3, 2e-3, 4e-3, 8e-3)
LARGE_BATCH_RATES = (2e-3, 4e-3, 8e-3, 16e-3)  # AdamW's by the square root of the batch
LAMB_RATES = (5e-3, 1e-2, 2e-2, 4e-2)
WARMUP_PART = 0.05  # of the tokens

JOB = """\
name: {name}
model:
  hidden_size: 128
  num_hidden_layers: 4
  num_attention_heads: 4
  position_embedding: rotary
  parallel_block: {parallel_block}
  sliding_window: {window}
data:
  files: [{text}]
  held_out_fraction: 0.1
train:
  steps: {steps}
  seq_length: {seq_length}
  global_batch_size: {batch}
  micro_batch_size: {micro_batch}
  precision: bf16
  seed: {seed}
  eval_interval: 0
optimizer:
  type: {optimizer}
  lr: {rate}
  warmup_steps: {warmup_steps}
  weight_decay: 0.1
  clip_grad: 1.0
parallel:
  threads_per_rank: 1
fault:                        # a busy machine is slow, not broken
  heartbeat_timeout: 120s
  progress_timeout: 600s
  start_timeout: 750s
"""


@dataclasses.dataclass(frozen=True)
class Arm:
    name: str
    label: str
    rates: tuple
    optimizer: str = "adamw"
    batches: int = 1  # times B
    parallel_block: bool = False
    window: int = 0  # 0: full attention


BASELINE = Arm("adamw", "AdamW, B; serial block, full attention", ADAMW_RATES)
LAMB = Arm("lamb", "LAMB, 4B; serial block, full attention", LAMB_RATES, optimizer="lamb", batches=4)
LARGE_BATCH = Arm("adamw4", "AdamW, 4B; serial block, full attention", LARGE_BATCH_RATES, batches=4)
BLOCK = Arm("block", "AdamW, B; parallel block, window 64", ADAMW_RATES, parallel_block=True, window=64)
ARMS = (BASELINE, LAMB, LARGE_BATCH, BLOCK)


@dataclasses.dataclass(frozen=True)
class Run:
    arm: Arm
    rate: float
    seed: int

    @property
    def name(self):
        return f"{self.arm.name}-lr{self.rate:g}-seed{self.seed}"


@dataclasses.dataclass
class Result:
    held_out_nats: float  # per byte
    losses: list  # training loss in nats per byte, by step


def job_of(run, tokens):
    """The job file of a run. Requires: whole steps of 4B, so that every arm sees exactly `tokens`."""
    batch = BATCH * run.arm.batches
    steps = tokens // (batch * SEQ_LENGTH)
    return JOB.format(
        name=run.name, parallel_block=str(run.arm.parallel_block).lower(), window=run.arm.window, text=TEXT, steps=steps,
        seq_length=SEQ_LENGTH, batch=batch, micro_batch=BATCH, seed=run.seed, optimizer=run.arm.optimizer, rate=run.rate,
        warmup_steps=round(steps * WARMUP_PART))


class Runner:
    """Runs jobs, each in its own folder, and keeps their output."""

    def __init__(self, program, directory, tokens):
        self.program = program
        self.directory = directory
        self.tokens = tokens

    def run(self, run):
        directory = self.directory / run.name
        job = directory / "job.yaml"
        done = directory / "report.json"
        text = job_of(run, self.tokens)
        if not (done.exists() and job.read_text() == text):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            job.write_text(text)
            self._train(run, directory, job, done)
        report = json.loads(done.read_text())
        metrics, = directory.glob("state/jobs/*/metrics.jsonl")
        losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
        if len(losses) * run.arm.batches * BATCH * SEQ_LENGTH != self.tokens:
            raise RuntimeError(f"{metrics}: {len(losses)} steps are not {self.tokens} tokens")
        return Result(report["bits_per_byte"] * math.log(2), losses)

    def _train(self, run, directory, job, done):
        command = [self.program, "local", job, "--job-id", run.name, "--state-dir", directory / "state", "-o", "json"]
        # The report at the end uses every core: without the wait, its threads do not spin on cores that train another run.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        with open(directory / "errors.txt", "w", encoding="utf-8") as errors:
            finished = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        if finished.returncode != 0:
            raise RuntimeError(f"{run.name}: exit {finished.returncode}; see {directory}/errors.txt and {directory}/state/logs")
        done.write_text(finished.stdout.splitlines()[-1] + "\n")


@dataclasses.dataclass
class Study:
    """The runs of the study, and their results."""

    tokens: int
    arms: list  # the first is what the others are compared with
    seeds: tuple  # the first is the one that learning rates are tried on
    results: dict = dataclasses.field(default_factory=dict)  # Run: Result

    def run_all(self, runner, at_once):
        self._run([Run(arm, rate, self.seeds[0]) for arm in self.arms for rate in arm.rates], runner, at_once)
        self._run([Run(arm, self.best_rate(arm), seed) for arm in self.arms for seed in self.seeds[1:]], runner, at_once)

    def _run(self, runs, runner, at_once):
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            futures = {pool.submit(runner.run, run): run for run in runs}
            try:
                for future in concurrent.futures.as_completed(futures):
                    run = futures[future]
                    self.results[run] = future.result()
                    say(f"{run.name}: {self.results[run].held_out_nats:.4f} nats per held-out byte")
            except BaseException:
                pool.shutdown(cancel_futures=True)  # the runs that wait would hide the error for minutes
                raise

    def best_rate(self, arm):
        """The learning rate with the least held-out loss on the first seed."""
        return min(arm.rates, key=lambda rate: self.results[Run(arm, rate, self.seeds[0])].held_out_nats)

    def chosen(self, arm):
        """Results of the arm's best learning rate, by seed."""
        return [self.results[Run(arm, self.best_rate(arm), seed)] for seed in self.seeds]

    def differences(self, arm):
        """Returns the held-out loss minus the first arm's on the same seed, which saw the same bytes in the same order."""
        pairs = zip(self.chosen(arm), self.chosen(self.arms[0]))
        return [result.held_out_nats - baseline.held_out_nats for result, baseline in pairs]


def say(words):
    print(f"{datetime.datetime.now():%H:%M:%S} {words}", file=sys.stderr, flush=True)


def mean_and_error(differences):
    """Returns the mean and, with more than one seed, its standard error."""
    error = f" ± {statistics.stdev(differences) / math.sqrt(len(differences)):.4f}" if len(differences) > 1 else ""
    return f"{statistics.mean(differences):+.4f}{error}"


def verdict(differences):
    """Says whether the mean difference is within the tolerance, on which side it is not, and how many seeds are within."""
    mean = statistics.mean(differences)
    word = "yes" if abs(mean) <= TOLERANCE_NATS else "no, worse" if mean > 0 else "no, better"
    within = sum(abs(difference) <= TOLERANCE_NATS for difference in differences)
    return f"{word}; {within} of {len(differences)} seeds are"


def text_facts(directory):
    """Describes the text, checked against a checkpoint's manifest, and the cost of predicting it by byte frequencies alone."""
    manifest = next(directory.glob("*/state/jobs/*/checkpoints/*/manifest.json"))
    data = json.loads(manifest.read_text())["data"]
    # As the program reads a directory: regular files by name, no links, no indexes of `fortune`.
    files = sorted(path for path in TEXT.iterdir() if path.is_file() and not path.is_symlink() and path.suffix != ".dat")
    if [hashlib.sha256(path.read_bytes()).hexdigest() for path in files] != data["file_sha256"]:
        raise RuntimeError(f"{TEXT} is no longer the text of {manifest}; expected the same files; give another --out")
    text = b"".join(path.read_bytes() for path in files)
    train_bytes = int(data["total_bytes"]) - int(data["held_out_bytes"])
    counts = collections.Counter(text[:train_bytes])
    nats = -sum(math.log((counts[byte] + 1) / (train_bytes + 256)) for byte in text[train_bytes:]) / len(text[train_bytes:])
    return {"sha256": hashlib.sha256(text).hexdigest(), "files": len(files), "bytes": len(text),
            "held_out_bytes": len(text) - train_bytes, "frequencies_nats": nats}


def machine(program):
    """The processor, and the program with the instruction set that it uses: both decide the last digits."""
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    version = subprocess.run([program, "version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return f"{os.cpu_count()} cores ({model}), {version}"


def row(*cells):
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def tuning_table(study):
    yield row("arm", *(f"value {i + 1}" for i in range(len(study.arms[0].rates))), "the best is")
    yield row(*["---"] * (len(study.arms[0].rates) + 2))
    for arm in study.arms:
        best = study.best_rate(arm)
        cells = [f"{rate:g}: {study.results[Run(arm, rate, study.seeds[0])].held_out_nats:.4f}" for rate in arm.rates]
        place = {arm.rates[0]: "the least tried", arm.rates[-1]: "the greatest tried"}.get(best, "between others")
        yield row(arm.label, *cells, f"{best:g}, {place}")


def comparison_table(study):
    yield row("held-out loss, nats per byte", *(f"seed {seed}" for seed in study.seeds), "mean", f"mean within {TOLERANCE_NATS:g}")
    yield row(*["---"] * (len(study.seeds) + 3))
    for arm in study.arms:
        losses = [result.held_out_nats for result in study.chosen(arm)]
        cells = [f"{loss:.4f}" for loss in (*losses, statistics.mean(losses))]
        yield row(f"{arm.label}; {study.best_rate(arm):g}", *cells, "")
    for arm in study.arms[1:]:
        differences = study.differences(arm)
        cells = [f"{difference:+.4f}" for difference in differences]
        yield row(f"{arm.name} less {study.arms[0].name}", *cells, mean_and_error(differences), verdict(differences))


def page(study, facts, where):
    steps = study.tokens // (BATCH * SEQ_LENGTH)
    return "\n".join([
        f"# Convergence, {datetime.date.today():%-d %B %Y}",
        "",
        f"Virtual machine, {where}. Again: `./dev bench convergence`.",
        "",
        f"Text: {TEXT} (Debian's package `fortunes`), {facts['files']} files, {facts['bytes']:,} bytes; SHA-256 of them one after "
        f"the other: `{facts['sha256']}`. The last {facts['held_out_bytes']:,} bytes are held out; by the frequencies of bytes "
        f"alone each of them costs {facts['frequencies_nats']:.4f} nats.",
        "",
        f"Every run: a GPT of 4 layers, hidden size 128, 4 heads, rotary positions, sequence {SEQ_LENGTH}, bf16, one thread, "
        f"{study.tokens:,} tokens (bytes): {steps:,} steps of B = {BATCH * SEQ_LENGTH:,} tokens, or {steps // 4:,} of 4B. Warm-up "
        f"over {WARMUP_PART:.0%} of the tokens, then cosine decay to a tenth; weight decay 0.1, gradients clipped at norm 1; the "
        "other values are the program's defaults.",
        "",
        f"Learning rates, as many for every arm, on seed {study.seeds[0]}: held-out loss, nats per byte.",
        "",
        *tuning_table(study),
        "",
        f"The best of each arm on {len(study.seeds)} seeds (of initial weights and of the order of the text); ± is the standard "
        "error of a mean:",
        "",
        *comparison_table(study),
        "",
        *(f"![{arm.label} beside {study.arms[0].label}]({figure_name(arm)})\n" for arm in study.arms[1:]),
    ])


def figure_name(arm):
    return f"{datetime.date.today():%Y-%m-%d}-convergence-{arm.name}.svg"


def draw(study, arm):
    series = []
    for one in (study.arms[0], arm):
        results = study.chosen(one)
        series.append(figure.Series(
            one.name, f"{one.label}; learning rate {study.best_rate(one):g}",
            [result.losses for result in results], [result.held_out_nats for result in results]))
    return figure.draw(series, study.tokens, TOLERANCE_NATS)


def commit():
    """Of the sources beside this file; empty outside a repository."""
    folder = pathlib.Path(__file__).resolve().parent
    head = subprocess.run(["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return head.stdout.strip()


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--program", type=pathlib.Path, required=True, help="the built megascale")
    add("--out", type=pathlib.Path, default=pathlib.Path("megascale-out/convergence"), help="default: %(default)s")
    add("--tokens", type=int, default=TOKENS, help="of each run; default: %(default)s")
    add("--rates", type=int, default=len(ADAMW_RATES), help="learning rates tried for each arm; default: %(default)s")
    add("--seeds", type=int, default=len(SEEDS), help="default: %(default)s")
    add("--at-once", type=int, default=os.cpu_count(), help="runs at a time; default: as many as cores")
    add("--commit", default=commit(), help="of the program, for the page; default: that of the sources")
    flags = parser.parse_args()
    step = max(arm.batches for arm in ARMS) * BATCH * SEQ_LENGTH
    if flags.tokens <= 0 or flags.tokens % step:
        parser.error(f"--tokens: {flags.tokens}; expected a multiple of {step}, the tokens of a step of the largest batch")
    if not 1 <= flags.rates <= len(ADAMW_RATES) or not 1 <= flags.seeds <= len(SEEDS) or flags.at_once < 1:
        parser.error(f"expected --rates 1 to {len(ADAMW_RATES)}, --seeds 1 to {len(SEEDS)}, --at-once 1 or more")
    return flags


def main():
    flags = parse_flags()
    program, out = flags.program.resolve(), flags.out.resolve()
    arms = [dataclasses.replace(arm, rates=arm.rates[:flags.rates]) for arm in ARMS]
    study = Study(flags.tokens, arms, SEEDS[:flags.seeds])
    study.run_all(Runner(program, out / "runs", flags.tokens), flags.at_once)
    facts = text_facts(out / "runs")
    for arm in study.arms[1:]:
        (out / figure_name(arm)).write_text(draw(study, arm), encoding="utf-8")
    losses = {run.name: dataclasses.asdict(result) for run, result in study.results.items()}
    everything = {"text": facts, "tokens": study.tokens, "runs": dict(sorted(losses.items()))}
    (out / "convergence.json").write_text(json.dumps(everything) + "\n", encoding="utf-8")
    text = page(study, facts, ", ".join(filter(None, (machine(program), f"commit {flags.commit}" if flags.commit else ""))))
    (out / "page.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
