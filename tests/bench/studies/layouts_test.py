#!/usr/bin/env python3
"""The arithmetic of layouts.py."""

import unittest

import layouts


class LayoutsTest(unittest.TestCase):
    def test_rates_are_relative_to_one_process(self):
        seconds = {label: [1.0] for label, _ in layouts.LAYOUTS}
        seconds[layouts.LAYOUTS[0][0]] = [1.0, 9.0, 0.5]
        seconds[layouts.LAYOUTS[1][0]] = [2.0]
        rows = layouts.table(seconds, tokens=100)
        self.assertEqual(rows[0][1:], (1.0, 100.0, 1.0))  # the median
        self.assertEqual(rows[1][1:], (2.0, 50.0, 0.5))

    def test_shares_are_of_the_step_and_leave_out_what_is_nothing(self):
        stage = {"step_seconds": 2.0, "compute_seconds": 1.5, "data_parallel_seconds": 0.25, "data_wait_seconds": 0.0001}
        self.assertEqual(layouts.shares(stage), "compute 75.0 %, data parallel 12.5 %")


unittest.main()
