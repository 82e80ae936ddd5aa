"""The whole study of convergence on a few thousand tokens: the real program trains, and the study shows its numbers."""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import figure
import study

PROGRAM = pathlib.Path(sys.argv.pop())
TOKENS = 16 * study.BATCH * study.SEQ_LENGTH


def results_of(losses):
    """{run: result} from {(arm, rate, seed): held-out loss}."""
    return {study.Run(*key): study.Result(loss, []) for key, loss in losses.items()}


# Trains nine times: only under `./dev soak`.
class WholeStudy(unittest.TestCase if os.environ.get("MEGASCALE_SOAK") == "1" else object):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = pathlib.Path(cls.folder.name)
        cls.page = cls.run_study()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def run_study(cls):
        script = pathlib.Path(study.__file__)
        options = ["--tokens", str(TOKENS), "--rates", "1", "--seeds", "1", "--at-once", "1", "--commit", "abc1234"]
        return subprocess.run([sys.executable, script, "--program", PROGRAM, "--out", cls.out, *options],
                              stdout=subprocess.PIPE, text=True, check=True).stdout

    def records(self, arm):
        metrics, = self.out.glob(f"runs/{arm.name}-*/state/jobs/*/metrics.jsonl")
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    def test_every_arm_sees_as_many_tokens_and_lamb_in_a_quarter_of_the_steps(self):
        for arm, steps in ((study.BASELINE, 16), (study.LAMB, 4), (study.LARGE_BATCH, 4), (study.BLOCK, 16)):
            self.assertEqual(len(self.records(arm)), steps)
            self.assertEqual(sum(record["tokens"] for record in self.records(arm)), TOKENS)

    def test_the_arms_are_the_optimizers_and_blocks_that_they_are_called(self):
        seen = {}
        for manifest in self.out.glob("runs/*/state/jobs/*/checkpoints/*/manifest.json"):
            content = json.loads(manifest.read_text())
            spec = content["spec"]
            seen[content["job_id"].split("-")[0]] = (
                spec["optimizer"]["type"], spec["model"].get("parallel_block", False), spec["model"].get("sliding_window", 0))
        self.assertEqual(seen, {
            "adamw": ("OPTIMIZER_TYPE_ADAMW", False, 0),
            "adamw4": ("OPTIMIZER_TYPE_ADAMW", False, 0),
            "lamb": ("OPTIMIZER_TYPE_LAMB", False, 0),
            "block": ("OPTIMIZER_TYPE_ADAMW", True, 64)})

    def test_the_page_shows_what_evaluate_says_of_the_checkpoints(self):
        for arm in study.ARMS:
            checkpoints, = self.out.glob(f"runs/{arm.name}-*/state/jobs/*/checkpoints")
            said = subprocess.run([PROGRAM, "evaluate", "--checkpoint", checkpoints, "--threads", "1", "-o", "json"],
                                  stdout=subprocess.PIPE, text=True, check=True).stdout
            nats = json.loads(said)["bits_per_byte"] * math.log(2)
            self.assertIn(f"| {arm.label}; {arm.rates[0]:g} | {nats:.4f} | {nats:.4f} |", self.page)

    def test_runs_that_are_there_are_not_run_again(self):
        reports = sorted(self.out.glob("runs/*/report.json"))
        before = [report.stat().st_mtime_ns for report in reports]
        self.assertEqual(len(reports), len(study.ARMS))
        self.assertEqual(self.run_study(), self.page)
        self.assertEqual([report.stat().st_mtime_ns for report in reports], before)

    def test_a_figure_has_a_line_for_each_seed_of_each_arm_and_of_the_difference(self):
        for drawing in self.out.glob("*.svg"):
            root = xml.etree.ElementTree.parse(drawing).getroot()
            self.assertEqual(len(root.findall("{*}polyline")), 3)
            self.assertEqual(len(root.findall("{*}circle")), 3)
        self.assertEqual(len(list(self.out.glob("*.svg"))), len(study.ARMS) - 1)


class Choosing(unittest.TestCase):
    def test_the_best_learning_rate_is_that_of_the_first_seed(self):
        arm = study.Arm("a", "A", (1.0, 2.0))
        results = results_of({(arm, 1.0, 1): 3.0, (arm, 2.0, 1): 2.5, (arm, 2.0, 2): 9.0})
        self.assertEqual(study.Study(0, [arm], (1, 2), results).best_rate(arm), 2.0)

    def test_differences_are_by_seed_against_the_first_arm(self):
        first, second = study.Arm("a", "A", (1.0,)), study.Arm("b", "B", (1.0,))
        results = results_of({(first, 1.0, 1): 2.0, (first, 1.0, 2): 3.0, (second, 1.0, 1): 2.5, (second, 1.0, 2): 2.75})
        self.assertEqual(study.Study(0, [first, second], (1, 2), results).differences(second), [0.5, -0.25])

    def test_the_verdict_names_the_side(self):
        self.assertEqual(study.verdict([0.01, -0.03, 0.01]), "yes; 2 of 3 seeds are")
        self.assertEqual(study.verdict([0.05, 0.01, 0.03]), "no, worse; 1 of 3 seeds are")
        self.assertEqual(study.verdict([-0.05, -0.01, -0.03]), "no, better; 1 of 3 seeds are")

    def test_the_error_of_a_mean_falls_with_the_root_of_the_seeds(self):
        self.assertEqual(study.mean_and_error([0.01, 0.03, -0.01]), "+0.0100 ± 0.0115")
        self.assertEqual(study.mean_and_error([-0.01]), "-0.0100")

    def test_spans_of_both_arms_hold_the_same_tokens(self):
        series = [figure.Series("a", "A", [[1.0] * 2400], [1.0]), figure.Series("b", "B", [[1.0] * 600], [1.0])]
        self.assertEqual(figure.num_means(series), 60)
        self.assertEqual(figure.means([4.0, 2.0, 5.0, 7.0], 2, 0.5), [(0.75, 6.0)])


if __name__ == "__main__":
    unittest.main()
