#!/usr/bin/env python3
"""The arithmetic of ablation.py."""

import unittest

import ablation

NAMES = [name for name, _, _ in ablation.ROWS]


class AblationTest(unittest.TestCase):
    def test_gains_are_relative_to_no_overlap(self):
        seconds = {name: [1.0] for name in NAMES}
        seconds["none"] = [2.0, 9.0, 1.0]
        seconds["all"] = [0.5]
        rows = {name: row for name, row in zip(NAMES, ablation.summarize(seconds, tokens=100))}
        self.assertEqual(rows["none"]["seconds"], 2.0)  # the median
        self.assertEqual(rows["none"]["gain"], 0.0)
        self.assertEqual(rows["all"]["gain"], 3.0)  # 2 s in 0.5 s: three times as much more
        self.assertEqual(rows["all"]["tokens_per_second"], 200.0)

    def test_spread_is_half_the_range_of_the_middle_half(self):
        self.assertEqual(ablation.spread([1, 2, 3, 4, 5, 6, 7, 8, 1000, 0, 9]), 3.0)

    def test_every_switch_is_off_in_a_row_of_its_own(self):
        alone = [off for _, _, off in ablation.ROWS if len(off) == 1]
        self.assertEqual(sorted(alone), sorted((switch,) for switch in ablation.SWITCHES))
        self.assertEqual(ablation.ROWS[0][2], ablation.SWITCHES)

    def test_every_switch_is_set_whatever_its_default(self):
        for _, _, off in ablation.TENSOR_ROWS:
            settings = ablation.settings(off)
            self.assertEqual(len(settings), 2 * (len(ablation.SWITCHES) + 1))
            self.assertEqual("parallel.tp_comm_overlap=false" in settings, off != ())
            self.assertEqual("parallel.tp_comm_overlap=true" in settings, off == ())

    def test_tensor_ranks_have_a_table_of_their_own(self):
        rows = ablation.summarize({"none": [3.0], "all": [2.0]}, tokens=6, of=ablation.TENSOR_ROWS)
        self.assertEqual([row["gain"] for row in rows], [0.0, 0.5])
        self.assertEqual([row["tokens_per_second"] for row in rows], [2.0, 3.0])

    def test_other_numerics_are_refused(self):
        losses = {name: 2.5 for name in NAMES}
        ablation.check_same_bits(losses)
        losses["all"] = 2.5000001
        with self.assertRaisesRegex(SystemExit, "'all' ends with loss 2.5000001"):
            ablation.check_same_bits(losses)


unittest.main()
