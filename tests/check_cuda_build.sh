#!/usr/bin/env bash
# Builds the CUDA variant against a CUDA torch, imports it and runs the CPU's tests with it; needs
# nvcc and that torch, no GPU. TORCH_CUDA names the torch; CUDA_PYTHON=/path/to/python gives an
# environment that has one. What is missing is said; with OPREPLAY_REQUIRE_COMPILERS=1 it is a failure.
set -eu -o pipefail
cd "$(dirname "$0")/.."
torch=${TORCH_CUDA:-torch==2.14.1}

missing() {
  echo "MISSING $1: the CUDA variant was not built"
  [ "${OPREPLAY_REQUIRE_COMPILERS:-0}" != 1 ]
  exit
}

nvcc=
for candidate in "${CUDACXX:-}" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda-*/bin/nvcc; do
  [ -z "$nvcc" ] && [ -n "$candidate" ] && [ -x "$candidate" ] && nvcc=$candidate
done
[ -n "$nvcc" ] || missing "nvcc (set CUDACXX to the compiler itself: torch cannot use a wrapper)"
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")

python=${CUDA_PYTHON:-}
if [ -z "$python" ]; then
  python=build/cuda-env/bin/python
  [ -x "$python" ] || python3 -m venv build/cuda-env
  "$python" -c "import torch" 2> /dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check "$torch" || missing "$torch"
fi
"$python" -c "import torch, sys; sys.exit(torch.version.cuda is None)" || missing "a torch for CUDA"
"$python" -m pip install --quiet --disable-pip-version-check "scikit-build-core>=0.11" "pybind11>=3.0" \
  "cmake>=3.26" ninja "numpy>=1.26" "orjson>=3.9" "rich>=13" pytest hypothesis jsonschema

# Headers that the toolkit lacks and torch's include, such as cusparse.h, come with torch's own wheels.
headers=$("$python" -c "
import pathlib, nvidia
print(*sorted(p for root in nvidia.__path__ for p in pathlib.Path(root).glob('cu1?/include')), sep=':')")
PATH="$(cd "$(dirname "$python")" && pwd):$PATH" CUDACXX="$nvcc" CPATH="$headers" \
  TORCH_CUDA_ARCH_LIST="${TORCH_CUDA_ARCH_LIST:-9.0}" \
  "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --force-reinstall --config-settings build-dir=build/cuda \
  --config-settings cmake.define.OPREPLAY_GPU=CUDA \
  --config-settings cmake.define.OPREPLAY_WERROR=ON \
  --config-settings cmake.define.CUDA_TOOLKIT_ROOT_DIR="$toolkit" .

"$python" - <<'PYTHON'
import torch
from opreplay import _C
assert _C.has_device_api("cuda"), "the extension was built without its GPU part"
print("built for torch", _C.build_torch_version, "with GPU part; imported with torch", torch.__version__)
PYTHON
"$python" -m pytest -q -p no:cacheprovider -m "not gpu" tests/python/test_timing.py \
  tests/python/test_random.py tests/python/test_inputs.py tests/python/test_isolation.py
