#!/usr/bin/env bash
# Finds the source tree behind the runfiles' symbolic link.
set -euo pipefail
exec python3 "$(readlink -f "$(dirname "$0")/tidy_test.py")"
