#!/usr/bin/env python3
"""What bits.py says of equal and of different digests."""

import unittest

import bits


class BitsTest(unittest.TestCase):
    def test_a_job_whose_digests_differ_is_shown_with_both(self):
        lines, num_different = bits.compare({"one rank": ("ab", "ab"), "data 2": ("ab", "cd")})
        self.assertEqual(num_different, 1)
        self.assertRegex(lines[0], "^one rank +ab$")
        self.assertRegex(lines[1], "^data 2 +differs: old ab, new cd$")


unittest.main()
