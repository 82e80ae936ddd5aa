#!/usr/bin/env bash
# Checks Megascale on this machine's GPU: kernels, operators, jobs, recovery, rates. Needs Linux with an NVIDIA driver for
# CUDA 13 and CUDA's libraries, from the system or from Python's nvidia packages; no network, no compiler, and no Python but
# for the part pytorch.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)

usage() {
  cat <<'TEXT'
usage: gpu-check.sh [--parts NAME,…] [--out DIR] [--bin DIR] [--small]

  machine      the GPU, its driver, the libraries that are found
  device       the GPU's memory, copies each way, products and their repeatability, with rates (half a minute)
  fragments    tensor-core words beside the tables of the PTX manual (under 10 s)
  conformance  every operator, the device and its communicators beside the float64 reference (about 1 minute)
  jobs         whole jobs in several layouts on one GPU beside the CPU's losses, to the same bits each time (1 minute)
  kill         two workers on one GPU train on text; one is killed; the end has the bits of a calm run (1 minute)
  train        100 steps of GPT-2 124M in bf16: tokens/s and MFU (1 minute)
  large        30 steps of a model of 1.3 billion parameters in bf16: tokens/s and MFU (2 minutes; left out on a GPU
               with less than 40 GB)
  pytorch      PyTorch's tokens/s at the shapes of train and large, and its attention's rate at those of bench, where
               PyTorch is installed and the GPU has 40 GB (5 minutes)
  sanitizer    compute-sanitizer over the operators, where it is installed (2 minutes)
  bench        the rate of every operator beside the device's own (1 minute)
  weights      the initial weights of a model of 7 billion parameters: made on the host, copied to the GPU (2 minutes)

  --parts      some of these, in this order; default: all
  --out DIR    logs, results.json, bench.json and pytorch.json; default: a new folder in /tmp, which the end names
  --bin DIR    the programs; default: bin beside this script
  --small      sizes that an emulator can compute
Ends with 0 if no part failed, with 1 if one did, with 2 after a wrong option.

  ./gpu-check.sh --parts machine,fragments,conformance --out results
TEXT
}

die() {
  echo "gpu-check: $*" >&2
  exit 2
}

all_parts=(machine device fragments conformance jobs kill train large pytorch sanitizer bench weights)
parts=("${all_parts[@]}")
out='' bin=$here/bin small=0
while [[ $# -gt 0 ]]; do
  case "$1" in
    --parts | --out | --bin)
      [[ $# -ge 2 ]] || die "$1 needs a value; --help explains it"
      case "$1" in
        --parts) IFS=, read -ra parts <<<"$2" ;;
        --out) out=$2 ;;
        --bin) bin=$2 ;;
      esac
      shift 2
      ;;
    --small) small=1 && shift ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $1; --help lists them" ;;
  esac
done
for part in "${parts[@]}"; do
  [[ " ${all_parts[*]} " == *" $part "* ]] || die "unknown part '$part'; expected some of: ${all_parts[*]}"
done
for program in megascale gpu_tests gpu_benchmark; do
  [[ -x $bin/$program ]] || die "$bin has no program $program"
done
bin=$(cd "$bin" && pwd)
[[ -n $out ]] || out=$(mktemp -d /tmp/gpu-check-XXXXXX)
mkdir -p "$out" && out=$(cd "$out" && pwd) || die "cannot write to $out"
work=$(mktemp -d /tmp/gpu-check-work-XXXXXX)
export XDG_RUNTIME_DIR=$work
trap 'rm -rf "$work"' EXIT

# CUDA's libraries where the dynamic linker does not look by itself.
for folder in /usr/local/cuda/lib64 /usr/lib/python3*/*-packages/nvidia/*/lib \
  /usr/local/lib/python3*/*-packages/nvidia/*/lib "${VIRTUAL_ENV:-/nonexistent}"/lib/python3*/site-packages/nvidia/*/lib \
  /opt/*/lib/python3*/site-packages/nvidia/*/lib; do
  [[ -d $folder ]] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

# Each part prints to its log, sets `note` for the table, and returns 0, 1 (failed) or 77 (left out).
note=''

tests_passed() {
  local filter=$1 limit=$2
  timeout "$limit" "$bin/gpu_tests" --gtest_filter="$filter" --gtest_brief=1
  local status=$?
  [[ $status -eq 124 ]] && note="not ended after $limit s" && return 1
  [[ $status -eq 0 ]] || { note="gpu_tests ended with $status" && return 1; }
}

count_tests() { "$bin/gpu_tests" --gtest_list_tests --gtest_filter="$1" | grep -c '^  '; }

run_machine() {
  local device
  nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit --format=csv
  device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
  uname -a
  echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
  "$bin/megascale" version
  note=${device:-nvidia-smi shows no GPU}
  [[ -n $device ]]
}

run_device() {
  local sizes=()
  ((small)) && sizes=(--small)
  timeout 120 "$bin/gpu_benchmark" --check "${sizes[@]}" || { note="ended with $?; 1: the GPU is faulty" && return 1; }
  note="memory, copies and products are right"
}

run_fragments() {
  tests_passed 'FragmentsTest.*' 60 && note="$(count_tests 'FragmentsTest.*') tests"
}

run_conformance() {
  # What computes on the CPU passes everywhere and is left out.
  local filter='*Cuda*:*Device*:*Communicator*-*Gpu*Job*:FragmentsTest.*'
  tests_passed "$filter" 240 && note="$(count_tests "$filter") tests"
}

run_jobs() {
  local filter='*GpuJob*'
  tests_passed "$filter" 240 && note="$(count_tests "$filter") tests"
}

job_file() {
  local layers=8 hidden=512 heads=8 seq=256 batch=16
  ((small)) && layers=2 hidden=64 heads=1 seq=16 batch=4
  cat <<TEXT
name: gpu-check
device: cuda
device_sharing: true
model: {hidden_size: $hidden, num_hidden_layers: $layers, num_attention_heads: $heads}
data: {files: [$here/text]}
train: {steps: $1, seq_length: $seq, global_batch_size: $batch, micro_batch_size: 2, precision: bf16, seed: 1}
optimizer: {lr: 6.0e-4, warmup_steps: 10, clip_grad: 1.0}
checkpoint: {interval: 4}
parallel: {pipeline_model_parallel_size: 2}
TEXT
}

steps_done() { cat "$1"/jobs/*/metrics.jsonl 2>/dev/null | wc -l; }
digest_of() { "$bin/megascale" checkpoint digest "$1"/jobs/*/checkpoints; }

# Prints the processes below one, whose names are `name`.
below() {
  local parent=$1 name=$2 pid
  for pid in $(cat "/proc/$parent/task/"*/children 2>/dev/null); do
    [[ $(cat "/proc/$pid/comm" 2>/dev/null) == "$name" ]] && echo "$pid"
    below "$pid" "$name"
  done
}

run_kill() {
  local steps=200 calm disturbed pid victim deadline table
  ((small)) && steps=24
  job_file "$steps" >"$work/job.yaml"
  local run=("$bin/megascale" local "$work/job.yaml" --job-id gpu-check --agents 2 --slots 1)
  timeout 180 "${run[@]}" --state-dir "$work/calm" ||
    { note="the calm run ended with $?" && return 1; }
  calm=$(digest_of "$work/calm") || return 1
  # Measured times differ, and so would the algorithms of products and the bits: both jobs compute by one table.
  table=jobs/gpu-check/checkpoints/products.json
  { mkdir -p "$work/disturbed/${table%/*}" && cp "$work/calm/$table" "$work/disturbed/$table"; } ||
    { note="the calm run left no table of products" && return 1; }
  timeout 240 "${run[@]}" --state-dir "$work/disturbed" &
  pid=$!
  deadline=$((SECONDS + 120))
  while (($(steps_done "$work/disturbed") < steps / 3)); do
    ((SECONDS > deadline)) && note="no step $((steps / 3)) after 120 s" && kill "$pid" && return 1
    sleep 0.05
  done
  victim=$(below $pid megascale-w1 | head -1)
  [[ -n $victim ]] || { note="found no worker to kill" && kill "$pid" && return 1; }
  kill -9 "$victim"
  wait "$pid" || { note="the disturbed run ended with $?" && return 1; }
  disturbed=$(digest_of "$work/disturbed") || return 1
  cmp "$work/calm/$table" "$work/disturbed/$table" ||
    { note="the killed run has another table of products" && return 1; }
  [[ $calm == "$disturbed" ]] || { note="the killed run has other bits" && return 1; }
  grep -q '"attempt":2' "$work"/disturbed/jobs/*/metrics.jsonl || { note="the job had no second attempt" && return 1; }
  note="killed after step $((steps / 3)) of $steps; the same bits"
}

# The models that both Megascale and PyTorch train: layers, hidden size, heads, vocabulary, sequence, batch, micro-batch,
# steps. GPT-2 124M, and the 1.3 billion parameters of Brown et al., 2020, table 2.1.
shapes_of() {
  ((small)) && echo 1 64 1 256 16 2 2 12 && return
  case "$1" in
    train) echo 12 768 12 50304 1024 16 16 100 ;;
    large) echo 24 2048 16 50304 2048 16 4 30 ;;
  esac
}

# Trains one of these models and notes its rate: that of the median step, without the first quarter.
train_model() {
  local layers hidden heads vocab seq batch micro steps
  read -r layers hidden heads vocab seq batch micro steps <<<"$(shapes_of "$1")"
  timeout 300 "$bin/megascale" local "$here/examples/gpt2.yaml" --set device=cuda --data "$here/text" \
    --set model.num_hidden_layers=$layers --set model.hidden_size=$hidden --set model.num_attention_heads=$heads \
    --set model.vocab_size=$vocab --set model.max_position_embeddings=$seq --set train.seq_length=$seq \
    --set train.global_batch_size=$batch --set train.micro_batch_size=$micro --set train.steps=$steps \
    --slots 1 --state-dir "$work/$1" | tee "$work/$1.log"
  [[ ${PIPESTATUS[0]} -eq 0 ]] || { note="the run did not end well" && return 1; }
  local rate
  rate=$(cat "$work/$1"/jobs/*/metrics.jsonl | sed -n "$((steps / 4)),\$p" |
    sed 's/.*"tokens":\([0-9]*\),"seconds":\([0-9.e+-]*\).*/\1 \2/' | awk '{ print $1 / $2 }' | sort -n |
    awk '{ rate[NR] = $1 } END { printf "%.0f", rate[int((NR + 1) / 2)] }')
  note="$rate tokens/s, $(grep -o 'MFU [^ ]* % of [^ ]* [A-Z]*FLOP/s' "$work/$1.log" | tail -1)"
}

run_train() { train_model train; }

# Returns 77, with the reason, on a GPU that is too small for the model of `large`.
large_fits() {
  local mib
  ((small)) && return
  mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -1)
  [[ $mib =~ ^[0-9]+$ ]] || return 0
  ((mib * 1024 * 1024 >= 40 * 1000 * 1000 * 1000)) ||
    { note="the GPU has $mib MiB; the model of large needs 40 GB" && return 77; }
}

run_large() {
  large_fits || return
  train_model large
}

run_pytorch() {
  local model layers hidden heads vocab seq batch micro steps status rate rates=''
  command -v python3 >/dev/null || { note="there is no python3" && return 77; }
  large_fits || return
  : >"$out/pytorch.json"
  for model in train large; do
    read -r layers hidden heads vocab seq batch micro steps <<<"$(shapes_of $model)"
    timeout 300 python3 "$here/gpu_pytorch.py" train --layers $layers --hidden-size $hidden --heads $heads \
      --vocab-size $vocab --seq-length $seq --batch $batch --micro-batch $micro --steps $steps >"$work/pytorch.json"
    status=$?
    [[ $status -eq 77 ]] && note="PyTorch is not installed, or finds no GPU" && return 77
    [[ $status -eq 0 ]] || { note="$model ended with $status" && return 1; }
    cat "$work/pytorch.json" >>"$out/pytorch.json"
    rate=$(sed 's/.*"tokens_per_second": \([0-9]*\).*/\1/' "$work/pytorch.json")
    rates+="$model $rate tokens/s, "
  done
  timeout 120 python3 "$here/gpu_pytorch.py" attention --heads 32 --head-dim 128 --seq-length 4096 --batch 2 \
    >>"$out/pytorch.json" || { note="attention ended with $?" && return 1; }
  note="${rates}attention is in pytorch.json"
}

run_sanitizer() {
  local tool filter='*Norm*Cuda*:*Attention*Cuda*:*CrossEntropy*Cuda*:FragmentsTest.*'
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  [[ -n $tool ]] || { note="compute-sanitizer is not installed" && return 77; }
  timeout 240 "$tool" --error-exitcode 9 "$bin/gpu_tests" --gtest_filter="$filter" --gtest_brief=1
  local status=$?
  [[ $status -eq 0 ]] || { note="ended with $status; 9: it found something, 124: took over 240 s" && return 1; }
  note="memcheck: nothing found"
}

run_bench() {
  local sizes=()
  ((small)) && sizes=(--small)
  timeout 120 "$bin/gpu_benchmark" "${sizes[@]}" || { note="ended with $?" && return 1; }
  timeout 120 "$bin/gpu_benchmark" "${sizes[@]}" -o json >"$out/bench.json" || { note="ended with $?" && return 1; }
  note="rates are in bench.json"
}

run_weights() {
  local sizes=()
  ((small)) && sizes=(--small)
  timeout 600 "$bin/gpu_benchmark" --weights "${sizes[@]}" | tee "$work/weights.log"
  [[ ${PIPESTATUS[0]} -eq 0 ]] || { note="did not end well" && return 1; }
  note="$(awk 'END { print $5 }' "$work/weights.log") million elements/s with $(nproc) threads"
}

quoted() { printf '"%s"' "$(sed 's/[\\"]/\\&/g' <<<"$1" | tr -d '\000-\037')"; }

failed=0 rows=''
printf '%-12s %-9s %7s  %s\n' part result seconds note
for part in "${parts[@]}"; do
  begin=$SECONDS
  note=''
  "run_$part" >"$out/$part.log" 2>&1
  case $? in
    0) result=passed ;;
    77) result='left out' ;;
    *) result=FAILED && failed=1 ;;
  esac
  seconds=$((SECONDS - begin))
  [[ $result == FAILED ]] && note="${note:-failed}; see $out/$part.log"
  printf '%-12s %-9s %7d  %s\n' "$part" "$result" "$seconds" "$note"
  rows+="${rows:+,}
  {\"part\": \"$part\", \"result\": \"$result\", \"seconds\": $seconds, \"note\": $(quoted "$note")}"
done
printf '{"date": "%s", "parts": [%s\n]}\n' "$(date -u +%FT%TZ)" "$rows" >"$out/results.json"
echo "logs and results.json: $out"
exit "$failed"
