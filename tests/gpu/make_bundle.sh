#!/usr/bin/env bash
# Packs what checks Megascale on a machine that has a GPU and nothing else: for ./dev gpu-bundle.
# Usage: tests/gpu/make_bundle.sh OUT.tar.gz PROGRAMS TEXT…
#   PROGRAMS   the paths of megascale, gpu_tests and gpu_benchmark, with commas between them
#   TEXT       files on whose text the jobs train
set -euo pipefail
out=$1 programs=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat "$@" >"$folder/text"
BUNDLE_MIB_MAX=42 tools/bundle.sh "$out" megascale-gpu "$programs" tests/gpu/gpu-check.sh tests/gpu/gpu_parts.sh \
  tests/gpu/gpu_pytorch.py tests/bench/peers/gpt2_pytorch.py examples LICENSE "$folder/text"
