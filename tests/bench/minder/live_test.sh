#!/usr/bin/env bash
# Four agents, one of which becomes slow: `megascale minder watch` names it. About ten minutes.
set -euo pipefail
exec /usr/bin/python3 "$(dirname "$0")/live.py" --program "$(readlink -f cli/megascale)" --calm 300
