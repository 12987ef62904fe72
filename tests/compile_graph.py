"""Compiles the one host file that knows vendors, and what stands on it, against torch's headers.

For ROCm, torch's CUDA headers go through torch.utils.hipify, as in torch's own build, and the file
is compiled against the HIP headers of the system. For CUDA it is compiled against those of the
toolkit. Nothing is linked or run. Each folder given is a torch/include of some other version; the
default is the torch of this Python. What is missing is said; with OPREPLAY_REQUIRE_COMPILERS=1 it
is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.hipify import hipify_python

ROOT = Path(__file__).resolve().parent.parent
NEUTRAL = ("csrc/device_api.cpp", "csrc/device_timing.cpp")
VENDOR = "csrc/graph.cpp"
CUDA_FLAGS = ["-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE"]  # a wheel for the CPU lacks that file
HIP_FLAGS = [*CUDA_FLAGS, "-DUSE_ROCM", "-D__HIP_PLATFORM_AMD__=1"]


def compile_one(name: str, source: str, includes: list[Path], flags: list[str]) -> bool:
    """Compiles one source without code; prints the outcome."""
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra"]
    command += ["-Wno-deprecated-declarations", f"-I{ROOT}/csrc", f"-I{ROOT}/csrc/include", *flags]
    for folder in includes:
        command += ["-isystem", str(folder)]
    done = subprocess.run([*command, str(ROOT / source)], capture_output=True, text=True)
    print(f"{'ok     ' if done.returncode == 0 else 'FAILED '} {name}  {source}")
    if done.returncode != 0:
        print(done.stderr)
    return done.returncode == 0


def hipified(include: Path, folder: Path) -> Path:
    """Makes the ROCm form of torch's CUDA headers; returns the folder to include."""
    sources = folder / "cuda"
    (sources / "aten/src/ATen/cuda").mkdir(parents=True)
    shutil.copytree(include / "c10/cuda", sources / "c10/cuda")
    shutil.copy(include / "ATen/cuda/CUDAGraph.h", sources / "aten/src/ATen/cuda")
    output = folder / "hip"
    hipify_python.hipify(
        project_directory=str(sources),
        output_directory=str(output),
        includes=[f"{sources}/*"],
        extensions=(".h", ".cuh"),
        out_of_place_only=True,
        show_progress=False,
    )
    shutil.copytree(output / "aten/src/ATen", output / "ATen")
    return output


def cuda_includes() -> list[Path]:
    """Folders with the headers of a CUDA toolkit."""
    roots = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), *Path("/usr/local").glob("cuda-*")]
    found = [Path(root) / "include" for root in roots]
    return [folder for folder in found if (folder / "cuda_runtime.h").exists()][:1]


def main(includes: list[Path]) -> int:
    """Compiles everything that can be compiled here; returns the exit status."""
    fine, missing = True, False
    cuda = cuda_includes()
    for include in includes or [Path(torch.__file__).parent / "include"]:
        for source in NEUTRAL:
            fine &= compile_one(f"neutral  {include}", source, [include], [])
        if cuda:
            fine &= compile_one(f"CUDA     {include}", VENDOR, [include, *cuda], CUDA_FLAGS)
        if Path("/usr/include/hip/hip_runtime.h").exists():
            with tempfile.TemporaryDirectory() as folder:
                hip = hipified(include, Path(folder))
                fine &= compile_one(f"ROCm     {include}", VENDOR, [hip, include], HIP_FLAGS)
    if not cuda:
        print(
            "MISSING the headers of a CUDA toolkit (CUDA_HOME): graph.cpp was not compiled for it"
        )
        missing = True
    if not Path("/usr/include/hip/hip_runtime.h").exists():
        print(
            "MISSING the headers of HIP (apt-get install hipcc): graph.cpp was not compiled for it"
        )
        missing = True
    return int(not fine or (missing and os.environ.get("OPREPLAY_REQUIRE_COMPILERS") == "1"))


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
