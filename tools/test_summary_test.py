#!/usr/bin/env python3
"""What test_summary.py reads of Bazel's output, and which skips it takes for failures."""

import pathlib
import tempfile
import unittest

import test_summary

LOG = """\
INFO: Elapsed time: 97.1s, Critical Path: 60.00s
//cli:bench_test                                                (cached) PASSED in 3.5s
//runtime/ops:ops_test                                                   PASSED in 12.0s
  Stats over 2 runs: max = 12.0s, min = 4.0s, avg = 8.0s, dev = 4.0s
//runtime/ops:slow_test                                                  TIMEOUT in 180.1s
  /root/testlogs/runtime/ops/slow_test/test.log
//tests/e2e:broken_test                                          FAILED TO BUILD
//tests/sim:storm_test                                         (1/4 cached) PASSED in 7.0s
//tests/e2e:faults_test                                                  FAILED in 1 out of 2 in 4.5s
"""

XML = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="Limits">
<testcase name="IsRefused" classname="LimitsTest"><skipped message="tests/e2e/limits_test.cc:74&#x0A;no control group can be made here&#x0A;"/></testcase>
<testcase name="IsFast" classname="LimitsTest"><skipped message="tests/e2e/limits_test.cc:80&#x0A;this processor has no AVX512-BF16"/></testcase>
<testcase name="Passes" classname="LimitsTest"/>
</testsuite></testsuites>
"""


class SummaryTest(unittest.TestCase):
    def test_results_have_state_time_and_whether_they_are_cached(self):
        results = {result.target: result for result in test_summary.read_results(LOG)}
        states = {target: result.state for target, result in results.items()}
        self.assertEqual(states, {
            "//cli:bench_test": "PASSED", "//runtime/ops:ops_test": "PASSED", "//runtime/ops:slow_test": "TIMEOUT",
            "//tests/e2e:broken_test": "FAILED TO BUILD", "//tests/sim:storm_test": "PASSED", "//tests/e2e:faults_test": "FAILED"})
        self.assertTrue(results["//cli:bench_test"].cached)
        self.assertFalse(results["//runtime/ops:ops_test"].cached)
        self.assertEqual(results["//runtime/ops:ops_test"].seconds, 12.0)
        self.assertEqual(results["//runtime/ops:ops_test"].all_seconds, 16.0)
        self.assertEqual(results["//tests/e2e:faults_test"].seconds, 4.5)

    def test_skips_are_read_of_every_shard_and_of_scripts(self):
        with tempfile.TemporaryDirectory() as folder:
            testlogs = pathlib.Path(folder)
            shard = testlogs / "tests/e2e/limits_test/shard_1_of_2"
            shard.mkdir(parents=True)
            (shard / "test.xml").write_text(XML, encoding="utf-8")
            (shard / "test.log").write_text("[  SKIPPED ] 2 tests\n", encoding="utf-8")
            script = testlogs / "tests/tidy/systemd_test"
            script.mkdir(parents=True)
            (script / "test.log").write_text("SKIPPED: systemd-analyze is not installed\n", encoding="utf-8")
            skips = test_summary.read_skips("//tests/e2e:limits_test", testlogs)
            self.assertEqual([(skip.case, skip.reason) for skip in skips], [
                ("LimitsTest.IsRefused", "no control group can be made here"),
                ("LimitsTest.IsFast", "this processor has no AVX512-BF16")])
            script_skips = test_summary.read_skips("//tests/tidy:systemd_test", testlogs)
            self.assertEqual([skip.reason for skip in script_skips], ["systemd-analyze is not installed"])

    def test_a_missing_privilege_fails_only_where_it_is_strict(self):
        results = [test_summary.Result("//a:a_test", "PASSED", 1.0, False), test_summary.Result("//b:b_test", "PASSED", 2.0, True)]
        skips = [test_summary.Skip("//a:a_test", "A.B", "this user may not mount"),
                 test_summary.Skip("//b:b_test", "C.D", "this processor has no AVX512-BF16")]
        for strict, failed in ((False, 0), (True, 1)):
            lines, num_passed, num_failed = test_summary.summarize(results, skips, 60, 90, strict)
            self.assertEqual((num_passed, num_failed), (2 - failed, failed))
            shown = "\n".join(lines)
            self.assertIn("//a:a_test A.B: this user may not mount", shown)
            self.assertIn("//b:b_test C.D: this processor has no AVX512-BF16", shown)
            self.assertIn("Build: 1.0 min. Tests: 1.5 min", shown)
            self.assertEqual("here that is a failure" in shown, strict)

    def test_the_slowest_come_first_and_are_ten(self):
        results = [test_summary.Result(f"//a:t{i}_test", "PASSED", float(i), False) for i in range(20)]
        lines, _, _ = test_summary.summarize(results, [], 0, 0, True)
        self.assertEqual(lines[0], "The 10 slowest tests:")
        self.assertEqual(lines[1].split(), ["19.0", "s", "//a:t19_test"])
        self.assertEqual(lines[10].split(), ["10.0", "s", "//a:t10_test"])
        self.assertIn("Skipped: nothing.", lines)


unittest.main()
