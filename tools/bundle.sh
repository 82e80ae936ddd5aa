#!/usr/bin/env bash
# Packs programs with the shared libraries they need, for any x86-64 Linux with glibc 2.36 or newer.
# Usage: tools/bundle.sh OUT.tar.gz NAME PROGRAM [FILE…]
#   OUT.tar.gz  holds the folder NAME: NAME/bin with the programs, NAME/lib with the libraries, NAME with the files
#   PROGRAM     several are separated by commas; each was linked with the run path $ORIGIN/../lib as DT_RPATH, which is
#               searched for the libraries' own libraries, too (DT_RUNPATH is not)
# glibc stays that of the machine, and so do CUDA's libraries, which the program opens by itself. With BUNDLE_MIB_MAX set
# a larger archive is an error.
set -euo pipefail

[[ $# -ge 3 ]] || {
  echo "megascale: tools/bundle.sh: expected OUT.tar.gz NAME PROGRAM [FILE…]" >&2
  exit 2
}
out=$(realpath -m "$1") name=$2 programs=$3
shift 3

folder=$(mktemp -d /tmp/megascale-bundle-XXXXXX)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/$name/bin" "$folder/$name/lib"
IFS=, read -ra list <<<"$programs"
for program in "${list[@]}"; do
  command install -m 755 "$program" "$folder/$name/bin/"
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|ld-linux-x86-64)\.so' |
    xargs -r -I{} cp -Lu {} "$folder/$name/lib/"
done
strip --strip-debug "$folder/$name"/bin/* 
for file in "$@"; do cp -rL "$file" "$folder/$name/"; done

# Every library must now come from the bundle.
for program in "$folder/$name"/bin/*; do
  outside=$(env -u LD_LIBRARY_PATH ldd "$program" | awk '$2 == "=>" { print $1, $3 }' | grep -v " $folder/$name/" |
    grep -vE '^(libc|libm|libdl|libpthread|librt|libresolv)\.so' || true)
  if [[ -n $outside ]]; then
    echo "megascale: $(basename "$program") does not find these in its bundle; was it linked with \$ORIGIN/../lib?" >&2
    echo "$outside" >&2
    exit 1
  fi
done
tar -C "$folder" -czf "$out" "$name"
if [[ -n ${BUNDLE_MIB_MAX:-} ]] && (($(stat -c %s "$out") > BUNDLE_MIB_MAX << 20)); then
  echo "megascale: $out has $(du -h "$out" | cut -f1); expected at most $BUNDLE_MIB_MAX MiB" >&2
  exit 1
fi
echo "$out: $(du -h "$out" | cut -f1), $(ls "$folder/$name/lib" | wc -l) libraries"
