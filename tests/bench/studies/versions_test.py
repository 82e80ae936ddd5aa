#!/usr/bin/env python3
"""The arithmetic of versions.py, and programs that end too early."""

import contextlib
import io
import subprocess
import tempfile
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

    def test_last_losses_are_compared_to_the_bit(self):
        class Fake:
            def __init__(self, loss):
                self.loss = lambda: loss

        def line(old, new):
            return versions.compare_losses([Fake(old), Fake(new)])

        self.assertEqual(line("5.4150390625", "5.4150390625"), "last losses are equal to the bit: 5.4150390625")
        self.assertTrue(line("5.4150390625", "5.415039062500001").startswith("last losses differ: old 5.4150390625, new 5.41"))
        self.assertIn("not compared: the old program cannot", line(None, "5.4"))
        self.assertIn("not compared: the old and new program cannot", line(None, None))

    def test_a_program_is_asked_for_its_loss(self):
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write("while read request; do echo answer to $request; done\n")
            script.flush()
            program = versions.Program("/bin/sh", [])
            program.stop()
            program.process = subprocess.Popen(["/bin/sh", script.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.assertEqual(program.loss(), "answer to loss")
            program.stop()

    def test_a_program_without_losses_has_none(self):
        program = versions.Program("/bin/true", [])
        self.addCleanup(program.stop)
        self.assertIsNone(program.loss())


unittest.main()
