#!/usr/bin/env bash
# Records the conversation of a driver and its agents, of the release in tests/versions/PREVIOUS, into
# tests/versions/data/previous.gz: what the replay tests play to the program of today. Run it after each minor release,
# once PREVIOUS names it; a test expects a recording of that commit. Usage: tests/versions/record.sh [PROGRAM]
#   PROGRAM  of that commit, if it is built already
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
startup=()
[[ -n "${BAZEL_OUTPUT_BASE:-}" ]] && startup=(--output_base="$BAZEL_OUTPUT_BASE")
program=${1:-}
if [[ -z $program ]]; then
  # shellcheck source=tools/build_commit.sh
  . tools/build_commit.sh
  build_previous_program
  program=$previous_program
fi
bazel "${startup[@]}" build //tests/versions:record
"$(bazel "${startup[@]}" info bazel-bin 2> /dev/null)/tests/versions/record" "$program" \
  "$(grep -v '^#' tests/versions/PREVIOUS)" tests/versions/data/previous.gz
