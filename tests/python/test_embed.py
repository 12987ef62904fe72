"""The library in other programs: the example against a wheel and a CMake install, the run tool."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kineto_events import SHARED_TRACES, TINY_TRACE

from opreplay.bundle import write_bundle
from opreplay.options import ReplayOptions
from opreplay.replay import make_plan
from opreplay.trace import Selection

ROOT = Path(__file__).resolve().parents[2]
HERE = ReplayOptions(device="cpu", isolation=False)
QWEN = SHARED_TRACES / "tracelens__qwen1.5-0.5b-h100.json.gz"
OPS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::silu", "aten::embedding")


def cmake_version():
    if shutil.which("cmake") is None:
        return (0, 0)
    said = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in re.search(r"(\d+)\.(\d+)", said).groups())


pytestmark = pytest.mark.skipif(cmake_version() < (3, 26), reason="no CMake 3.26 or newer on PATH")


def run(*command, expect=0, **options):
    # A wheel finds torch in the folder beside it; here torch may lie in another environment's.
    libraries = f"{Path(torch.__file__).parent / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = dict(os.environ, LD_LIBRARY_PATH=libraries)
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True, text=True, check=False, env=environment, **options,
    )  # fmt: skip
    assert done.returncode == expect, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def from_wheel():
    """The CMake package of this installation."""
    return Path(run(sys.executable, "-m", "opreplay", "--cmake-dir").stdout.strip())


def from_cmake(folder):
    """The CMake package of a plain build without Python, installed into a folder."""
    build = ROOT / "build" / "tests"
    if not (build / "CMakeCache.txt").exists():  # `make test` has made it before
        build = ROOT / "build" / "plain"
        run(
            "cmake", "-S", ROOT, "-B", build, "-DOPREPLAY_PYTHON=OFF", "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
        )  # fmt: skip
    run("cmake", "--build", build, "-j2", "--target", "opreplay", "opreplay-run")
    run("cmake", "--install", build, "--prefix", folder)
    return next(folder.glob("lib*/cmake/opreplay"))


@pytest.fixture(scope="module", params=["wheel", "cmake --install"])
def package(request, tmp_path_factory):
    if request.param == "wheel":
        return from_wheel()
    return from_cmake(tmp_path_factory.mktemp("prefix"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle and the plan that it was made of."""
    path = tmp_path_factory.mktemp("bundle") / "x.bundle.pt"
    trace, selection = (QWEN, Selection(ops=OPS)) if QWEN.exists() else (TINY_TRACE, Selection())
    plan = make_plan(trace, selection, options=HERE)
    assert write_bundle(plan.calls, path, options=HERE).written == len(plan.calls) > 3
    return path, plan


def run_tool(package):
    """Where `opreplay-run` lies: beside the library."""
    prefix = package.parents[2]
    return prefix / "bin" / "opreplay-run"


def configure(package, source, build, *options, expect=0):
    return run(
        "cmake", "-S", source, "-B", build, f"-Dopreplay_DIR={package}", *options, expect=expect,
    )  # fmt: skip


def test_the_example_builds_against_a_package_and_replays_a_bundle(package, bundle, tmp_path):
    path, plan = bundle
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    configure(package, ROOT / "examples" / "embed", tmp_path, prefix, "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", tmp_path, "-j2")
    lines = [line.split() for line in run(tmp_path / "embed", path).stdout.splitlines()]
    assert [line[:2] for line in lines] == [[call.signature, call.op] for call in plan.calls]
    assert all(float(line[2]) > 0 for line in lines)
    counted = run(tmp_path / "counters", path).stdout.splitlines()
    assert re.fullmatch(
        rf"{plan.calls[0].op}: \d+ (instructions a call|calls timed)", counted[-1]
    ), counted
    assert len(counted) == 1 or counted[0].startswith("no counters: perf_event_open: ")
    failed = run(tmp_path / "embed", __file__, expect=1)
    assert failed.stderr.startswith(f"embed: {__file__}: is no opreplay bundle")


def test_the_run_tool_times_the_calls_of_a_bundle(package, bundle, tmp_path):
    path, plan = bundle
    out = tmp_path / "out.json"
    shown = run(run_tool(package), path, "--time", "0.01", "--json", out).stdout.splitlines()
    assert [line.split()[1] for line in shown] == [call.op for call in plan.calls]
    results = json.loads(out.read_text())
    assert results["format"] == "opreplay-run/1"
    assert [one["signature"] for one in results["calls"]] == [c.signature for c in plan.calls]
    assert all(one["timing"]["median_ns"] > 0 for one in results["calls"])


TOOL_RUNS = {
    "once": (["--call", "1", "--mode", "once"], 0, r"   1  aten::\S+ +ok\n"),
    "iterations": (["--call", "0", "--iterations", "3"], 0, r"   0  aten::\S+ +ok\n"),
    "graph": (["--mode", "graph"], 2, r"opreplay-run: .*no GPU part for cpu.*OPREPLAY_GPU"),
    "no call": (["--call", "999"], 2, r"opreplay-run: there is no call 999, the bundle has \d+"),
    "no option": (["--fast", "1"], 2, "opreplay-run: there is no option --fast"),
    "no number": (["--call", "x"], 2, "opreplay-run: --call takes a number from 0, got 'x'"),
    "no library": (["--library", "/no/such.so"], 2, "cannot load the library: /no/such.so"),
}


@pytest.mark.parametrize(("words", "status", "text"), TOOL_RUNS.values(), ids=TOOL_RUNS)
def test_the_run_tool_does_what_it_is_told_or_says_why_not(words, status, text, bundle):
    done = run(run_tool(from_wheel()), bundle[0], *words, expect=status)
    assert re.search(text, done.stdout + done.stderr), done


def test_a_package_for_another_torch_is_refused_in_one_sentence(tmp_path):
    fake = tmp_path / "TorchConfig.cmake"
    fake.write_text("set(Torch_VERSION 2.1.0)\nset(Torch_FOUND TRUE)\n")
    version = tmp_path / "TorchConfigVersion.cmake"
    version.write_text("set(PACKAGE_VERSION 2.1.0)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
    done = configure(
        from_wheel(), ROOT / "examples" / "embed", tmp_path / "build", f"-DTorch_DIR={tmp_path}",
        expect=1,
    )  # fmt: skip
    minor = ".".join(torch.__version__.split(".")[:2])
    said = " ".join(done.stderr.split())
    assert f"opreplay was built for torch {minor}, found 2.1.0: rebuild opreplay" in said


def test_library_and_tool_need_no_python(package):
    libraries = [*package.parents[1].glob("libopreplay.so*"), run_tool(package)]
    assert len(libraries) >= 2
    for library in libraries:
        needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "--dynamic", library).stdout)
        assert any(name.startswith("libtorch") for name in needed)
        assert not [name for name in needed if "python" in name]


def test_snippets_of_the_documentation_compile(tmp_path):
    page = (ROOT / "docs" / "embed-in-cpp.md").read_text()
    blocks = re.findall(r"^```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).splitlines()
    includes = [line for line in lines if line.startswith("#include")]
    body = [line for line in lines if not line.startswith("#include")]
    source = tmp_path / "snippets.cpp"
    source.write_text("\n".join([*includes, "void snippets() {", *body, "}", ""]))
    torch_headers = Path(torch.__file__).parent / "include"
    own_headers = from_wheel().parents[2] / "include"
    run(
        *("c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wno-unused-variable", source),
        *(f"-I{own_headers}", "-isystem", torch_headers),
        *("-isystem", torch_headers / "torch/csrc/api/include"),
    )
    assert len(blocks) >= 4
