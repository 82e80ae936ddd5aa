#!/usr/bin/env python3
"""The arithmetic of toy.py."""

import unittest

import toy


class ToyTest(unittest.TestCase):
    def test_runs_differ_by_what_they_measure(self):
        checkpoints = (toy.STEPS - 1) // toy.INTERVAL
        found = toy.costs({"start": 4.5, "steps": 4.5 + (toy.STEPS - 1) * 0.5, "checkpoints": 4.5 + (toy.STEPS - 1) * 0.5 + checkpoints * 2})
        self.assertEqual(found, {"start and end": 4.0, "a step": 0.5, "a checkpoint": 2.0})


unittest.main()
