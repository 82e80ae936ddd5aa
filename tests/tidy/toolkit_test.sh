#!/usr/bin/env bash
# Where the CUDA toolkit is absent: with CUDA_HOME naming an empty folder the program and gpu/ can be analysed, and the
# program has no source of gpu/ but the one that refuses GPUs. Where nvcc is, it has the others. Nothing is built;
# limits_test runs a program with that source. toolkit_test.py reads this in the BUILD files; in a soak Bazel says the same.
set -euo pipefail
root=$(readlink -f "$(dirname "$(readlink -f "$0")")/../..")
python3 "$root/tests/tidy/toolkit_test.py"
[[ -n "${MEGASCALE_SOAK:-}" ]] || exit 0
folder=$(mktemp -d)
# The user's own folder of Bazel, where Bazel itself is unpacked already.
HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
export HOME CUDA_HOME=$folder/cuda
unset TEST_TMPDIR
cd "$root"
nested() { bazel --output_base="$folder/out" "$@" 2> "$folder/log"; }
end() {
  bazel --output_base="$folder/out" shutdown > /dev/null 2>&1 || true
  chmod -R u+w "$folder"
  rm -r "$folder"
}
trap end EXIT
fail() {
  echo "$1"
  tail -20 "$folder/log"
  exit 1
}

# The sources of gpu/ that are linked into the program.
sources_of_program() { nested query 'kind("source file", deps(//cli:megascale)) intersect //gpu/...:*' | grep '\.c[cu]$'; }

mkdir "$CUDA_HOME"
nested build --nobuild //cli:megascale //gpu/... || fail "without the toolkit the program or gpu/ cannot be analysed"
sources=$(sources_of_program) || fail "the program's sources are unknown"
[[ $sources == //gpu:no_gpu_device.cc ]] || fail "without the toolkit the program has of gpu/: $sources"

# Another folder: Bazel looks again when the variable changes.
CUDA_HOME=$folder/toolkit
mkdir -p "$CUDA_HOME/bin" "$CUDA_HOME/include"
touch "$CUDA_HOME/bin/nvcc"
sources=$(sources_of_program) || fail "the program's sources are unknown"
grep -qx //gpu:gpu_device.cc <<< "$sources" || fail "with nvcc the program has of gpu/: $sources"
! grep -qx //gpu:no_gpu_device.cc <<< "$sources" || fail "with nvcc the program has the source that refuses GPUs, too"
echo "without the CUDA toolkit the program can be analysed, and refuses GPUs"
