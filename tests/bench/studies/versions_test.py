#!/usr/bin/env python3
"""The arithmetic of versions.py, and programs that end too early."""

import contextlib
import io
import unittest

import versions


class VersionsTest(unittest.TestCase):
    def test_ratios_are_of_the_same_round(self):
        old = [(1.0, 2.0), (2.0, 4.0), (4.0, 8.0)]
        new = [(0.5, 3.0), (1.0, 6.0), (2.0, 12.0)]
        lines = versions.table((old, new)).splitlines()
        self.assertEqual(lines[1].split(), ["seconds", "per", "step", "2.000", "1.000", "0.500", "0.500", "to", "0.500"])
        self.assertEqual(lines[2].split()[2:5], ["4.000", "6.000", "1.500"])

    def test_a_program_that_ends_is_named(self):
        program = versions.Program("/bin/true", [])
        with self.assertRaisesRegex(SystemExit, "versions: /bin/true --on-request --no-roofline ended, or took"):
            program.time(1)

    def test_programs_take_turns_at_being_first(self):
        asked = []

        class Fake:
            def __init__(self, name):
                self.name = name

            def time(self, steps):
                asked.append((self.name, steps))
                return 1.0, 1.0

        with contextlib.redirect_stderr(io.StringIO()):
            times = versions.compare([Fake("old"), Fake("new")], rounds=2, steps=3)
        self.assertEqual([name for name, _ in asked], ["old", "new", "old", "new", "new", "old"])
        self.assertEqual([len(of_program) for of_program in times], [2, 2])


unittest.main()
