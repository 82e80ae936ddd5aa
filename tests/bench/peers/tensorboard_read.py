#!/usr/bin/env python3
"""Reads a job's TensorBoard events with TensorBoard itself and compares them with its loss log.

usage: tensorboard_read.py JOB_FOLDER    (pip install tensorboard)
"""

import json
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAGS = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/learning_rate": "lr", "speed/step_seconds": "seconds"}
RELATIVE_ERROR_MAX = 1e-6  # TensorBoard keeps fp32


def main():
    folder = pathlib.Path(sys.argv[1])
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    for tag, field in TAGS.items():
        read = [(event.step, event.value) for event in events.Scalars(tag)]
        if [step for step, _ in read] != [step["step"] for step in steps]:
            sys.exit(f"{tag}: TensorBoard reads the steps {[step for step, _ in read]}")
        for (step, value), written in zip(read, steps):
            if abs(value - written[field]) > RELATIVE_ERROR_MAX * abs(written[field]):
                sys.exit(f"{tag}, step {step}: TensorBoard reads {value}, the loss log has {written[field]}")
    print(f"TensorBoard reads {len(steps)} steps of {len(TAGS)} curves, and they are those of the loss log")


main()
