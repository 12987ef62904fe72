#!/usr/bin/env bash
# Compiles every kernel source with each GPU compiler that is there: nvcc for sm_80 and sm_90, hipcc for
# gfx90a, clang for gfx942 (device side, to assembly). Says which compilers are missing; with
# OPREPLAY_REQUIRE_COMPILERS=1 a missing one is a failure.
set -u -o pipefail
cd "$(dirname "$0")/.."

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
missing=0
kernels=(csrc/kernels/*.cu)

find_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda-*/bin/nvcc nvcc; do
    [ -n "$candidate" ] && command -v "$candidate" && return
  done
}

# compile NAME COMMAND... : runs the command on every kernel source.
compile() {
  local name=$1 source
  shift
  for source in "${kernels[@]}"; do
    if "$@" -std=c++17 -Icsrc -o "$out/kernel.out" "$source" > "$out/log" 2>&1; then
      echo "ok      $name  $source"
    else
      echo "FAILED  $name  $source"
      cat "$out/log"
      failed=1
    fi
  done
}

say_missing() {
  echo "MISSING $1: its kernels were not compiled"
  missing=1
}

nvcc=$(find_nvcc)
if [ -n "$nvcc" ]; then
  compile "nvcc sm_80+sm_90" "$nvcc" -gencode arch=compute_80,code=sm_80 \
    -gencode arch=compute_90,code=sm_90 --fmad=false -Werror all-warnings -Xcompiler -fPIC -c
else
  say_missing "nvcc"
fi

if command -v hipcc > /dev/null; then
  HIP_PLATFORM=amd compile "hipcc gfx90a" hipcc --offload-arch=gfx90a -x hip -ffp-contract=off -fPIC -c
else
  say_missing "hipcc (apt-get install hipcc)"
fi

if command -v clang-19 > /dev/null; then
  compile "clang-19 gfx942" clang-19 -x hip --offload-arch=gfx942 -nogpulib --rocm-path=/usr \
    --hip-version=5.2.0 --cuda-device-only -ffp-contract=off -S
else
  say_missing "clang-19"
fi

[ "$failed" = 0 ] && { [ "$missing" = 0 ] || [ "${OPREPLAY_REQUIRE_COMPILERS:-0}" != 1 ]; }
