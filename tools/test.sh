#!/usr/bin/env bash
# Builds tests with what they need, and runs them; closes with the slowest tests, the minutes, what was skipped and, as
# its last line, "N passed, N failed".
# Usage: tools/test.sh [--strict] [bazel flags] -- TARGET…
#   --strict  a test that is skipped because a tool or a privilege is missing fails; the default where CI is set
# The build comes first and alone, so that no test competes with a compiler. Tests mostly wait for each other's processes:
# three times as many as there are cores run side by side.
set -uo pipefail
cd "$(dirname "$0")/.."

startup=()
[[ -n "${BAZEL_OUTPUT_BASE:-}" ]] && startup=(--output_base="$BAZEL_OUTPUT_BASE")
strict=()
[[ -n "${CI:-}" && "${CI:-}" != false ]] && strict=(--strict)
flags=()
build_flags=()
while [[ $# -gt 0 && $1 != -- ]]; do
  case "$1" in
    --strict) strict=(--strict) ;;
    --test_summary=* | --test_verbose_timeout_warnings) flags+=("$1") ;; # `bazel build` does not know them
    --config=tsan)
      flags+=("$1")
      build_flags+=("$1" --config=tsan_tests)
      ;;
    *)
      flags+=("$1")
      build_flags+=("$1")
      ;;
  esac
  shift
done
shift
side_by_side=$((3 * $(nproc)))

log=$(mktemp /tmp/megascale-test-XXXXXX)
trap 'rm -f "$log"' EXIT
begin=$(date +%s.%N)
bazel "${startup[@]}" build --build_tests_only "${build_flags[@]}" --keep_going -- "$@"
built=$(date +%s.%N)
bazel "${startup[@]}" test --build_tests_only --jobs=$side_by_side --local_test_jobs=$side_by_side "${flags[@]}" --keep_going -- "$@" 2>&1 |
  tee "$log"
status=${PIPESTATUS[0]}
ran=$(date +%s.%N)
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { print b - a }'; }
python3 tools/test_summary.py --bazel-log "$log" --bazel-status "$status" "${strict[@]}" \
  --testlogs "$(bazel "${startup[@]}" info "${build_flags[@]}" bazel-testlogs 2> /dev/null)" \
  --build-seconds "$(seconds "$begin" "$built")" --run-seconds "$(seconds "$built" "$ran")"
