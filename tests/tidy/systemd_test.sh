#!/usr/bin/env bash
# The units in docs/systemd are accepted by systemd, name only options that the program has, and never give up.
set -euo pipefail
root=$(dirname "$(readlink -f "$0")")/../..
units=$root/docs/systemd
for unit in driver agent; do
  for option in $(grep -o -- '--[a-z-]*' <(grep -v '^#' "$units/megascale-$unit.service") | sort -u); do
    grep -q "\"$option\"" "$root/cli/commands/${unit}_command.cc" "$root/cli/connection/connection.cc" ||
      { echo "$units/megascale-$unit.service: megascale $unit has no $option"; exit 1; }
  done
  # Without StartLimitIntervalSec=0 systemd leaves a unit alone that has failed five times, as an agent does within half
  # a minute while its driver has another version.
  for line in StartLimitIntervalSec=0 Restart=always; do
    grep -qx "$line" "$units/megascale-$unit.service" ||
      { echo "$units/megascale-$unit.service: has no line $line, so systemd gives up"; exit 1; }
  done
done
if ! command -v systemd-analyze > /dev/null; then
  echo "SKIPPED: systemd-analyze is not installed, so the units were not verified"
  exit 0
fi
copies=$(mktemp -d)
trap 'rm -r "$copies"' EXIT
for unit in driver agent; do
  # The program need not be installed where the unit expects it.
  sed 's#/usr/bin/megascale#/bin/true#' "$units/megascale-$unit.service" > "$copies/megascale-$unit.service"
done
systemd-analyze verify "$copies"/*.service
echo "systemd: 2 units are in order"
