#!/usr/bin/env bash
# Runs under Debian's own Python and Chromium, which tools/install.sh installs.
set -euo pipefail
here=$(dirname "$0")
exec env PYTHONPATH="$here" PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/page_browser_test.py" "$here/page_demo"
