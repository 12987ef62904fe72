"""Reproducers: one file that runs a planned call without opreplay, in Python and in C++."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kineto_events import TINY_TRACE
from made_calls import GIB, call, f32, i64, make, mask, tensor

from opreplay.cli import main
from opreplay.options import ReplayOptions
from opreplay.plan import PlannedCall, planned
from opreplay.plan_file import write_plan
from opreplay.recipes import Pools, recipe, remove_recipe, run_operator
from opreplay.replay import make_plan
from opreplay.resolve.call import ResolvedCall, TensorSpec, TorchValue
from opreplay.script import make_script
from opreplay.trace import Selection
from opreplay.trace.call import RecordedTimes

HERE = ReplayOptions(isolation=False, device="cpu", memory_budget=GIB, seed=7)
TORCH = Path(torch.__file__).parent
NAMED = 'kernel "A"\\B?\n\x00é'


def as_planned(resolved: ResolvedCall) -> PlannedCall:
    times = RecordedTimes(1.0, 1.0, 1.0)
    return PlannedCall(
        resolved.op, "signature", "step of a customer", "customer::outer", True, 1, times, None,
        (("customer_kernel", 1),), False, None, planned(resolved),
    )  # fmt: skip


def of(op, overload="", **values):
    return call(op, overload, **values)


CALLS = {
    "a product": of("aten::mm", self=f32(3, 4), mat2=f32(4, 5)),
    "strides and bfloat16": of(
        "aten::mm", self=tensor(torch.bfloat16, 3, 4, strides=(0, 7)),
        mat2=tensor(torch.bfloat16, 4, 4, strides=(1, 9)),
    ),
    "shared storage": of(
        "aten::mul", "Tensor", self=TensorSpec(torch.float32, (4,), (2,), 9, (0, 0)),
        other=TensorSpec(torch.float32, (4,), (2,), 9, (0, 1)),
    ),
    "indices": of("aten::embedding", weight=f32(10, 4), indices=i64(2, 3)),
    "distinct indices": of(
        "aten::index_copy", self=f32(9, 2), dim=0, index=i64(5), source=f32(5, 2)
    ),
    "a long list of integers": of(
        "aten::index_copy", self=f32(900, 2), dim=0, index=i64(500), source=f32(500, 2)
    ),
    "a list with None, a mask among it": of(
        "aten::index_put_", self=f32(4, 6), indices=(None, mask(6)), values=f32(1)
    ),
    "a list of tensors": of("aten::cat", tensors=(f32(2, 3), f32(1, 3)), dim=0),
    "scalars": of(
        "aten::_foreach_add", "ScalarList", self=(f32(2), f32(3)), scalars=(1.5, -math.inf)
    ),
    "probabilities": of("aten::bernoulli", self=f32(9)),
    "one index": of("aten::index_copy", self=f32(1, 2), dim=0, index=i64(1), source=f32(1, 2)),
    "a number for a tensor": of("aten::add", "Tensor", self=f32(3), other=2**40, alpha=3),
    "complex": of(
        "aten::add", "Tensor", self=tensor(torch.complex64, 3), other=1 + 2j, alpha=2 - 1j
    ),
    "a string": of("aten::gelu", self=f32(8), approximate="tanh"),
    "bools and floats in lists": of(
        "aten::convolution_backward", grad_output=f32(1, 2, 3, 3), input=f32(1, 2, 5, 5),
        weight=f32(2, 2, 3, 3), bias_sizes=(2,), stride=(1, 1), padding=(0, 0), dilation=(1, 1),
        transposed=False, output_padding=(0, 0), groups=1, output_mask=(True, False, True),
    ),
    "dtype, layout, device, memory format": of(
        "aten::_to_copy", self=f32(1, 2, 3, 3), dtype=TorchValue("dtype", "float64"),
        layout=TorchValue("layout", "strided"), device=TorchValue("device", ""),
        memory_format=TorchValue("memory_format", "channels_last"),
    ),
    "a generator": of(
        "aten::rand", "generator", size=(2, 3), generator=TorchValue("generator", ""),
        device=TorchValue("device", ""),
    ),
    "an output": of(
        "aten::mul", "out", self=f32(2, 2), other=f32(2, 2), out=f32(2, 2)
    ),
    "eight bits": of("aten::_to_copy", self=tensor(torch.float8_e4m3fn, 33)),
    "a storage": of("aten::set_", "source_Storage", self=f32(0), source=f32(6)),
    "a matrix made positive definite": of("aten::linalg_cholesky", self=f32(6, 6)),
    "numbers at the ends of their types": of(
        "aten::clamp", self=f32(4), min=-(2**63), max=math.inf
    ),
    "an int8 scalar tensor": of("aten::neg", self=tensor(torch.int8)),
}  # fmt: skip


def assembled(text: str) -> dict:
    """What a script in Python makes before it calls the operator."""
    scope: dict = {}
    exec(text.split("\nwith torch.")[0], scope)
    return scope


@pytest.fixture(autouse=True)
def words_of_a_script(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script", "--device", "cpu", "--calls", "1"])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Outputs and printed lines of each call's script, in a process that lacks opreplay."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "opreplay.py").write_text("raise ImportError('a script has no opreplay')")
    for number, resolved in enumerate(CALLS.values()):
        text = make_script(as_planned(resolved), "python", options=HERE)
        (folder / f"script{number}.py").write_text(text)
    (folder / "all.py").write_text(
        "import runpy, sys, torch\n"
        "sys.argv = ['script', '--device', 'cpu', '--calls', '1']\n"
        f"for number in range({len(CALLS)}):\n"
        "    outputs = runpy.run_path(f'script{number}.py')['outputs']\n"
        "    torch.save(outputs, f'{number}.pt')\n"
        "    print('END')\n"
    )
    shown = run(sys.executable, "all.py", folder=folder).split("END\n")[:-1]
    return {
        name: (torch.load(folder / f"{number}.pt"), shown[number].splitlines())
        for number, name in enumerate(CALLS)
    }


def run(*command, folder, **more):
    environment = dict(os.environ, PYTHONPATH=str(folder), **more)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    values = value if isinstance(value, list | tuple) else []
    return [tensor for one in values for tensor in tensors_of(one)]


def assert_same(one, other):
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
        assert left.stride() == right.stride()


@pytest.mark.parametrize("name", CALLS)
def test_a_script_runs_the_operator_of_the_call(name, ran):
    resolved = CALLS[name]
    scope = assembled(make_script(as_planned(resolved), "python", options=HERE))
    operator = torch._C._get_operation_overload(resolved.resolved_op, resolved.overload)[0]
    expected = operator(**scope["arguments"])
    outputs, shown = ran[name]
    assert_same(tensors_of(outputs), tensors_of(expected))
    first = tensors_of(expected)[0]
    dtype = str(first.dtype).removeprefix("torch.")
    assert f": {dtype} {list(first.shape)}" in shown[0]
    assert re.fullmatch(r"\d+\.\d\d us a call from Python, 1 calls", shown[-1])


@pytest.mark.parametrize("name", CALLS)
def test_the_arguments_have_the_layout_of_the_call(name):
    resolved = CALLS[name]
    text = make_script(as_planned(resolved), "python", options=HERE)
    arguments = assembled(text)["arguments"]
    made = make(resolved, seed=HERE.seed).arguments
    assert list(arguments) == [one.name for one in resolved.arguments]
    for ours, theirs in zip(tensors_of(list(arguments.values())), tensors_of(made), strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (
            theirs.dtype, theirs.shape, theirs.stride()
        )  # fmt: skip
        assert ours.storage_offset() == theirs.storage_offset()


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("distinct indices", "index"),
        ("a long list of integers", "index"),
        ("a matrix made positive definite", "self"),
    ],
)
def test_values_that_a_recipe_chose_stand_in_the_script(name, chosen):
    resolved = CALLS[name]
    text = make_script(as_planned(resolved), "python", options=HERE)
    place = [one.name for one in resolved.arguments].index(chosen)
    expected = make(resolved, seed=HERE.seed).arguments[place]
    assert torch.equal(assembled(text)["arguments"][chosen], expected)


def test_tensors_on_one_storage_share_it_in_the_script():
    text = make_script(as_planned(CALLS["shared storage"]), "python", options=HERE)
    one, other = assembled(text)["arguments"].values()
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    assert (one.data_ptr() + 4, one.untyped_storage().nbytes()) == (other.data_ptr(), 36)


RANGES = {
    "indices": '"indices": integers(torch.int64, [2, 3], 0, 10)',
    "probabilities": '"self": uniform(torch.float32, [9], 0.0, 0.9375)',
    "one index": '"index": filled(torch.int64, [1], 0)',
    "bits": '"self": integers(torch.uint8, [9], 0, 256).view(torch.bits8)',
    "powers of two": '"self": uniform(torch.float8_e8m0fnu, [9], 0.0625, 1.0)',
}


@pytest.mark.parametrize("name", RANGES)
def test_what_has_only_a_range_is_drawn_when_the_script_runs(name):
    more = {
        "bits": of("aten::neg", self=tensor(torch.bits8, 9)),
        "powers of two": of("aten::_to_copy", self=tensor(torch.float8_e8m0fnu, 9)),
    }
    text = make_script(as_planned((CALLS | more)[name]), "python", options=HERE)
    assert RANGES[name] in text


def test_integers_that_a_recipe_computed_with_are_not_drawn_anew():
    def fill(call):
        indices = call.tensor("indices")
        indices.write(indices.random_integers(indices.dims, 0, 5) * 2)

    recipe("aten::embedding")(fill)
    try:
        text = make_script(as_planned(CALLS["indices"]), "python", options=HERE)
    finally:
        remove_recipe(fill)
    (values,) = re.findall(r'"indices": listed\(torch.int64, \[2, 3\], \[(.*?)\]\)', text)
    assert {int(value) % 2 for value in values.split(", ")} == {0}


def test_an_overload_that_is_called_as_a_keyword_of_python_is_reached():
    resolved = of("aten::random_", "from", **{"self": i64(5), "from": 3, "to": 9})
    text = make_script(as_planned(resolved), "python", options=HERE)
    assert assembled(text)["operator"] is getattr(torch.ops.aten.random_, "from")


def test_a_cache_has_the_blocks_that_the_budget_allows():
    library = torch.library.Library("script_test", "DEF")
    library.define("paged(Tensor key_cache, Tensor block_table) -> Tensor")

    def fill(call):
        call.tensor("block_table").fill_integers(0, call.tensor("key_cache").dims[0])

    pools = Pools(("key_cache",), ("block_table",))
    recipe("script_test::paged", pools=pools)(fill)
    try:
        resolved = of("script_test::paged", key_cache=f32(40, 256), block_table=i64(4))
        options = ReplayOptions(device="cpu", memory_budget=20 << 10)
        text = make_script(as_planned(resolved), "python", options=options)
    finally:
        remove_recipe(fill)
        library._destroy()
    # 20 KiB less the 32 bytes of the table hold 19 blocks of a KiB.
    assert '"key_cache": uniform(torch.float32, [19, 256], -1.0, 1.0)' in text
    assert '"block_table": integers(torch.int64, [4], 0, 19)' in text
    assert "assumed: key_cache: 19 of 40 recorded blocks" in text


# C++


def compile_(source: Path, *options):
    command = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", *options, source]
    libraries = ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    paths = ["-isystem", TORCH / "include", f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}"]
    run(*command, *paths, *libraries, "-o", source.with_suffix(""), folder=source.parent)
    return source.with_suffix("")


needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler on PATH")


@needs_compiler
def test_cpp_scripts_build_without_warnings_and_show_what_the_python_ones_show(ran, tmp_path):
    includes: dict[str, None] = {}
    bodies = []
    for number, resolved in enumerate(CALLS.values()):
        text = make_script(as_planned(resolved), "cpp", options=HERE)
        lines = text.replace("int main(", "int run(").splitlines()
        includes.update(dict.fromkeys(line for line in lines if line.startswith("#include")))
        body = "\n".join(line for line in lines if not line.startswith("#include"))
        bodies.append(f"namespace case{number} {{\n{body}\n}}")
    calls = "".join(
        f'case{number}::run(count, words); std::puts("END");' for number in range(len(CALLS))
    )
    main_ = f"int main(int count, char** words) {{ {calls} }}\n"
    source = tmp_path / "all.cpp"
    source.write_text("\n".join([*includes, *bodies, main_]))
    shown = run(compile_(source, "-O0"), "cpu", folder=tmp_path).split("END\n")[:-1]
    for name, text in zip(CALLS, shown, strict=True):
        *lines, last = text.splitlines()
        assert lines == ran[name][1][:-1], name
        assert re.fullmatch(r"\d+\.\d\d us a call, 100 calls", last)


@needs_compiler
def test_the_lines_at_the_top_of_a_cpp_script_build_it(tmp_path):
    source = tmp_path / "FILE.cpp"
    source.write_text(make_script(as_planned(CALLS["a string"]), "cpp", options=HERE))
    shell = "\n".join(line[5:] for line in re.findall(r"^//   .*", source.read_text(), re.M))
    python = Path(sys.executable).parent
    path = f"{python}{os.pathsep}{os.environ['PATH']}"
    run("sh", "-ec", shell.replace("python3", sys.executable), folder=tmp_path, PATH=path)
    assert run("./reproducer", folder=tmp_path).startswith("output: float32 [8] mean ")


def test_no_number_is_a_literal_of_cpp_that_is_none():
    resolved = of("aten::clamp", self=f32(2), min=math.nan, max=None)
    text = make_script(as_planned(resolved), "cpp", options=HERE)
    assert "arguments.emplace_back(std::numeric_limits<double>::quiet_NaN());  // min" in text
    assert "arguments.emplace_back(c10::IValue());  // max" in text


def test_text_of_any_kind_is_one_string_literal_in_cpp():
    resolved = of("aten::gelu", self=f32(2), approximate=NAMED)
    text = make_script(as_planned(resolved), "cpp", options=HERE)
    assert r'"kernel \042A\042\134B\077\012\000\303\251"s' in text


# What a script does not say, and what none is written for


@pytest.mark.parametrize("language", ["python", "cpp"])
def test_nothing_of_the_trace_but_the_call_stands_in_a_script(language):
    text = make_script(as_planned(CALLS["a product"]), language, options=HERE)
    assert "customer" not in text
    assert "signature" not in text
    assert not re.search(r"^\s*(?:import|from|#include) .*opreplay", text, re.M)
    assert str(Path(__file__).parents[2]) not in text
    assert len(text.splitlines()) < 200


def test_a_library_registers_the_operator_when_the_script_imports_it(tmp_path, monkeypatch):
    (tmp_path / "script_test_kernels.py").write_text(
        "import torch\n"
        "library = torch.library.Library('script_test', 'DEF')\n"
        "library.define('twice(Tensor self, Tensor(a!) out) -> ()')\n"
        "library.impl('twice', lambda self, out: out.copy_(self * 2) and None, 'CPU')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ReplayOptions(imports=("script_test_kernels",), device="cpu")
    import script_test_kernels

    schema = "script_test::twice(Tensor self, Tensor(a!) out) -> ()"
    values = of("aten::neg", "out", self=f32(1), out=f32(1)).arguments
    resolved = ResolvedCall("a::b", "script_test::twice", "", schema, values, (), ())
    text = make_script(as_planned(resolved), "python", options=options)
    (tmp_path / "script.py").write_text(text)
    assert "It needs torch and script_test_kernels;" in text
    expected = 2 * assembled(text)["arguments"]["self"].item()
    shown = run(sys.executable, "script.py", "--device", "cpu", folder=tmp_path).splitlines()
    assert shown[0] == f"out: float32 [1] mean {expected:.6g}, of magnitudes {abs(expected):.6g}"
    script_test_kernels.library._destroy()


def produced():
    def fill(call):
        call.replace("mat2", run_operator("aten::t", torch.ones(3, 2)))

    recipe("aten::mm")(fill)
    try:
        make_script(as_planned(of("aten::mm", self=f32(1, 2), mat2=f32(2, 3))), "cpp", options=HERE)
    finally:
        remove_recipe(fill)


REFUSED = {
    "produced": (produced, "aten::mm: argument mat2 is made by another operator"),
    "quantized": (
        of("aten::neg", self=tensor(torch.quint8, 3)),
        "aten::neg: argument self is quint8, which a script does not fill; use opreplay bundle",
    ),
    "many values": (
        of("aten::linalg_cholesky", self=f32(600, 600)),
        "the recipe chose 1,440,000 bytes of values, a script holds 1,048,576; use opreplay bundle",
    ),
    "unregistered": (
        ResolvedCall("no::such", "no::such", "", "no::such(Tensor a) -> ()", (), (), ()),
        "no::such: no library here registers no::such",
    ),
    "a function": (
        ResolvedCall("a::b", "a::b", "", None, (), (), ()), "a::b: a::b is a Python function",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "why"), REFUSED.values(), ids=REFUSED)
def test_what_a_script_cannot_hold_is_told_in_a_sentence(made, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        made() if callable(made) else make_script(as_planned(made), "python", options=HERE)


# The command line


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "x.plan.json"
    write_plan(make_plan(TINY_TRACE, Selection(), options=HERE), path)
    return path


def test_the_command_writes_one_of_the_chosen_calls(plan, tmp_path, capsys):
    out = tmp_path / "x.py"
    words = ["script", str(plan), "--op", "aten::mm", "--call", "1", "--lang", "python"]
    assert main([*words, "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: runs aten::mm; the lines at its top say how\n"
    assert main(words) == 0
    assert capsys.readouterr().out == out.read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "x.plan.json: 44 calls are chosen, a script runs one: add --call N"),
        (["--call", "99"], "--call 99: 44 calls of the source are chosen"),
    ],
)
def test_the_command_asks_for_one_call(words, why, plan, capsys):
    assert main(["script", str(plan), "--lang", "cpp", *words]) == 2
    assert why in capsys.readouterr().err
