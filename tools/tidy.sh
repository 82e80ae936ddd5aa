#!/usr/bin/env bash
# clang-tidy over the sources of the product, as many groups at once as there are cores.
# Usage: tools/tidy.sh [--changed] [FOLDER…]
# --changed: only files that differ from the last commit. FOLDER: only sources in these folders and below them. A group of files
# that passed is not looked at again until one of them, a header of ours or the rules change.
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
  shift
  files=$( (git diff --name-only HEAD -- '*.cc'; git ls-files -o --exclude-standard -- '*.cc') | sort -u)
else
  files=$(git ls-files -co --exclude-standard -- '*.cc')
fi
if [[ $# -gt 0 ]]; then
  for folder in "$@"; do
    [[ -d $folder ]] || { echo "tidy: $folder: no such folder; expected one of this repository, such as runtime/plan" >&2; exit 2; }
  done
  folders=$(realpath --relative-to=. -- "$@")
  files=$(awk 'NR == FNR { folders[$0]; next }
               { for (folder in folders) if (folder == "." || index($0, folder "/") == 1) { print; next } }' <(echo "$folders") - <<<"$files")
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
[[ -z "$files" ]] && { echo "tidy: no source to look at" >&2; exit 0; }

passed_dir=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/megascale-tidy
mkdir -p "$passed_dir"
headers=$(cat .clang-tidy $(git ls-files -co --exclude-standard -- '*.h' '*.proto') | sha256sum | cut -c1-16)
export passed_dir headers includes

tidy() {
  clang-tidy --quiet --config-file=.clang-tidy "$@" -- -std=c++20 -I. $includes -DNDEBUG -fopenmp 2>/dev/null
}

# Looks at one or more sources. Several are looked at together: nearly all of the time goes into headers, which they share. A
# source in which that finds something is looked at again by itself; all of them, if they do not compile together.
tidy_sources() {
  local key output status=0 together file again error
  key=$passed_dir/$( (echo "$headers $*"; cat "$@") | sha256sum | cut -c1-32)
  [[ -e $key ]] && return 0
  if [[ $# -eq 1 ]]; then
    output=$(tidy "$1") || status=1
    [[ $status -eq 0 ]] || echo "$output"
  else
    together=$(mktemp /tmp/megascale-tidy-XXXXXX.cc)
    printf '#include "%s"\n' "$@" >"$together"
    if ! output=$(tidy --checks=-bugprone-suspicious-include --header-filter='.*\.cc' "$together"); then
      error=$(grep -m 1 'clang-diagnostic-error' <<<"$output" || true)
      again=$(for file in "$@"; do ! grep -qF "/$file:" <<<"$output" || echo "$file"; done)
      if [[ -n $error || -z $again ]]; then
        again=$(printf '%s\n' "$@")
        echo "tidy: looks at $# sources one by one, which takes many times as long: they do not compile together: ${error:-$output}" >&2
        echo "tidy: if two of them define the same name, rename one; tools/joined_sources.py says which are looked at together" >&2
      fi
      for file in $again; do tidy_sources "$file" || status=1; done
      if [[ -z $error && $status -eq 0 ]]; then
        echo "tidy: looked again at" $again "alone, where there is nothing: $(grep -m 1 -E ': (error|warning): ' <<<"$output")" >&2
      fi
    fi
    rm -f "$together"
  fi
  [[ $status -ne 0 ]] || : >"$key"
  return $status
}
export -f tidy tidy_sources
python3 tools/joined_sources.py <<<"$files" | xargs -P "$(nproc)" -d '\n' -I{} bash -c 'tidy_sources {}'
