#!/usr/bin/env python3
"""What `./dev test` says at its end: the slowest tests, the minutes of build and run, what was skipped, how many passed.

Reads what Bazel printed, and the test.xml and test.log that each target left. Usage:

    test_summary.py --bazel-log FILE --testlogs DIRECTORY --build-seconds S --run-seconds S [--strict]

A skipped case says why. Reasons that begin as in NOT_APPLICABLE are properties of the machine or of the build, which nobody can
mend by installing something or by giving a user more rights. Every other reason is a tool or a privilege that is missing: with
--strict (continuous integration) it fails its test.
"""

import argparse
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree

NUM_SLOWEST = 10
NOT_APPLICABLE = ("this processor", "this machine has no GPU", "this machine has a GPU", "a sanitizer ")
RESULT = re.compile(r"^(//\S+) +(?:\((?:\d+/\d+ )?(cached)\) )?(PASSED|FLAKY|FAILED TO BUILD|FAILED|TIMEOUT|NO STATUS)(?:.*? in ([\d.]+)s)?")
SHARDS = re.compile(r"^ +Stats over (\d+) runs: max = [\d.]+s, min = [\d.]+s, avg = ([\d.]+)s")
# What scripts write, which have no test.xml of their own.
SKIPPED_LINE = re.compile(r"^SKIPPED: (.+)$", re.MULTILINE)


class Result:
    """What became of one target."""

    def __init__(self, target, state, seconds, cached):
        self.target = target
        self.state = state
        self.seconds = seconds  # of its longest shard
        self.all_seconds = seconds  # of all its shards
        self.cached = cached


Skip = collections.namedtuple("Skip", "target case reason")


def read_results(log):
    """The targets' results, in the order of Bazel's closing table."""
    results = {}
    last = None
    for line in log.splitlines():
        found = RESULT.match(line)
        shards = SHARDS.match(line)
        if found:
            target, cached, state, seconds = found.groups()
            last = results[target] = Result(target, state, float(seconds or 0), cached is not None)
        elif shards and last:
            last.all_seconds = int(shards.group(1)) * float(shards.group(2))
    return list(results.values())


def reason_of(message):
    """GoogleTest writes "file:line", a line break and the reason."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if lines and re.match(r"\S+:\d+$", lines[0]):
        lines = lines[1:]
    return " ".join(lines) or "no reason given"


def read_skips(target, testlogs):
    """Every skipped case of a target, of all its shards."""
    directory = testlogs / target[2:].replace(":", "/")
    skips = []
    for path in sorted(directory.glob("**/test.xml")):
        try:
            cases = list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))
        except xml.etree.ElementTree.ParseError:
            cases = []
        for case in cases:
            skipped = case.find("skipped")
            if skipped is None:
                continue
            name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
            skips.append(Skip(target, name, reason_of(skipped.get("message") or skipped.text or "")))
    for path in sorted(directory.glob("**/test.log")):
        text = path.read_text(encoding="utf-8", errors="replace")
        skips += [Skip(target, "", reason.strip()) for reason in SKIPPED_LINE.findall(text)]
    return skips


def is_not_applicable(skip):
    return skip.reason.startswith(NOT_APPLICABLE)


def summarize(results, skips, build_seconds, run_seconds, strict):
    """The lines to print, and the number of failed targets."""
    lines = []
    slowest = sorted(results, key=lambda result: -result.seconds)[:NUM_SLOWEST]
    if slowest:
        lines.append(f"The {len(slowest)} slowest tests:")
        lines += [f"  {result.seconds:6.1f} s  {result.target}{' (cached)' if result.cached else ''}" for result in slowest]
    num_cached = sum(result.cached for result in results)
    lines.append(
        f"Build: {build_seconds / 60:.1f} min. Tests: {run_seconds / 60:.1f} min; their own times add up to "
        f"{sum(result.all_seconds for result in results) / 60:.1f} min; {num_cached} of {len(results)} results are cached.")
    unmet = {skip.target for skip in skips if not is_not_applicable(skip)} if strict else set()
    lines.append("Skipped:" if skips else "Skipped: nothing.")
    for skip in skips:
        fails = skip.target in unmet and not is_not_applicable(skip)
        note = "; here that is a failure: install the tool, or run as a user who may" if fails else ""
        case = f" {skip.case}" if skip.case else ""
        lines.append(f"  {skip.target}{case}: {skip.reason}{note}")
    failed = {result.target for result in results if result.state != "PASSED"} | unmet
    passed = [result for result in results if result.target not in failed]
    return lines, len(passed), len(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bazel-log", type=pathlib.Path, required=True)
    parser.add_argument("--bazel-status", type=int, default=0, help="what `bazel test` exited with")
    parser.add_argument("--testlogs", type=pathlib.Path, required=True)
    parser.add_argument("--build-seconds", type=float, required=True)
    parser.add_argument("--run-seconds", type=float, required=True)
    parser.add_argument("--strict", action="store_true", help="a missing tool or privilege is a failure")
    flags = parser.parse_args()
    results = read_results(flags.bazel_log.read_text(encoding="utf-8", errors="replace"))
    ran = [result for result in results if result.state in ("PASSED", "FLAKY", "FAILED", "TIMEOUT")]
    skips = [skip for result in ran for skip in read_skips(result.target, flags.testlogs)]
    lines, passed, failed = summarize(results, skips, flags.build_seconds, flags.run_seconds, flags.strict)
    if flags.bazel_status != 0 and failed == 0:
        failed = 1  # as when no target could be analysed
    print("\n".join(lines))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
