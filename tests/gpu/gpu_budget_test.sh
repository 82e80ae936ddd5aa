#!/usr/bin/env bash
# gpu-check.sh with programs that sleep, abort, write too much and lie: what it leaves, however it ends.
set -euo pipefail
folder=$(mktemp -d)
check=$folder/gpu-check.sh
cp tests/gpu/gpu-check.sh tests/gpu/gpu_parts.sh "$folder"
mkdir "$folder/bin" "$folder/path"

# Prints the processes of fakes, whose environment has the test's folder.
fakes() {
  local process
  for process in /proc/[0-9]*; do
    tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -x "FAKES=$folder" >/dev/null && echo "${process#/proc/}"
  done 2>/dev/null || true
}

finish() {
  kill -KILL $(fakes) 2>/dev/null || true
  rm -rf "$folder"
}
trap finish EXIT

fail() {
  echo "gpu_budget_test: $*" >&2
  head -c 4000 "$folder/table" "$folder"/out/results.json >&2
  exit 1
}

# Waits until a command succeeds.
wait_for() {
  local i
  for ((i = 0; i < 1200; ++i)); do
    "$@" && return
    sleep 0.1
  done
  fail "waited two minutes for: $*"
}

# Each fake does what a file of its name and first option in $FAKES/does says.
for program in megascale gpu_tests gpu_benchmark; do
  cat >"$folder/bin/$program" <<'FAKE'
#!/usr/bin/env bash
name=$(basename "$0")
echo "$name $*" >>"$FAKES/calls"
[[ " $* " == *" --gtest_list_tests "* ]] && exec cat "$FAKES/tests"
case "$name $1" in
  gpu_tests*) does=tests ;;
  "gpu_benchmark --check"*) does=device ;;
  "gpu_benchmark --weights"*) does=weights ;;
  "gpu_benchmark --libraries"*) does=libraries ;;
  gpu_benchmark*) does=bench ;;
  *) does=$1 ;;
esac
for json; do :; done  # the last argument
. "$FAKES/does/$does"
FAKE
done
chmod +x "$folder"/bin/*
export FAKES=$folder TMPDIR=$folder

# Every fake does what it should, at once.
in_order() {
  rm -rf "$folder/does" "$folder/out" "$folder/calls" && mkdir "$folder/does"
  printf '%s\n' 'Running main()' 'All/First.' '  One/a  # GetParam()' '  Two/a' Second. '  One' '  Two' '  Three' \
    Third. '  One' '  Two' '  Three' Fourth. '  One' All/Fifth. '  One/b' '  Two/b' >"$folder/tests"
  # Test after test, as GoogleTest does; `dies` aborts in one of them.
  cat >"$folder/does/tests" <<'FAKE'
for option; do [[ $option == --gtest_filter=* ]] && filter=${option#*=}; done
for test in ${filter//:/ }; do
  echo "[ RUN      ] $test"
  [[ $test == "$(cat "$FAKES/dies" 2>/dev/null)" ]] && kill -ABRT $$
  echo "[       OK ] $test (1 ms)"
done
FAKE
  echo 'echo "  copies to the host  1.0 GB/s passed"' >"$folder/does/device"
  echo 'echo "a 1 b 2 3.5"' >"$folder/does/weights"
  echo 'echo "{\"per_second\": 1}" >"$json"' >"$folder/does/bench"
  echo 'echo "CUDA runtime: /a/libcudart.so.13"; echo "NCCL: absent: found none"' >"$folder/does/libraries"
  echo 'echo 1.0' >"$folder/does/version"
  : >"$folder/dies"
}

run() {
  local status=0
  "$check" --small --bin "$folder/bin" --out "$folder/out" "$@" >"$folder/table" 2>"$folder/errors" || status=$?
  echo "$status" >"$folder/status"
}
ended_with() { [[ $(cat "$folder/status") -eq $1 ]] || fail "ended with $(cat "$folder/status"), not $1"; }
row() { grep -Eq "^$1 +$2 +[0-9]+  $3" "$folder/table" || fail "the table has no row: $1 $2 $3"; }
in_archive() { tar -xzOf "$folder/out/gpu-check.tar.gz" "gpu-check/$1"; }

# What a table says, results.json and the archive have; both are whole whenever there are some.
is_kept() {
  local part result row
  [[ -e $folder/out/results.json ]] || return 0
  python3 -m json.tool <"$folder/out/results.json" >/dev/null || fail "results.json is no JSON"
  [[ -e $folder/out/gpu-check.tar.gz ]] || return 0
  in_archive results.json | python3 -m json.tool >/dev/null || fail "the archive has no results.json"
  while read -r part result _; do
    [[ $result =~ ^(passed|FAILED|stopped)$ ]] || continue
    row="\"part\": \"$part\", \"result\": \"$result\""
    grep -q "$row" "$folder/out/results.json" || fail "results.json lacks $part"
    in_archive results.json | grep "$row" >/dev/null || fail "the archive lacks $part"
    in_archive "$part.log" >/dev/null || fail "the archive lacks $part.log"
  done <"$folder/table"
}

# A process for each suite: an abort in the third of five hides neither the rest of this suite nor the next ones.
in_order
echo Third.Two >"$folder/dies"
run --parts jobs
ended_with 1
row jobs FAILED '10 of 11 tests passed; not passed: Third.Two; in a second run, alone: Third.Three; see jobs.log'
[[ $(grep -c '^gpu_tests --gtest_color' "$folder/calls") -eq 7 ]] || fail "not five suites and two tests alone"
grep -q 'gtest_filter=All/First.One/a:All/First.Two/a$' "$folder/calls" || fail "the first suite is not by itself"
is_kept
in_order
run --parts jobs,machine,device,bench,weights
row jobs passed '11 of 11 tests passed$'

# Programs that lie: they end well, and did nothing.
in_order
for does in tests device bench local; do : >"$folder/does/$does"; done
run --parts jobs,device,bench,train,kill
ended_with 1
row jobs FAILED '0 of 11 tests passed; not passed: All/First.One/a All/First.Two/a Second.One Second.Two and 7 more'
row device FAILED '0 checks'
row bench FAILED '0 rates'
row train FAILED '0 tokens/s in 0 of 12 steps'
row kill FAILED 'the calm run has no digest'

# The libraries' files are in the table; NCCL may be absent.
in_order
printf '#!/bin/sh\necho a GPU, 580\n' >"$folder/path/nvidia-smi" && chmod +x "$folder/path/nvidia-smi"
PATH=$folder/path:$PATH run --parts machine
ended_with 0
row machine passed 'a GPU, 580; CUDA runtime: /a/libcudart.so.13; NCCL: absent: found none$'

# A part that takes longer than the budget, whose processes do not end when they are told to, is stopped; the rest is left
# out.
in_order
cat >"$folder/does/device" <<'FAKE'
trap '' TERM
setsid sleep 1000 &
echo "  copies to the host  1.0 GB/s passed"
sleep 1000
FAKE
run --budget 5 --parts weights,device,bench,jobs
ended_with 0
row weights passed '3.5 million elements/s'
row device stopped 'not ended after [0-9]+ s$'
row bench 'left out' 'needs 1 s; 0 s of the budget are left$'
row jobs 'left out' 'needs 1 s; 0 s of the budget are left$'
is_kept
in_archive device.log | grep 'copies to the host' >/dev/null || fail "what a stopped part printed is lost"
[[ -z $(fakes) ]] || fail "processes of a stopped part are left"

# Killed at any moment, it leaves what had ended.
seed=$RANDOM
echo "seed $seed"
RANDOM=$seed
for moment in 1 2 3 4 5; do
  in_order
  [[ $moment -lt 5 ]] || echo 'exec sleep 1000' >"$folder/does/bench"
  "$check" --small --bin "$folder/bin" --out "$folder/out" --budget 60 --parts device,jobs,weights,bench \
    >"$folder/table" &
  pid=$!
  if [[ $moment -lt 5 ]]; then
    sleep "$((RANDOM % 2)).$((RANDOM % 10))"
  else
    wait_for grep -q '^weights' "$folder/table"
  fi
  # At the first moments it may have ended by itself.
  kill -KILL "$pid" 2>/dev/null || [[ $moment -lt 5 ]] || fail "it ended before its last part was over"
  wait "$pid" 2>/dev/null || true
  is_kept
  kill -KILL $(fakes) 2>/dev/null || true
done
for part in device jobs weights; do
  grep -q "\"part\": \"$part\", \"result\": \"passed\"" "$folder/out/results.json" || fail "$part had ended"
done

# Told to end, it ends its part and says so.
in_order
echo 'exec sleep 1000' >"$folder/does/bench"
"$check" --small --bin "$folder/bin" --out "$folder/out" --budget 60 --parts device,bench >"$folder/table" &
pid=$!
bench_sleeps() { grep -q 'gpu_benchmark .*--json' "$folder/calls" 2>/dev/null; }
wait_for bench_sleeps
kill -TERM "$pid"
wait "$pid" && fail "a check that was told to end ended well" || [[ $? -eq 143 ]] || fail "not 143"
row bench stopped 'gpu-check was told to end'
is_kept
[[ -z $(fakes) ]] || fail "processes of a check that was told to end are left"

# What does not fit the archive is cut, and said so.
in_order
noise='head -c 6000000 /dev/urandom'
echo "$noise; echo; echo '1 GB/s passed'" >"$folder/does/device"
echo "$noise; $noise >\"\$json\"; echo '\"per_second\"' >>\"\$json\"" >"$folder/does/bench"
echo "$noise; exit 1" >"$folder/does/weights"
run --parts device,weights,bench
ended_with 1
row weights FAILED 'ended with 1; see weights.log'
size=$(wc -c <"$folder/out/gpu-check.tar.gz")
((size > 1 << 20 && size <= 16 << 20)) || fail "the archive has $size bytes"
grep -q '^cut, to fit the archive: bench.json bench.log device.log weights.log' "$folder/table" || fail "not said: cut"
grep -q '"cut": \["bench.json", "bench.log", "device.log", "weights.log"\]' "$folder/out/results.json" ||
  fail "results.json does not say it"
in_archive device.log | grep -a '^\[gpu-check: [0-9]* bytes were cut out here\]$' >/dev/null ||
  fail "device.log does not say it"
is_kept

# Mistakes are named before anything runs.
refused() {
  local wanted=$1 status=0
  shift
  "$folder/gpu-check.sh" --bin "$folder/bin" --out "$folder/refused" "$@" 2>"$folder/mistake" || status=$?
  [[ $status -eq 2 && ! -e $folder/refused ]] || fail "gpu-check.sh $* ended with $status"
  grep -q -- "$wanted" "$folder/mistake" || fail "gpu-check.sh $* says: $(cat "$folder/mistake")"
}
refused "--budget soon: expected at least 10 seconds, which the part machine needs" --budget soon
refused "--budget 9: expected at least 10 seconds" --budget 9
refused "--budget 90: expected at least 91 seconds, which the part large needs" --budget 90 --parts large
refused "--budget needs a value" --budget
refused "unknown part 'nonsense'; expected some of: machine fragments conformance bench large" --parts nonsense
refused "--python /nowhere/python: there is no such program" --python /nowhere/python
