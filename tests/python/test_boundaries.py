"""The rules of the house that can be read off the files: who may name what."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import opreplay
from opreplay import _C, _scan

PACKAGE = Path(opreplay.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"


def python_files(*but):
    """Source files of the package, those under the named rooms left out."""
    for path in sorted((ROOT / "python" / "opreplay").rglob("*.py")):
        if not any(part in path.relative_to(ROOT / "python" / "opreplay").parts for part in but):
            yield path


def offenders(pattern, files):
    found = re.compile(pattern)
    return [str(path.relative_to(ROOT)) for path in files if found.search(path.read_text())]


def test_trace_keys_live_in_the_trace_room():
    keys = (
        r"""["'](?:Input [Dd]ims|Input type|Concrete Inputs|Input Strides|cpu_op|traceEvents)["']"""
    )
    assert offenders(keys, python_files("trace")) == []


def test_profiler_type_names_live_in_trace_and_resolve():
    assert offenders(r"c10::(?:BFloat16|Half)", python_files("trace", "resolve")) == []


def test_clocks_live_in_timing_isolation_and_the_tables_command():
    allowed = ("timing.py", "isolation.py", "table_command.py")
    clocks = r"\bperf_counter\b|\btime\.time\(|\bmonotonic\("
    files = (p for p in python_files("report") if p.name not in allowed)
    assert offenders(clocks, files) == []


def test_torch_ops_are_reached_through_resolve_alone():
    files = (p for p in python_files("resolve", "recipes") if p.name != "demo.py")
    assert offenders(r"\btorch\.ops\b", (p for p in files if "tables" not in p.parts)) == []


def test_vendors_are_named_in_one_kernel_header_and_the_graph():
    vendor = r"#\s*if.*(?:__HIP|USE_ROCM|__CUDACC__|USE_CUDA)|#include\s*[<\"](?:cuda|hip/)"
    files = [p for p in CSRC.rglob("*") if p.suffix in (".h", ".cpp", ".cu")]
    assert set(offenders(vendor, files)) <= {"csrc/kernels/gpu.h", "csrc/graph.cpp"}


def test_kernels_include_no_torch_header():
    files = [p for p in (CSRC / "kernels").iterdir() if p.suffix in (".h", ".cpp", ".cu")]
    assert files
    assert offenders(r"#include\s*[<\"](?:ATen|c10|torch)/", files) == []


def test_public_headers_name_no_vendor_and_no_python():
    files = sorted((CSRC / "include").rglob("*.h"))
    assert offenders(r"#include\s*[<\"](?:cuda|hip|Python|pybind11|torch/csrc)", files) == []


@pytest.mark.parametrize("module", [_C, _scan], ids=["_C", "_scan"])
def test_stub_names_what_the_extension_has(module):
    name = module.__name__.rpartition(".")[2]
    tree = ast.parse((ROOT / "python" / "opreplay" / f"{name}.pyi").read_text())
    stub = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            members = [m for m in node.body if isinstance(m, ast.FunctionDef | ast.AnnAssign)]
            stub[node.name] = {
                m.name if isinstance(m, ast.FunctionDef) else m.target.id for m in members
            }
        elif isinstance(node, ast.FunctionDef):
            stub[node.name] = None
        elif isinstance(node, ast.AnnAssign):
            stub[node.target.id] = None
    real = {n: getattr(module, n) for n in vars(module) if not n.startswith("_")}
    assert set(stub) == set(real)
    for class_name, members in stub.items():
        if members is not None:
            own = {m for m in vars(real[class_name]) if not m.startswith("_") or m == "__len__"}
            assert members - {"__init__"} == own, class_name


def test_library_has_no_python_symbol():
    libraries = list(PACKAGE.rglob("libopreplay.so*"))
    if not libraries:  # an editable install keeps it beside the extension
        libraries = list(Path(_C.__file__).parent.rglob("libopreplay.so*"))
    assert libraries
    names = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", str(libraries[0])],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert re.search(r"\bPy[A-Z_]\w+|\bpybind11", names) is None


def test_reading_traces_loads_no_torch():
    code = "import sys, opreplay, opreplay.report.inspect; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
