#!/usr/bin/env bash
# tools/tidy.sh with stand-ins for Bazel and clang-tidy: which sources it looks at together, and what it says if they do not compile.
set -euo pipefail
root=$(dirname "$(readlink -f "$0")")/../..
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
fail() {
  echo "$1"
  cat "$folder/calls" "$folder/said"
  exit 1
}

mkdir -p "$folder/tree/tools" "$folder/tree/runtime/a" "$folder/tree/runtime/b" "$folder/bin"
cp "$root/tools/tidy.sh" "$root/tools/joined_sources.py" "$folder/tree/tools"
cd "$folder/tree"
git init -q
touch .clang-tidy runtime/a/{one,two,two_test}.cc runtime/b/three.cc
export FOLDER=$folder XDG_CACHE_HOME=$folder/cache CUDA_HOME=$folder/none PATH=$folder/bin:$PATH
unset BAZEL_OUTPUT_BASE
printf '#!/bin/sh\n' > "$folder/bin/bazel"
# Writes down the sources that it is given, and finds what $FOLDER/finds says: LINE of sources -> text.
cat > "$folder/bin/clang-tidy" << 'STAND_IN'
#!/usr/bin/env bash
for argument in "$@"; do
  [[ $argument == -- ]] && break
  [[ $argument == *.cc ]] && source=$argument
done
[[ $source == /* ]] && source=$(cut -d'"' -f2 "$source" | paste -sd' ')
echo "$source" >> "$FOLDER/calls"
grep "^$source -> " "$FOLDER/finds" | sed 's/.* -> //' | grep . && exit 1
exit 0
STAND_IN
chmod +x "$folder/bin/"*
looks() {
  : > "$folder/calls"
  status=0
  tools/tidy.sh "$@" > "$folder/said" 2>&1 || status=$?
}

all="runtime/a/one.cc runtime/a/two.cc runtime/b/three.cc"
: > "$folder/finds"
looks
[[ $status == 0 && $(< "$folder/calls") == "$all" ]] || fail "does not look at all sources together"
looks
[[ $status == 0 && ! -s $folder/calls ]] || fail "looks again at what passed"
looks runtime/b/
[[ $status == 0 && $(< "$folder/calls") == runtime/b/three.cc ]] || fail "does not look at one folder"
looks runtime/none
[[ $status == 2 ]] && grep -q "runtime/none: no such folder" "$folder/said" || fail "takes a folder that does not exist"
looks ./runtime/a/
[[ $status == 0 && $(< "$folder/calls") == "runtime/a/one.cc runtime/a/two.cc" ]] || fail "does not look at ./runtime/a"

rm -r "$folder/cache"
echo "$all -> $PWD/runtime/a/two.cc:3:1: error: unused [misc-unused-using-decls]
runtime/a/two.cc -> $PWD/runtime/a/two.cc:3:1: error: unused [misc-unused-using-decls]" > "$folder/finds"
looks
[[ $status != 0 && $(< "$folder/calls") == "$all"$'\n'runtime/a/two.cc ]] || fail "does not look again at the source with a finding"
grep -q "two.cc:3:1: error: unused" "$folder/said" || fail "does not say what it finds"

rm -r "$folder/cache"
sed -i '$d' "$folder/finds"
looks
[[ $status == 0 ]] || fail "fails though a source has nothing alone"
grep -q "again at runtime/a/two.cc alone.*error: unused" "$folder/said" || fail "does not say what it finds only together"

rm -r "$folder/cache"
echo "$all -> $PWD/runtime/a/two.cc:3:1: error: redefinition of 'kMax' [clang-diagnostic-error]" > "$folder/finds"
looks
[[ $status == 0 && $(wc -l < "$folder/calls") == 4 ]] || fail "does not look one by one at sources that do not compile together"
grep -q "one by one.*redefinition of 'kMax'" "$folder/said" || fail "does not say why it looks one by one"
echo "lint: looks at sources together, and says if it cannot"
