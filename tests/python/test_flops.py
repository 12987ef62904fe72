"""Operations of calls, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from made_calls import call, f32, make
from made_reports import row, stat, timing
from torch.utils.flop_counter import flop_registry, register_flop_formula

from opreplay.flops import count_flops


def flops_of(resolved):
    namespace, name = resolved.resolved_op.split("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    return count_flops(getattr(packet, resolved.overload or "default"), make(resolved).arguments)


@pytest.mark.parametrize(
    ("op", "arguments", "expected"),
    [
        ("aten::mm", {"self": f32(3, 4), "mat2": f32(4, 5)}, 2 * 3 * 4 * 5),
        ("aten::bmm", {"self": f32(7, 3, 4), "mat2": f32(7, 4, 5)}, 7 * 2 * 3 * 4 * 5),
        ("aten::addmm", {"self": f32(5), "mat1": f32(3, 4), "mat2": f32(4, 5)}, 2 * 3 * 4 * 5),
        # Made of others: a product of matrices, and the same over a batch of 6.
        ("aten::linear", {"input": f32(3, 4), "weight": f32(5, 4)}, 2 * 3 * 4 * 5),
        ("aten::matmul", {"self": f32(6, 3, 4), "other": f32(6, 4, 5)}, 6 * 2 * 3 * 4 * 5),
        # 2 images, 8 filters over 6 x 6 places, each of 3 channels times 3 x 3.
        ("aten::conv2d", {"input": f32(2, 3, 8, 8), "weight": f32(8, 3, 3, 3)},
         2 * 2 * 8 * 6 * 6 * 3 * 3 * 3),
        ("aten::sin", {"self": f32(9)}, None),
        ("aten::nonzero", {"self": f32(9)}, None),
    ],
)  # fmt: skip
def test_operations_are_those_of_the_textbook(op, arguments, expected):
    assert flops_of(call(op, **arguments)) == expected


def test_an_out_overload_counts_like_the_operator():
    product = call("aten::mm", "out", self=f32(3, 4), mat2=f32(4, 5), out=f32(3, 5))
    assert flops_of(product) == 120


def test_an_operator_of_a_library_counts_by_the_formula_it_registered():
    with torch.library._scoped_library("flops_test", "FRAGMENT") as library:
        library.define("sum_of_squares(Tensor x) -> Tensor")
        library.impl("sum_of_squares", lambda x: (x * x).sum(), "CPU")
        squares = call("flops_test::sum_of_squares", x=f32(10))
        assert flops_of(squares) is None
        packet = torch.ops.flops_test.sum_of_squares
        register_flop_formula(packet)(lambda shape, **_: 2 * shape[0])
        try:
            assert flops_of(squares) == 20
        finally:
            del flop_registry[packet]


def test_tflops_are_over_the_warm_time():
    host = stat(median=2000.0)  # ns
    assert row(flops=4_000_000, timing=timing(host)).tflops == pytest.approx(2.0)
    on_device = timing(host, hot=stat(median=4.0))  # us
    assert row(flops=4_000_000, timing=on_device).tflops == pytest.approx(1.0)
    assert row(flops=None).tflops is None
    assert replace(row(), flops=1, timing=None, reason="failed").tflops is None
