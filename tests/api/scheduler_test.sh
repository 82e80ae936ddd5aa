#!/usr/bin/env bash
# Runs under Debian's own Python, for which tools/install.sh installs gRPC.
set -euo pipefail
here=$(dirname "$0")
exec env PYTHONPATH="$here" PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/scheduler_test.py" \
  "$(readlink -f cli/megascale)" docs/api.md
