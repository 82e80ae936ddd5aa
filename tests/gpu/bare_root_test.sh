#!/usr/bin/env bash
# The bundle, unpacked and run where there is nothing but glibc, bash and BusyBox. Its programs compute on the emulator.
set -euo pipefail
skip() { echo "SKIPPED: $*" && exit 0; }
busybox=$(command -v busybox) || skip "busybox is not installed"
unshare --mount mount --bind /proc /proc 2>/dev/null || skip "this user may not mount"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "bare_root_test: $*" >&2
  cat "$folder/table" >&2
  tar -xzOf "$folder/root/out/gpu-check.tar.gz" >&2
  exit 1
}

root=$folder/root
mkdir -p "$root"/{bin,usr,dev,proc,tmp}
ln -s /bin "$root/usr/bin"
cp "$busybox" "$root/bin/busybox"
for applet in $("$busybox" --list | grep -vx busybox); do ln -s busybox "$root/bin/$applet"; done
cp --remove-destination "$(command -v bash)" "$root/bin/bash"
ldd "$(command -v bash)" tests/e2e/cuda_program |
  grep -oE '/[^ ]+/(lib(c|m|dl|pthread|rt|resolv|tinfo)|ld-linux-x86-64)\.so[^ ]*' | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"
done

mkdir "$folder/programs"
cp tests/e2e/cuda_program "$folder/programs/megascale"
cp tests/gpu/fragments_test "$folder/programs/gpu_tests"
cp tests/gpu/emulated_gpu_benchmark "$folder/programs/gpu_benchmark"
programs=$folder/programs
tests/gpu/make_bundle.sh "$root/megascale-gpu.tar.gz" "$programs/megascale,$programs/gpu_tests,$programs/gpu_benchmark" \
  README.md tests/gpu/gpu-check.sh
status=0
unshare --mount --propagation private bash -c '
  mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" /bin/env -i PATH=/bin bash -c "
    tar xzf megascale-gpu.tar.gz &&
    megascale-gpu/gpu-check.sh --small --budget 800 --out out --parts machine,fragments,bench,train,kill"' "$root" \
  >"$folder/table" 2>&1 || status=$?

# Without CUDA's libraries only the part that opens them fails.
row() { grep -Eq "^$1 +$2 +[0-9]+  $3" "$folder/table" || fail "the table has no row: $1 $2 $3"; }
row machine FAILED 'nvidia-smi shows no GPU; CUDA runtime: absent: .*; cuBLASLt: absent: .*; NCCL: absent: .*libnccl'
row fragments passed '3 of 3 tests passed$'
row bench passed '[1-9][0-9]* rates are in bench.json$'
row train passed '[1-9][0-9]* tokens/s in 12 of 12 steps'
# Two runs by one table of products, whose times differ on the emulator, too; the second one loses a worker.
row kill passed 'killed after step 8 of 24; the same bits$'
[[ $status -eq 1 ]] || fail "gpu-check.sh ended with $status"
grep -q '"part": "kill", "result": "passed"' "$root/out/results.json" || fail "results.json"
files=$(tar -tzf "$root/out/gpu-check.tar.gz")
for file in results.json kill.log bench.json train/jobs/.*/metrics.jsonl disturbed/jobs/gpu-check/metrics.jsonl \
  calm/jobs/gpu-check/checkpoints/products.json; do
  grep -qx "gpu-check/$file" <<<"$files" || fail "the archive lacks $file"
done
