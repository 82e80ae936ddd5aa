#!/usr/bin/env python3
"""The arithmetic of recording.py."""

import contextlib
import io
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
        lines, is_kept = recording.report(before, after, wall=25)
        self.assertIn("agent and timer threads: 0.500 % of the job's processor time, limit 0.5 %: kept", lines)
        self.assertTrue(is_kept)
        self.assertEqual(lines[1].split(), ["workers", "160.00", "%", "80.000", "%"])

    def test_more_than_the_limit_is_exceeded(self):
        lines, is_kept = recording.report({}, {"workers": 100.0, "agent": 0.6}, wall=25)
        self.assertFalse(is_kept)
        self.assertEqual(lines[-1], "agent and timer threads: 0.600 % of the job's processor time, limit 0.5 %: EXCEEDED")

    def test_a_job_that_does_not_run_proves_nothing(self):
        self.assertFalse(recording.report({}, {"agent": 0.0}, wall=1)[1])

    def test_the_cost_is_of_tokens_per_second(self):
        self.assertAlmostEqual(recording.cost_percent([2.0, 2.0, 9.0], [1.99, 1.99, 1.0]), 0.5)

    def test_the_interval_is_students(self):
        mean, half = recording.interval([1.0, 2.0, 3.0])
        self.assertAlmostEqual(mean, 2.0)
        self.assertAlmostEqual(half, 4.303 / 3**0.5)
        self.assertEqual(recording.interval([1.0])[1], float("inf"))
        self.assertAlmostEqual(recording.student_t(20), 2.086, places=3)
        self.assertAlmostEqual(recording.student_t(10), 2.228, places=3)

    def test_an_interval_around_the_limit_tells_nothing(self):
        self.assertIn("limit 0.5 %: kept", recording.paired_report([0.1, 0.1, 0.11])[0])
        line, is_kept = recording.paired_report([-2.0, 0.0, 2.0, 3.0])
        self.assertIn("not told apart", line)
        self.assertIn("+/- 0.25 % was not reached", line)
        self.assertTrue(is_kept)
        line, is_kept = recording.paired_report([1.0, 1.01, 1.02])
        self.assertIn("EXCEEDED", line)
        self.assertFalse(is_kept)

    def test_both_sides_take_turns_and_end_once_the_interval_is_small(self):
        asked = []

        def train(is_recording, number):
            asked.append(is_recording)
            return [1.003 + number / 1e5 if is_recording else 1.0] * 3

        with contextlib.redirect_stderr(io.StringIO()):
            costs = recording.compare(train, rounds=30)
        self.assertEqual(len(costs), recording.ROUNDS_MIN)
        self.assertEqual(asked[:4], [True, False, False, True])

    def test_finds_itself(self):
        self.assertIn(os.getpid(), recording.descendants(os.getpid()))
        self.assertGreater(sum(seconds for _, seconds in recording.thread_seconds(os.getpid())), 0)


unittest.main()
