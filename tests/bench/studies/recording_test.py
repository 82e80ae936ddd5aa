#!/usr/bin/env python3
"""The arithmetic of recording.py."""

import os
import unittest

import recording


class RecordingTest(unittest.TestCase):
    def test_a_name_may_hold_brackets_and_spaces(self):
        fields = " ".join(["S"] + ["0"] * 10 + ["30", "12", "99"])
        self.assertEqual(recording.parse_stat(f"7 (a) (b c)) {fields}\n"), ("a) (b c)", 42))

    def test_threads_belong_to_what_they_do(self):
        self.assertEqual(recording.group("megascale-w12", "heartbeat"), "timer threads")
        self.assertEqual(recording.group("megascale-w12", "compute"), "workers")
        self.assertEqual(recording.group("megascale-agent", "heartbeat"), "agent")
        self.assertEqual(recording.group("python3", "python3"), "other")

    def test_shares_are_of_what_the_job_used_meanwhile(self):
        before = {"workers": 100.0, "agent": 1.0}
        after = {"workers": 140.0, "hosts": 10.0, "agent": 1.2, "timer threads": 0.05}
        lines = recording.report(before, after, wall=25)
        self.assertIn("agent and timer threads: 0.500 % of the job's processor time, limit 0.5 %", lines)
        self.assertEqual(lines[1].split(), ["workers", "160.00", "%", "80.000", "%"])

    def test_finds_itself(self):
        self.assertIn(os.getpid(), recording.descendants(os.getpid()))
        self.assertGreater(sum(seconds for _, seconds in recording.thread_seconds(os.getpid())), 0)


unittest.main()
