#!/usr/bin/env bash
# clang-tidy over the sources of the product, as many at once as there are cores. Usage: tools/tidy.sh [--changed]
# --changed: only files that differ from the last commit. A file that passed is not looked at again until it, a header of
# ours or the rules change.
set -euo pipefail
cd "$(dirname "$0")/.."

startup=()
[[ -n "${BAZEL_OUTPUT_BASE:-}" ]] && startup=(--output_base="$BAZEL_OUTPUT_BASE")
bazel "${startup[@]}" build //proto:all >/dev/null 2>&1 || {
  echo "tidy: the protos do not build: run ./dev build" >&2
  exit 1
}
generated=$(bazel "${startup[@]}" info bazel-bin 2>/dev/null)

if [[ "${1:-}" == "--changed" ]]; then
  files=$( (git diff --name-only HEAD -- '*.cc'; git ls-files -o --exclude-standard -- '*.cc') | sort -u)
else
  files=$(git ls-files -co --exclude-standard -- '*.cc')
fi
# Tests are held to the compiler's warnings and to //tests/tidy.
files=$(grep -vE '_test\.cc$|^tests/|/test_[a-z_]*\.cc$' <<<"$files" || true)
# What the emulator compiles in the kernels' words needs std::source_location, which this clang does not know.
files=$(xargs -r grep -LE '"gpu/kernels/(host_)?vocabulary\.h"' <<<"$files" || true)
cuda_home=${CUDA_HOME:-/usr/local/cuda}
includes="-isystem $generated"
if [[ -x $cuda_home/bin/nvcc ]]; then
  includes+=" -isystem $cuda_home/include"
else
  echo "tidy: leaves gpu/ out: no CUDA toolkit in $cuda_home" >&2
  files=$(grep -v '^gpu/' <<<"$files" || true)
fi
[[ -z "$files" ]] && exit 0

passed_dir=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/megascale-tidy
mkdir -p "$passed_dir"
headers=$(cat .clang-tidy $(git ls-files -co --exclude-standard -- '*.h' '*.proto') | sha256sum | cut -c1-16)
export passed_dir headers includes

tidy() {
  clang-tidy --quiet --config-file=.clang-tidy "$@" -- -std=c++20 -I. $includes -DNDEBUG -fopenmp 2>/dev/null
}

# Looks at sources of one folder. Together if there are several: nearly all of the time goes into headers, which they share. What
# that finds is looked at again source by source: two sources may define the same name, each for itself.
tidy_sources() {
  local key output status=0 together file
  key=$passed_dir/$( (echo "$headers $*"; cat "$@") | sha256sum | cut -c1-32)
  [[ -e $key ]] && return 0
  if [[ $# -eq 1 ]]; then
    output=$(tidy "$1") || status=1
    [[ $status -eq 0 ]] || echo "$output"
  else
    together=$(mktemp /tmp/megascale-tidy-XXXXXX.cc)
    printf '#include "%s"\n' "$@" >"$together"
    if ! tidy --checks=-bugprone-suspicious-include --header-filter="$(dirname "$1")/[^/]*\.cc" "$together" >/dev/null; then
      for file in "$@"; do tidy_sources "$file" || status=1; done
    fi
    rm -f "$together"
  fi
  [[ $status -ne 0 ]] || : >"$key"
  return $status
}
export -f tidy tidy_sources
# A line for each folder; a large one in parts of twelve.
awk '{ folder = $0; sub("/[^/]*$", "", folder); n[folder]++
       if (folder != last || n[folder] % 12 == 1) printf "%s", (NR > 1 ? "\n" : "")
       printf "%s ", $0; last = folder } END { print "" }' <<<"$files" |
  xargs -P "$(nproc)" -d '\n' -I{} bash -c 'tidy_sources {}'
