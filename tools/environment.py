"""Makes ready the environment that `make` works in, and prints the path of its Python last.

The environment is the one of PYTHON=, else that of VIRTUAL_ENV or CONDA_PREFIX where it has torch,
else .venv here. One that is not ours is used as it is: only what is missing is added, and a line
says so. Runs with the standard library alone, on any Python from 3.10.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ["scikit-build-core>=0.11", "pybind11>=3.0"]
RUN = ["numpy>=1.26", "orjson>=3.9", "rich>=13"]
CMAKE_AT_LEAST = (3, 26)


def say(text: str) -> None:
    """Prints to stderr: stdout carries the result."""
    print(f"opreplay: {text}", file=sys.stderr)


def has(python: str, package: str) -> bool:
    """Whether an environment holds a package, whatever its version."""
    name = re.split(r"[<>=!~\[]", package)[0]
    code = f"import importlib.metadata as m; m.version({name!r})"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def chosen_python(torch: str) -> str:
    """The Python to use; makes .venv and installs torch there if no other is chosen."""
    if os.environ.get("PYTHON"):
        python = shutil.which(os.environ["PYTHON"])
        if python is None:
            sys.exit(f"opreplay: PYTHON={os.environ['PYTHON']} is not an executable")
        if not has(python, "torch"):
            sys.exit(
                f"opreplay: {python} has no torch: run '{python} -m pip install {torch}' first"
            )
        return python
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        python = str(Path(os.environ.get(variable, "")) / "bin" / "python")
        if os.environ.get(variable) and Path(python).exists() and has(python, "torch"):
            say(f"using {python} ({variable}) as it is")
            return python
    python = str(ROOT / ".venv" / "bin" / "python")
    if not Path(python).exists():
        say("making .venv")
        subprocess.run([sys.executable, "-m", "venv", str(ROOT / ".venv")], check=True)
    if not has(python, "torch"):
        install(python, [torch])
    return python


def install(python: str, packages: list[str]) -> None:
    """Installs packages, and says which."""
    say(f"adding {' '.join(packages)} to {Path(python).parent.parent}")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True, stdout=sys.stderr)


def cmake_is_new() -> bool:
    """Whether the cmake on PATH is new enough for C++20 with CUDA."""
    if shutil.which("cmake") is None:
        return False
    text = subprocess.run(["cmake", "--version"], capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", text)
    return found is not None and (int(found[1]), int(found[2])) >= CMAKE_AT_LEAST


def main(torch: str, extras: list[str]) -> None:
    """Installs what is missing, builds the package in place, prints the Python."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        sys.exit(
            f"opreplay: there is no C++ compiler {compiler}: install one (apt-get install g++), "
            "or set CXX"
        )
    python = chosen_python(torch)
    wanted = [*BUILD, *RUN, *extras]
    if not cmake_is_new():
        wanted.append("cmake>=3.26")
    if shutil.which("ninja") is None:
        wanted.append("ninja")
    missing = [package for package in wanted if not has(python, package)]
    if missing:
        install(python, missing)
    say(f"building with the torch of {python}")
    build = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    build += ["--no-build-isolation", "--no-deps", "--editable", str(ROOT)]
    environment = dict(os.environ, PATH=f"{Path(python).parent}:{os.environ['PATH']}")
    if subprocess.run(build, stdout=sys.stderr, env=environment).returncode != 0:
        sys.exit("opreplay: the build failed; the first error above says why")
    print(python)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
