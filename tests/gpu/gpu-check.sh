#!/usr/bin/env bash
# Checks Megascale on this machine's GPU within a given time: kernels, operators, jobs, recovery, rates. Needs Linux with
# bash, an NVIDIA driver for CUDA 13 and CUDA's libraries, from the system or from Python's packages; no network, no
# compiler, and no Python but for the part pytorch.
#
# This file keeps the time and the results; gpu_parts.sh, beside it, has the parts. Whatever ends this script, and
# whenever, results.json and the archive hold the parts that had ended: each file is replaced by a rename.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)

# Each part in its order: the seconds in which it can show something, the seconds that it gets at most, what it does.
# First what no emulator can tell.
table() {
  cat <<'TEXT'
machine      10   40  the GPU and its driver; opens CUDA's libraries and names the file of each
fragments    10   40  tensor-core words beside the tables of the PTX manual
conformance  60  130  every operator, the device and its communicators beside the float64 reference
bench        40   90  the rate of every operator beside the device's own
large        90  150  30 steps of a model of 1.3 billion parameters in bf16: tokens/s and MFU (on a GPU with 40 GB)
train        45  100  100 steps of GPT-2 124M in bf16: tokens/s and MFU
jobs         40  100  whole jobs in several layouts on one GPU beside the CPU's losses, to the same bits each time
kill         60  130  two workers on one GPU train on text; one is killed; the end has the bits of a calm run
device       30   60  the GPU's memory, copies each way, products and their repeatability, with rates
sanitizer    60   90  compute-sanitizer over the tests of attention, where it is installed
pytorch      60  300  PyTorch's attention at the shape of bench, then its tokens/s at the shapes of train and large
weights      60  300  the initial weights of a model of 7 billion parameters: made on the host, copied to the GPU
TEXT
}
default_parts=9  # the first ones

usage() {
  cat <<'TEXT'
usage: gpu-check.sh [--budget SECONDS] [--parts NAME,…] [--out DIR] [--python PATH] [--bin DIR] [--small]

part       least most  what it does (seconds)
TEXT
  table
  cat <<'TEXT'

Without --parts the parts down to device run, in this order. A part is left out if less than its least time is left of
the budget. It is stopped after its most time, and at the end of the budget.

  --budget SECONDS  for everything; default: 540
  --parts           some of the parts, in the order given
  --out DIR         gets results.json, and gpu-check.tar.gz with the logs, rates and tables of all parts, of at most
                    16 MiB; both are replaced after each part; default: a new folder in /tmp, which the end names
  --python PATH     the Python whose packages have CUDA's libraries, and PyTorch; default: python3, if there is one
  --bin DIR         the programs; default: bin beside this script
  --small           sizes that an emulator can compute; each part needs a second, and gets what is left
Ends with 0 if no part failed, with 1 if one did, with 2 after a wrong option.

Everything that there is to know of a GPU, in ten minutes and then in four:
  ./gpu-check.sh --budget 540 --out first
  ./gpu-check.sh --budget 200 --out second --parts sanitizer,pytorch
TEXT
}

die() {
  echo "gpu-check: $*" >&2
  exit 2
}

all_parts=() parts=()
declare -A least most
while read -r name least_seconds most_seconds _; do
  all_parts+=("$name")
  least[$name]=$least_seconds most[$name]=$most_seconds
done < <(table)
parts=("${all_parts[@]:0:default_parts}")
budget=540 out='' python='' bin=$here/bin small=0
while [[ $# -gt 0 ]]; do
  case "$1" in
    --budget | --parts | --out | --python | --bin)
      [[ $# -ge 2 ]] || die "$1 needs a value; --help explains it"
      case "$1" in
        --budget) budget=$2 ;;
        --parts) IFS=, read -ra parts <<<"$2" ;;
        --out) out=$2 ;;
        --python) python=$2 ;;
        --bin) bin=$2 ;;
      esac
      shift 2
      ;;
    --small) small=1 && shift ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $1; --help lists them" ;;
  esac
done
[[ ${#parts[@]} -gt 0 ]] || die "--parts names no part; expected some of: ${all_parts[*]}"
for part in "${parts[@]}"; do
  [[ " ${all_parts[*]} " == *" $part "* ]] || die "unknown part '$part'; expected some of: ${all_parts[*]}"
  ((small)) && least[$part]=1 most[$part]=1000000
done
needed=${least[${parts[0]}]}
[[ $budget =~ ^[1-9][0-9]{0,5}$ ]] && ((budget - budget / 50 >= needed)) ||
  die "--budget $budget: expected at least $((needed + needed / 49)) seconds, which the part ${parts[0]} needs"
for program in megascale gpu_tests gpu_benchmark; do
  [[ -x $bin/$program ]] || die "$bin has no program $program"
done
bin=$(cd "$bin" && pwd)
[[ -z $python ]] || command -v "$python" >/dev/null || die "--python $python: there is no such program"
[[ -n $python ]] || python=$(command -v python3)
[[ -n $out ]] || out=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check-XXXXXX")
{ mkdir -p "$out" && out=$(cd "$out" && pwd) && [[ -w $out ]]; } || die "cannot write to $out"

started_at=$(date -u +%FT%TZ)
ends=$((SECONDS + budget - budget / 50))  # the rest is for packing the results
archive=$out/gpu-check.tar.gz
archive_bytes_max=$((16 << 20))
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check-work-XXXXXX")
kept=$work/gpu-check  # what the archive holds, before it is cut
mkdir "$kept" && mkfifo "$work/never"
export XDG_RUNTIME_DIR=$work
trap 'rm -rf "$work"' EXIT

# --- Processes ---

# Waits, without a process that could stay behind.
nap() { read -rt "$1" <>"$work/never" || true; }

# Runs a command, for so many seconds at most. Then it is ended.
limited() {
  local seconds=$1 command watch status
  shift
  "$@" &
  command=$!
  (
    nap "$seconds"
    end_in_time "$command"
  ) 2>/dev/null &
  watch=$!
  wait "$command"
  status=$?
  # A signal to this shell ends a wait early.
  while kill -0 "$command" 2>/dev/null; do wait "$command"; status=$?; done
  kill "$watch" 2>/dev/null
  wait "$watch" 2>/dev/null
  return "$status"
}

# Tells a process, or a process group (-PID), to end, and kills it 3 s later.
end_in_time() {
  local i
  kill -TERM -- "$1" || return
  for ((i = 0; i < 30; ++i)); do
    kill -0 -- "$1" || return
    nap 0.1
  done
  kill -KILL -- "$1"
}

# Prints the processes of the programs that this run has started, or those of one name: their environment has its folder.
ours() {
  local folder name variables
  for folder in /proc/[0-9]*; do
    { read -r name <"$folder/comm" && mapfile -d '' variables <"$folder/environ"; } || continue
    [[ -z ${1:-} || $name == "$1" ]] || continue
    [[ " ${variables[*]} " == *" XDG_RUNTIME_DIR=$work "* ]] && echo "${folder#/proc/}"
  done 2>/dev/null
}

# Whether the running part was told to end.
is_stopped() { [[ -e $work/stopped ]]; }

# Sets the running part's note for the table.
say() { printf '%s' "$*" >"$work/note"; }

# Runs a part for so many seconds at most, with its output in its log. Returns what it returned. A part that is stopped
# has 3 s to say its note.
running='' watching=''
run_part() {
  local part=$1 seconds=$2 status
  part_ends=$((SECONDS + seconds))
  rm -f "$work/stopped" && : >"$work/note"
  set -m  # each of the two has a process group
  (
    trap : TERM
    "run_$part"
  ) >"$kept/$part.log" 2>&1 </dev/null &
  running=$!
  (
    nap "$seconds"
    stop_running
  ) 2>/dev/null &
  watching=$!
  set +m
  wait "$running" 2>/dev/null
  status=$?
  kill_rest
  return "$status"
}

stop_running() {
  : >"$work/stopped"
  end_in_time "-$running"
}

# Kills what watches the part, and what the part has left, such as the processes of a job that was stopped.
kill_rest() {
  local pid
  for pid in "$watching" "-$running" $(ours); do kill -KILL -- "$pid"; done 2>/dev/null
  wait "$watching" 2>/dev/null
  running=''
}

# --- Results ---

quoted() { printf '"%s"' "$(tr -d '\000-\037' <<<"$1" | sed 's/[\\"]/\\&/g')"; }

# Adds a part to the results, and then to the table: what the table shows is kept. Writes nothing for a part that did not
# begin, because the time for that is over.
rows='' failed=0 cut=''
report() {
  local part=$1 result=$2 seconds=$3 note=$4
  rows+="${rows:+,}
  {\"part\": \"$part\", \"result\": \"$result\", \"seconds\": $seconds, \"note\": $(quoted "$note")}"
  [[ $result == 'left out' ]] || save
  printf '%-12s %-9s %7d  %s\n' "$part" "$result" "$seconds" "$note"
}

write_results() {
  local name names=''
  for name in $cut; do names+="${names:+, }$(quoted "$name")"; done
  printf '{"date": "%s", "budget": %d, "cut": [%s], "parts": [%s\n]}\n' "$started_at" "$budget" "$names" "$rows" \
    >"$work/results.json"
  cp "$work/results.json" "$out/.results.json" && mv "$out/.results.json" "$out/results.json"
}

# Copies what is kept to a folder, with the middle of each file cut out that is larger than $2 bytes. Sets `cut`.
copy_cut() {
  local to=$1 max=$2 name
  rm -rf "$to" && mkdir -p "${to%/*}" && cp -r "$kept" "$to"
  cut=$(cd "$to" && find . -type f -size "+${max}c" | sed 's/^..//' | sort)
  for name in $cut; do
    {
      head -c $((max / 2)) "$kept/$name"
      printf '\n[gpu-check: %d bytes were cut out here]\n' $(($(wc -c <"$kept/$name") - max))
      tail -c $((max / 2)) "$kept/$name"
    } >"$to/$name"
  done
}

# Writes results.json, and then the archive. Its files are cut until it is small enough.
save() {
  local max packed=$work/packed
  write_results
  for max in 4194304 1048576 262144 65536 16384 4096 1024; do
    copy_cut "$packed/gpu-check" "$max"
    write_results
    cp "$work/results.json" "$packed/gpu-check/"
    tar -C "$packed" -cf - gpu-check | gzip >"$out/.archive" || break
    (($(wc -c <"$out/.archive") <= archive_bytes_max)) && mv "$out/.archive" "$archive" && return
  done
  echo "gpu-check: $archive lacks the last part: the disk is full, or the results do not fit $archive_bytes_max bytes" >&2
}

# Where the script itself is told to end, it stops the part, keeps its results, and ends.
end_early() {
  trap '' TERM INT HUP
  if [[ -n $running ]]; then
    stop_running 2>/dev/null
    kill_rest
    report "$part" stopped $((SECONDS - begin)) "gpu-check was told to end; $(<"$work/note")"
  fi
  exit 143
}

# Prints the folders in which Python's packages have CUDA's libraries, with colons between them.
python_folders() {
  limited 30 "$python" -c '
import importlib.metadata, os
wanted = ("libcudart.so.13", "libcublasLt.so.13", "libnccl.so.2")
folders = {}
for package in importlib.metadata.distributions():
    for line in (package.read_text("RECORD") or "").splitlines():
        file = line.split(",")[0]
        if os.path.basename(file) in wanted:
            folders[os.path.dirname(os.path.abspath(package.locate_file(file)))] = True
print(":".join(folders))'
}

. "$here/gpu_parts.sh"
trap end_early TERM INT HUP
if [[ -n $python ]]; then
  folders=$(python_folders 2>"$kept/python.log")
  LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+${folders:+:}}$folders
fi
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
rm -f "$archive" && save
printf '%-12s %-9s %7s  %s\n' part result seconds note
for part in "${parts[@]}"; do
  begin=$SECONDS
  left=$((ends > begin ? ends - begin : 0))
  if ((left < least[$part])); then
    report "$part" 'left out' 0 "needs ${least[$part]} s; $left s of the budget are left"
    continue
  fi
  run_part "$part" $((left < most[$part] ? left : most[$part]))
  status=$?
  note=$(<"$work/note")
  case $status in
    0) result=passed ;;
    77) result='left out' ;;
    *) result=FAILED ;;
  esac
  if [[ $result == FAILED ]] && is_stopped; then
    note="not ended after $((SECONDS - begin)) s${note:+; $note}"
    # Nothing is known to be wrong but that the time was too short.
    ((left < most[$part] && status != 2)) && result=stopped
  fi
  [[ $result == FAILED ]] && failed=1 note="${note:-ended with $status}; see $part.log in the archive"
  report "$part" "$result" $((SECONDS - begin)) "$note"
done
save
[[ -z $cut ]] || echo "cut, to fit the archive: $(tr '\n' ' ' <<<"$cut")"
echo "results: $out/results.json, $archive"
exit "$failed"
