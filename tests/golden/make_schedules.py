#!/usr/bin/env python3
"""Writes schedules.json: the learning rates of PyTorch's own schedulers, step by step.

    make_schedules.py    needs torch; schedules_test.cc compares our rates with these

A scheduler of PyTorch counts from 0. Behind a warm-up its epoch s - 1 is our step s: LinearLR from 1 / warmup_steps
reaches lr at step warmup_steps. Without a warm-up its epoch s is our step s.
"""
import json
import pathlib
import warnings

import torch
from torch.optim import lr_scheduler

LR = 0.01
MIN_LR = 0.002


def falling(kind, optimizer, steps):
    if kind == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps, eta_min=MIN_LR)
    if kind == "linear":
        return lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=MIN_LR / LR, total_iters=steps)
    return lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=steps)


def rates(schedule, decay, warmup, decay_steps, total):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    parts, milestones = [], []
    if warmup > 0:
        parts.append(lr_scheduler.LinearLR(optimizer, start_factor=1 / warmup, end_factor=1.0, total_iters=warmup - 1))
        milestones.append(warmup - 1)
    if schedule == "wsd":
        parts.append(falling("constant", optimizer, total))
        milestones.append(total - decay_steps - (1 if warmup > 0 else 0))
        parts.append(falling(decay, optimizer, decay_steps))
    else:
        parts.append(falling(schedule, optimizer, total - warmup))
    scheduler = parts[0] if len(parts) == 1 else lr_scheduler.SequentialLR(optimizer, parts, milestones)
    found = [optimizer.param_groups[0]["lr"]]
    for _ in range(total - (1 if warmup > 0 else 0)):
        optimizer.step()
        scheduler.step()
        found.append(optimizer.param_groups[0]["lr"])
    return found if warmup > 0 else found[1:]  # of the steps 1 to total


def main():
    warnings.filterwarnings("ignore", message="The epoch parameter")
    cases = []
    for warmup in (10, 0):
        for schedule, decay, decay_steps in (("cosine", "", 0), ("linear", "", 0), ("constant", "", 0),
                                             ("wsd", "linear", 23), ("wsd", "cosine", 23)):
            cases.append({"schedule": schedule, "decay": decay, "warmup_steps": warmup, "decay_steps": decay_steps,
                          "rates": rates(schedule, decay, warmup, decay_steps, 110)})
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{{"torch": "{torch.__version__}", "lr": {LR}, "min_lr": {MIN_LR}, "cases": [\n{lines}]}}\n'
    (pathlib.Path(__file__).parent / "schedules.json").write_text(text)


if __name__ == "__main__":
    main()
