#!/usr/bin/env bash
# Runs under Debian's own Python: the study needs no other library.
set -euo pipefail
here=$(dirname "$0")
exec env PYTHONPATH="$here" PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/study_test.py" "$(readlink -f cli/megascale)"
