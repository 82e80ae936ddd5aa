#!/usr/bin/env bash
# `./dev train` and `./dev install` in a folder of their own, with stand-ins for Bazel, for the installer of packages and
# for the program: what they say, and in which order they do it.
set -euo pipefail
root=$(dirname "$(readlink -f "$0")")/../..
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
fail() {
  echo "$1"
  exit 1
}

mkdir -p "$folder/tree/tools" "$folder/bin" "$folder/out/cli"
cp "$root/dev" "$folder/tree"
export FOLDER=$folder HOME=$folder/home
unset BAZEL_OUTPUT_BASE
cat > "$folder/tree/tools/install.sh" << 'STAND_IN'
#!/usr/bin/env bash
echo install >> "$FOLDER/calls"
STAND_IN
cat > "$folder/bin/bazel" << 'STAND_IN'
#!/usr/bin/env bash
case $1 in
  info) echo "$FOLDER/out" ;;
  *) echo "bazel $*" >> "$FOLDER/calls" ;;
esac
STAND_IN
cat > "$folder/out/cli/megascale" << 'STAND_IN'
#!/usr/bin/env bash
[[ $1 == completion ]] && echo "made for $2" || echo "megascale $*" >> "$FOLDER/calls"
STAND_IN
chmod +x "$folder/tree/tools/install.sh" "$folder/bin/bazel" "$folder/out/cli/megascale"
export PATH=$folder/bin:$PATH

"$folder/tree/dev" train --set train.steps=2 > "$folder/train" 2>&1
head -1 "$folder/train" | grep -q "==> in all about [0-9]* minutes (estimate" ||
  fail "dev train does not begin with how long it takes: $(head -1 "$folder/train")"
expected="install
bazel build --show_progress_rate_limit=10 //cli:megascale
megascale local examples/fortunes.yaml --agents 2 --slots 2 --set train.steps=2"
[[ $(< "$folder/calls") == "$expected" ]] || fail "dev train did: $(< "$folder/calls")"

"$folder/tree/dev" install "$folder/prefix" > "$folder/install" 2>&1
expected="bin/megascale
share/bash-completion/completions/megascale
share/man/man1/megascale.1
share/zsh/site-functions/_megascale"
[[ $(cd "$folder/prefix" && find . -type f -printf '%P\n' | sort) == "$expected" ]] ||
  fail "dev install left: $(find "$folder/prefix" -type f)"
[[ -x $folder/prefix/bin/megascale ]] || fail "the installed program cannot be executed"
[[ $(< "$folder/prefix/share/man/man1/megascale.1") == "made for man" ]] || fail "the manual page is another file"
line="put it on the PATH: export PATH=\"$folder/prefix/bin:\$PATH\""
grep -qxF "$line" "$folder/install" || fail "dev install does not say how to put it on the PATH: $(< "$folder/install")"
PATH=$folder/prefix/bin:$PATH "$folder/tree/dev" install "$folder/prefix" > "$folder/again" 2>&1
grep -q "put it on the PATH" "$folder/again" && fail "dev install asks for what the PATH has already"
# What one benchmark finds too slow is the result of all, after the others have run.
benchmarks=$(grep -o '"$bin/[a-z_/]*_benchmark"' "$root/dev" | tr -d '"' | sort -u)
for benchmark in $benchmarks; do
  program=$folder/out/${benchmark#'$bin/'}
  mkdir -p "$(dirname "$program")" "$program.runfiles/megascale"
  printf '#!/bin/sh\necho "ran %s" >> "$FOLDER/ran"\n' "$(basename "$program")" > "$program"
  chmod +x "$program"
done
export MEGASCALE_PEER_PYTHON=false
: > "$folder/ran"
"$folder/tree/dev" bench > "$folder/bench" 2>&1 || fail "dev bench fails though nothing is slow: $(< "$folder/bench")"
for slow in runtime/data/tokenizer/tokenizer_benchmark tests/bench/generation_benchmark; do
  : > "$folder/ran"
  echo 'exit 1' >> "$folder/out/$slow"
  "$folder/tree/dev" bench > "$folder/bench" 2>&1 && fail "dev bench succeeds though $slow fails"
  grep -q 'ran paced_benchmark' "$folder/ran" || fail "dev bench ends with $slow"
  sed -i '$d' "$folder/out/$slow"
done
echo "dev: train, install and bench do what they say"
