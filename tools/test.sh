#!/usr/bin/env bash
# Runs tests and closes with one line "N passed, N failed". Usage: tools/test.sh [bazel flags] -- TARGET…
set -uo pipefail
cd "$(dirname "$0")/.."

startup=()
[[ -n "${BAZEL_OUTPUT_BASE:-}" ]] && startup=(--output_base="$BAZEL_OUTPUT_BASE")
flags=()
while [[ $# -gt 0 && $1 != -- ]]; do
  flags+=("$1")
  shift
done
shift

log=$(mktemp /tmp/megascale-test-XXXXXX)
trap 'rm -f "$log"' EXIT
bazel "${startup[@]}" test "${flags[@]}" --keep_going -- "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

passed=$(grep -cE '^//\S+ +(\(([0-9]+\/[0-9]+ )?cached\) )?PASSED' "$log")
failed=$(grep -cE '^//\S+ +(\(([0-9]+\/[0-9]+ )?cached\) )?(FAILED|TIMEOUT|NO STATUS|FLAKY)' "$log")
if [[ $status -ne 0 && $failed -eq 0 ]]; then failed=1; fi
echo "$passed passed, $failed failed"
exit "$status"
