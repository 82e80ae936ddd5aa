# The parts of gpu-check.sh. Each prints to its log, says a note for the table, and returns 0 (passed), 77 (left out), 2
# (something is wrong) or 1: what was asked for did not happen. In $kept it leaves what the archive shall hold.

small_sizes() { ((small)) && echo --small; }

run_machine() {
  local device files status
  nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.mem --format=csv
  device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
  uname -a
  head -3 /proc/meminfo
  df -h /tmp
  echo "$(nproc) cores; Python: ${python:-none}; LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
  "$bin/megascale" version
  files=$("$bin/gpu_benchmark" --libraries)
  status=$?
  echo "$files"
  say "${device:-nvidia-smi shows no GPU}; $(awk '{ printf "%s%s", (NR > 1 ? "; " : ""), $0 }' <<<"$files")"
  [[ -n $device && $status -eq 0 ]]
}

# --- Tests ---

# Runs the tests of a filter, each suite in a process of its own: after a crash, or an error from which a process's GPU
# does not recover, the next suite begins anew. Then the tests that did not pass run once more, each alone.
run_tests() {
  local filter=$1 suite test broken=0 num_passed num_tests
  "$bin/gpu_tests" --gtest_list_tests --gtest_filter="$filter" >"$work/list" ||
    { say "gpu_tests lists no tests: it ended with $?" && return 1; }
  awk '/^[^ ]/ { suite = $1 } /^  / { print suite $1 }' "$work/list" >"$work/tests"
  for suite in $(sed 's/\..*//' "$work/tests" | uniq); do
    is_stopped && break
    test=$(awk -v suite="$suite." 'index($1, suite) == 1 { printf "%s%s", found++ ? ":" : "", $1 }' "$work/tests")
    limited 90 "$bin/gpu_tests" --gtest_color=no --gtest_filter="$test" || broke "$suite" $?
  done
  not_passed OK SKIPPED >"$work/again"
  while read -r test && ! is_stopped; do
    echo "gpu-check: alone once more: $test"
    limited 30 "$bin/gpu_tests" --gtest_color=no --gtest_filter="$test" || broke "$test" $?
  done <"$work/again"
  num_tests=$(wc -l <"$work/tests")
  num_passed=$((num_tests - $(not_passed OK | wc -l)))
  say "$num_passed of $num_tests tests passed$(listed ', skipped' $(skipped))$(
    listed '; not passed' $(not_passed OK SKIPPED))$(listed '; in a second run, alone' $(passed_again))"
  ((broken)) && return 2
  is_stopped && return 1
  ((num_passed > 0)) && [[ -z $(not_passed OK SKIPPED) ]] || return 2
}

# Tells how a process of tests ended. Sets `broken`, unless it was ended together with the part.
broke() {
  echo "gpu-check: the process of $1 ended with $2"
  is_stopped || broken=1
}

# Prints the tests of which the log has a line with none of these results.
not_passed() {
  awk -v results="$*" 'FILENAME == ARGV[1] { if ($1 == "[" && $3 == "]" && index(results, $2)) known[$4] = 1; next }
    !($1 in known)' "$kept/$part.log" "$work/tests"
}
skipped() { comm -3 <(not_passed OK | sort) <(not_passed OK SKIPPED | sort); }
passed_again() { comm -3 <(sort "$work/again") <(not_passed OK SKIPPED | sort); }

# Prints a list of at most four words with what it is, or nothing.
listed() {
  local what=$1
  shift
  [[ $# -eq 0 ]] || echo "$what: ${*:1:4}$( (($# > 4)) && echo " and $(($# - 4)) more")"
}

run_fragments() { run_tests 'FragmentsTest.*'; }

# What computes on the CPU passes everywhere and is left out.
run_conformance() { run_tests '*Cuda*:*Device*:*Communicator*-*Gpu*Job*:FragmentsTest.*'; }

run_jobs() { run_tests '*GpuJob*'; }

run_sanitizer() {
  local tool check status notes=''
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  [[ -n $tool ]] || { say "compute-sanitizer is not installed" && return 77; }
  for check in memcheck racecheck; do
    "$tool" --tool "$check" --error-exitcode 9 "$bin/gpu_tests" --gtest_color=no \
      --gtest_filter='*Attention*Cuda*' >"$kept/$check.log" 2>&1
    status=$?
    cat "$kept/$check.log"
    is_stopped && say "${notes}$check was not ended" && return $((${#notes} > 0 ? 0 : 1))
    [[ $status -eq 0 ]] || { say "$notes$check ended with $status; 9: it found something" && return 2; }
    grep -Eq '(ERROR|RACECHECK) SUMMARY: 0 ' "$kept/$check.log" && grep -q '^\[       OK \]' "$kept/$check.log" ||
      { say "$notes$check names no test and no sum of errors" && return 1; }
    notes+="$check found nothing; "
    say "${notes%; }"
  done
}

# --- Rates ---

run_device() {
  "$bin/gpu_benchmark" --check $(small_sizes) || { say "ended with $?; 1: the GPU is faulty" && return 2; }
  local num_passed
  num_passed=$(grep -c ' passed$' "$kept/device.log")
  say "$num_passed checks of memory, copies and products passed"
  ((num_passed > 0))
}

run_bench() {
  local status num_rates
  "$bin/gpu_benchmark" $(small_sizes) --json "$kept/bench.json"
  status=$?
  num_rates=$(grep -c '"per_second"' "$kept/bench.json")
  say "${num_rates:-0} rates are in bench.json"
  ((status == 0 && num_rates > 0))
}

run_weights() {
  "$bin/gpu_benchmark" --weights $(small_sizes) || { say "ended with $?" && return 1; }
  say "$(awk 'END { print $5 }' "$kept/weights.log") million elements/s with $(nproc) threads"
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

steps_done() { cat "$1"/jobs/*/metrics.jsonl 2>/dev/null | wc -l; }

# Keeps what a run wrote, but for its checkpoints and the driver's events.
keep_run() {
  local from=$1 file
  (cd "$from" && find . -type f -size -4096k ! -path '*/log/*' ! -path '*/step-*') | while read -r file; do
    mkdir -p "$kept/${from##*/}/$(dirname "$file")" && cp "$from/$file" "$kept/${from##*/}/$file"
  done
}

# Trains one of these models and says its rate: that of the median step, without the first quarter of the steps.
train_model() {
  local layers hidden heads vocab seq batch micro steps pid done rate
  read -r layers hidden heads vocab seq batch micro steps <<<"$(shapes_of "$1")"
  "$bin/megascale" local "$here/examples/gpt2.yaml" --set device=cuda --data "$here/text" \
    --set model.num_hidden_layers=$layers --set model.hidden_size=$hidden --set model.num_attention_heads=$heads \
    --set model.vocab_size=$vocab --set model.max_position_embeddings=$seq --set train.seq_length=$seq \
    --set train.global_batch_size=$batch --set train.micro_batch_size=$micro --set train.steps=$steps \
    --slots 1 --state-dir "$work/$1" &
  pid=$!
  # Then it would measure held-out text, on the host: no GPU has to wait for that.
  while kill -0 "$pid" && ! has_succeeded "$1"; do nap 0.2; done 2>/dev/null
  kill "$pid" 2>/dev/null
  wait "$pid"
  done=$(steps_done "$work/$1")
  rate=$(cat "$work/$1"/jobs/*/metrics.jsonl | sed -n "$((done / 4 + 1)),\$p" |
    sed 's/.*"tokens":\([0-9]*\),"seconds":\([0-9.e+-]*\).*/\1 \2/' | awk '{ print $1 / $2 }' | sort -n |
    awk '{ rate[NR] = $1 } END { if (NR) printf "%.0f", rate[int((NR + 1) / 2)] }')
  say "${rate:-0} tokens/s in $done of $steps steps; $(
    grep -o 'MFU [^ ]* % of [^ ]* [A-Z]*FLOP/s' "$kept/$1.log" | tail -1)"
  keep_run "$work/$1"
  rm -rf "${work:?}/$1"
  ((done == steps)) && has_succeeded "$1"
}

has_succeeded() { grep -q ' SUCCEEDED ' "$kept/$1.log"; }

run_train() { train_model train; }

# Returns 77, with the reason, on a GPU that is too small for the model of `large`.
large_fits() {
  local mib
  ((small)) && return
  mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -1)
  [[ $mib =~ ^[0-9]+$ ]] || return 0
  ((mib * 1024 * 1024 >= 40 * 1000 * 1000 * 1000)) ||
    { say "the GPU has $mib MiB; the model of large needs 40 GB" && return 77; }
}

run_large() {
  large_fits || return
  train_model large
}

run_pytorch() {
  local model mode layers hidden heads vocab seq batch micro steps status rates='attention is in pytorch.json'
  [[ -n $python ]] || { say "there is no python3" && return 77; }
  large_fits || return
  "$python" "$here/gpu_pytorch.py" attention --heads 32 --head-dim 128 --seq-length 4096 --batch 2 >"$kept/pytorch.json"
  status=$?
  [[ $status -eq 77 ]] && say "PyTorch is not installed, or finds no GPU" && return 77
  [[ $status -eq 0 ]] || { say "attention ended with $status" && return 1; }
  for model in train large; do
    if [[ $model == large ]] && ((part_ends - SECONDS < 90)); then
      say "$rates; large needs 90 s, $((part_ends - SECONDS)) s are left"
      return
    fi
    read -r layers hidden heads vocab seq batch micro steps <<<"$(shapes_of $model)"
    for mode in compiled eager; do  # where PyTorch finds no compiler, its plain form at least has a rate
      say "$rates; $model, $mode, did not end"
      "$python" "$here/gpu_pytorch.py" train --layers $layers --hidden-size $hidden --heads $heads --vocab-size $vocab \
        --seq-length $seq --batch $batch --micro-batch $micro --steps $steps --mode $mode >"$work/rate" && break
      { [[ $mode == eager ]] || is_stopped; } && return 1
    done
    cat "$work/rate" >>"$kept/pytorch.json"
    rates+="; $model, $mode: $(sed -n 's/.*"tokens_per_second": \([0-9]*\).*/\1/p' "$work/rate") tokens/s"
    say "$rates"
  done
}

# --- Recovery ---

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

digest_of() { "$bin/megascale" checkpoint digest "$1"/jobs/*/checkpoints; }

run_kill() {
  local status
  compare_killed "$work/calm" "$work/disturbed"
  status=$?
  keep_run "$work/calm"
  keep_run "$work/disturbed"
  return "$status"
}

compare_killed() {
  local calm=$1 disturbed=$2 steps=200 digest pid victim table=jobs/gpu-check/checkpoints/products.json
  ((small)) && steps=24
  job_file "$steps" >"$work/job.yaml"
  local run=("$bin/megascale" local "$work/job.yaml" --job-id gpu-check --agents 2 --slots 1
    --held-out-windows 1)
  "${run[@]}" --state-dir "$calm" || { say "the calm run ended with $?" && return 1; }
  digest=$(digest_of "$calm") && [[ -n $digest ]] || { say "the calm run has no digest" && return 1; }
  # Measured times differ, and so would the algorithms of products and the bits: both jobs compute by one table.
  { mkdir -p "$disturbed/${table%/*}" && cp "$calm/$table" "$disturbed/$table"; } ||
    { say "the calm run left no table of products" && return 1; }
  "${run[@]}" --state-dir "$disturbed" &
  pid=$!
  while (($(steps_done "$disturbed") < steps / 3)); do
    kill -0 "$pid" || { say "the disturbed run ended before step $((steps / 3))" && return 1; }
    nap 0.05
  done
  victim=$(ours megascale-w1 | head -1)
  [[ -n $victim ]] || { say "found no worker to kill" && return 1; }
  kill -KILL "$victim"
  wait "$pid" || { say "the disturbed run ended with $?" && return 1; }
  cmp "$calm/$table" "$disturbed/$table" || { say "the killed run has another table of products" && return 2; }
  [[ $digest == "$(digest_of "$disturbed")" ]] || { say "the killed run has other bits" && return 2; }
  grep -q '"attempt":2' "$disturbed"/jobs/*/metrics.jsonl ||
    { say "the job had no second attempt" && return 1; }
  say "killed after step $((steps / 3)) of $steps; the same bits"
}
