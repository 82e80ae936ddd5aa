#!/usr/bin/env bash
# gpu-check.sh with programs that compute on the emulator. bare_root_test.sh has the parts that train.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "gpu_check_test: $*" >&2
  cat "$folder"/*.txt >&2
  tar -xzOf "$folder/out/gpu-check.tar.gz" >&2
  exit 1
}
in_archive() { tar -xzOf "$folder/out/gpu-check.tar.gz" "gpu-check/$1" | grep -E "$2" >/dev/null; }

mkdir "$folder/bin"
ln -s "$PWD/tests/e2e/cuda_program" "$folder/bin/megascale"
ln -s "$PWD/tests/gpu/fragments_test" "$folder/bin/gpu_tests"
ln -s "$PWD/tests/gpu/emulated_gpu_benchmark" "$folder/bin/gpu_benchmark"
check=$folder/gpu-check.sh
cp tests/gpu/gpu-check.sh tests/gpu/gpu_parts.sh tests/gpu/gpu_pytorch.py "$folder"
run() { "$check" --bin "$folder/bin" --budget 800 --out "$folder/out" "$@"; }

run --small --parts device,fragments,pytorch,bench,weights >"$folder/table.txt" || fail "a part failed"
# No PyTorch finds a GPU here; its script at least is Python, and knows its options.
grep -Eq '^pytorch +left out .*PyTorch is not installed, or finds no GPU$' "$folder/table.txt" || fail "no line of pytorch"
export PYTHONPYCACHEPREFIX=$folder
python3 -m py_compile tests/gpu/gpu_pytorch.py tests/bench/peers/gpt2_pytorch.py || fail "a script is no Python"
status=0
python3 tests/gpu/gpu_pytorch.py train --batch 3 --micro-batch 2 2>"$folder/python.txt" || status=$?
[[ $status -eq 2 ]] || fail "a wrong option of gpu_pytorch.py ended with $status"
grep -q 'batch 3 is no multiple of --micro-batch 2' "$folder/python.txt" || fail "gpu_pytorch.py names no mistake"
grep -Eq '^fragments +passed +[0-9]+  3 of 3 tests passed$' "$folder/table.txt" || fail "no line of fragments"
grep -Eq '^device +passed +[0-9]+  [1-9][0-9]* checks' "$folder/table.txt" || fail "no line of device"
in_archive device.log 'copies to the host .* passed$' || fail "device.log"
grep -Eq '^bench +passed' "$folder/table.txt" || fail "no line of bench"
grep -Eq '^weights +passed +[0-9]+  [0-9.]+ million elements/s' "$folder/table.txt" || fail "no line of weights"
in_archive results.json '"part": "fragments", "result": "passed"' || fail "results.json"
in_archive bench.json '"name":"attention, backward"' || fail "bench.json"

# A GPU that is too small leaves parts out, and says why.
mkdir "$folder/path"
printf '#!/bin/sh\necho 24564\n' >"$folder/path/nvidia-smi"
chmod +x "$folder/path/nvidia-smi"
export PATH=$folder/path:$PATH
run --parts large,pytorch >"$folder/little.txt" || fail "a part that is left out failed"
[[ $(grep -Ec '^(large|pytorch) +left out +[0-9]+  the GPU has 24564 MiB; the model of large needs 40 GB$' \
  "$folder/little.txt") -eq 2 ]] || fail "large and pytorch are not left out"

# CUDA's libraries are found where a Python has them, wherever that is: with --python, and on the PATH. The files are
# those of the toolkit.
environment=$folder/an.unusual/place/env
python3 -m venv --without-pip "$environment"
site=$("$environment/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for library in cu13:libcudart.so.13 cu13:libcublasLt.so.13 nccl:libnccl.so.2; do
  name=${library%:*} file=${library#*:}
  mkdir -p "$site/nvidia/$name/lib" "$site/nvidia_$name-1.0.dist-info"
  ln -s "$(readlink -f "/usr/local/cuda/lib64/$file")" "$site/nvidia/$name/lib/$file"
  printf 'Metadata-Version: 2.1\nName: nvidia-%s\nVersion: 1.0\n' "$name" >"$site/nvidia_$name-1.0.dist-info/METADATA"
  echo "nvidia/$name/lib/$file,sha256=0,1" >>"$site/nvidia_$name-1.0.dist-info/RECORD"
done
expect_found() {
  local wanted="; CUDA runtime: $site/nvidia/cu13/lib/libcudart.so.13"
  wanted+="; cuBLASLt: $site/nvidia/cu13/lib/libcublasLt.so.13; NCCL: $site/nvidia/nccl/lib/libnccl.so.2"
  grep -qF "$wanted" "$folder/libraries.txt" || fail "the libraries were not found"
}
run --parts machine --python "$environment/bin/python3" >"$folder/libraries.txt" || fail "the part machine"
expect_found
PATH=$environment/bin:$PATH run --parts machine >"$folder/libraries.txt" || fail "the part machine"
expect_found
