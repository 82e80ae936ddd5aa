#!/usr/bin/env bash
# gpu-check.sh with programs that compute on the emulator.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "gpu_check_test: $*" >&2
  cat "$folder"/*.txt "$folder"/out*/*.log >&2 || true
  exit 1
}

mkdir "$folder/bin"
ln -s "$PWD/tests/e2e/cuda_program" "$folder/bin/megascale"
ln -s "$PWD/tests/gpu/fragments_test" "$folder/bin/gpu_tests"
ln -s "$PWD/tests/gpu/emulated_gpu_benchmark" "$folder/bin/gpu_benchmark"
# Beside the text on which its jobs train.
check=$folder/gpu-check.sh
cp tests/gpu/gpu-check.sh tests/gpu/gpu_pytorch.py "$folder"
cp tests/gpu/gpu-check.sh "$folder/text"

"$check" --small --bin "$folder/bin" --out "$folder/out" --parts device,fragments,pytorch,bench,weights >"$folder/table.txt" ||
  fail "a part failed"
# No PyTorch finds a GPU here; its script at least is Python, and knows its options.
grep -Eq '^pytorch +left out .*PyTorch is not installed, or finds no GPU$' "$folder/table.txt" || fail "no line of pytorch"
export PYTHONPYCACHEPREFIX=$folder
python3 -m py_compile tests/gpu/gpu_pytorch.py tests/bench/peers/gpt2_pytorch.py || fail "a script is no Python"
status=0
python3 tests/gpu/gpu_pytorch.py train --batch 3 --micro-batch 2 2>"$folder/python.txt" || status=$?
[[ $status -eq 2 ]] || fail "a wrong option of gpu_pytorch.py ended with $status"
grep -q 'batch 3 is no multiple of --micro-batch 2' "$folder/python.txt" || fail "gpu_pytorch.py names no mistake"
grep -Eq '^fragments +passed +[0-9]+  3 tests$' "$folder/table.txt" || fail "no line of fragments"
grep -Eq '^device +passed' "$folder/table.txt" || fail "no line of device"
grep -Eq 'copies to the host .* passed$' "$folder/out/device.log" || fail "device.log"
grep -Eq '^bench +passed' "$folder/table.txt" || fail "no line of bench"
grep -Eq '^weights +passed +[0-9]+  [0-9.]+ million elements/s' "$folder/table.txt" || fail "no line of weights"
grep -q '"part": "fragments", "result": "passed"' "$folder/out/results.json" || fail "results.json"
grep -q '"name": "attention, backward"' "$folder/out/bench.json" || fail "bench.json"

# Two runs by one table of products, whose times differ on the emulator, too; the second one loses a worker.
"$check" --small --bin "$folder/bin" --out "$folder/out3" --parts kill >"$folder/kill.txt" || fail "the part kill"
grep -Eq '^kill +passed +[0-9]+  killed after step 8 of 24; the same bits$' "$folder/kill.txt" || fail "no line of kill"

# A GPU that is too small leaves parts out, and says why.
mkdir "$folder/path"
printf '#!/bin/sh\necho 24564\n' >"$folder/path/nvidia-smi"
chmod +x "$folder/path/nvidia-smi"
PATH=$folder/path:$PATH "$check" --bin "$folder/bin" --out "$folder/out4" --parts large,pytorch >"$folder/little.txt" ||
  fail "a part that is left out failed"
[[ $(grep -Ec '^(large|pytorch) +left out +[0-9]+  the GPU has 24564 MiB; the model of large needs 40 GB$' \
  "$folder/little.txt") -eq 2 ]] || fail "large and pytorch are not left out"

# A program that fails is a part that failed.
ln -sf /bin/false "$folder/bin/gpu_tests"
if "$check" --small --bin "$folder/bin" --out "$folder/out2" --parts fragments >"$folder/failed.txt"; then
  fail "a failed part was not told"
fi
grep -Eq '^fragments +FAILED +[0-9]+  gpu_tests ended with 1; see ' "$folder/failed.txt" || fail "no line of the failure"

# Mistakes are named before anything runs.
status=0
"$check" --parts nonsense 2>"$folder/mistake.txt" || status=$?
[[ $status -eq 2 ]] || fail "a wrong part ended with $status"
grep -q "unknown part 'nonsense'; expected some of: machine device fragments" "$folder/mistake.txt" || fail "the mistake"
