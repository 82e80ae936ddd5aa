#!/usr/bin/env python3
"""Which commands compile_time.py times, and its table."""

import unittest

import compile_time

COMMAND = ["gcc", "-O2", "-MF", "a.d", "-include", "third_party/precompiled/made/runtime.h", "-c", "a.cc", "-o", "a.o"]


class CompileTimeTest(unittest.TestCase):
    def test_only_commands_with_a_precompiled_header_are_compared(self):
        plain = ["gcc", "-c", "b.cc", "-o", "b.o"]
        self.assertEqual(compile_time.compiles([{"arguments": COMMAND}, {"arguments": plain}]), [COMMAND])

    def test_the_other_command_lacks_only_the_header(self):
        self.assertEqual(compile_time.without_precompiled(COMMAND),
                         ["gcc", "-O2", "-MF", "a.d", "-c", "a.cc", "-o", "a.o"])

    def test_nothing_of_the_build_is_overwritten(self):
        moved = compile_time.with_outputs(COMMAND, "/tmp/x")
        self.assertEqual(moved[moved.index("-o") + 1], "/tmp/x/o")
        self.assertEqual(moved[moved.index("-MF") + 1], "/tmp/x/MF")
        self.assertEqual(COMMAND[-1], "a.o")

    def test_the_table_has_means_by_kind(self):
        lines = compile_time.table([("tests", 1.0, 2.0), ("tests", 2.0, 4.0), ("others", 1.0, 1.0)]).splitlines()
        self.assertEqual(lines[2:], ["| others | 1 | 1.00 | 1.00 | 1.00 |", "| tests | 2 | 3.00 | 1.50 | 0.50 |"])


unittest.main()
