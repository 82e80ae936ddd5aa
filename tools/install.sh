#!/usr/bin/env bash
# Installs the Debian packages that Megascale is built from, tested with and trained on. Does nothing, fast,
# when all of them are there. Usage: tools/install.sh [--lint] [--bench] [--libfuzzer]
#   --lint   what ./dev lint and ./dev check need too
#   --bench  libraries that ./dev bench measures beside ours
#   --libfuzzer  what ./dev fuzz --libfuzzer builds with
set -euo pipefail

build_packages=(
  bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-skylib g++ pkg-config
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libcaf-dev librocksdb-dev
  libhiredis-dev redis-server libabsl-dev libgtest-dev libgmock-dev libdnnl-dev libhwy-dev libspdlog-dev
  libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libssl-dev libxxhash-dev
  libutf8proc-dev zlib1g-dev libzstd-dev libmicrohttpd-dev libgnutls28-dev libunwind-dev
  prometheus-cpp-dev libjs-dygraphs
  zsh groff-base man-db chromium prometheus
  fortunes xz-utils git ca-certificates python3 python3-grpcio python3-protobuf
  systemd iproute2 busybox-static slurmctld slurmd slurm-client munge
)
lint_packages=(clang-format clang-tidy)

bench_packages=(libgloo-dev)
libfuzzer_packages=(clang libclang-rt-14-dev)

packages=("${build_packages[@]}")
for option in "$@"; do
  case "$option" in
    --lint) packages+=("${lint_packages[@]}") ;;
    --bench) packages+=("${bench_packages[@]}") ;;
    --libfuzzer) packages+=("${libfuzzer_packages[@]}") ;;
    *)
      echo "megascale: tools/install.sh: unknown option $option; there are --lint, --bench and --libfuzzer" >&2
      exit 2
      ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  if [[ "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" != "install ok installed" ]]; then
    missing+=("$package")
  fi
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || {
    echo "megascale: missing packages: ${missing[*]}" >&2
    echo "  install them as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi

echo "megascale: installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp /tmp/megascale-install-XXXXXX)
install_missing() {
  "${as_root[@]}" apt-get update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}"
}
# On a terminal a line that counts; the whole output goes to the log.
show_progress() {
  local terminal=0
  [[ -t 1 ]] && terminal=1
  awk -v terminal="$terminal" '
    /^Get:|^Unpacking|^Setting up/ { count[$1 ~ /^Get/ ? "fetched" : $1 == "Unpacking" ? "unpacked" : "set up"]++ }
    terminal { printf "\r  fetched %d, unpacked %d, set up %d", count["fetched"], count["unpacked"], count["set up"]; fflush() }
    END { if (terminal) print "" }'
}
if ! install_missing 2>&1 | tee "$log" | show_progress; then
  tail -n 20 "$log" >&2
  echo "megascale: the installation failed; the whole log is $log" >&2
  exit 1
fi
rm -f "$log"
