#!/usr/bin/env bash
# The formatter keeps the lines of examples and rules in comments, however long they are; it still wraps prose.
set -euo pipefail
if ! command -v clang-format > /dev/null; then
  echo "SKIPPED: clang-format is not installed"
  exit 0
fi
root=$(dirname "$(readlink -f "$0")")/../..
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cp "$root/.clang-format" "$folder"
cat > "$folder/sample.h" << 'SAMPLE'
// Connects the ranks of a job:
//
//   auto fabric = Fabric::Create(options, groups).value();                 // attaches to the region of memory
//   RETURN_IF_ERROR(fabric->Connect());                                    // meets members on other machines
//
// --- worker -> device ------------------------------------------------------------------------------------
struct Fabric {
  // Prose of a member:
  //   mean = sum / n;        a line of an example in a comment of a member, which is longer than a line may be
  //   next();
  int member;
};
SAMPLE
clang-format "$folder/sample.h" > "$folder/formatted.h"
diff "$folder/sample.h" "$folder/formatted.h" || { echo "clang-format changed an example: see CommentPragmas in .clang-format"; exit 1; }
printf '// %s\nint member;\n' "$(seq -s ' ' 60)" > "$folder/prose.h"
[[ $(clang-format "$folder/prose.h" | wc -l) == 3 ]] || { echo "clang-format does not wrap prose"; exit 1; }
echo "format: examples keep their lines"
