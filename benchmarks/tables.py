"""Times the MoE tables beside numpy and torch doing the same work: `python benchmarks/tables.py`.

`--curve FILE` also times 1,000 to 16 M pairs and saves the curve as an SVG.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from opreplay import _C, tables

EXPERTS, TOP_K, BLOCK = 256, 8, 64
PADDING_SHIFT = 24


def seconds_of(work: Callable[[], object], *, limit: float = 1.0) -> list[float]:
    """Returns the times of several calls after one that is not counted."""
    work()
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < 3 or (len(samples) < 1000 and time.perf_counter() - start < limit):
        before = time.perf_counter()
        work()
        samples.append(time.perf_counter() - before)
    return samples


@dataclass(frozen=True)
class Buffers:
    """What a draw and an aiter table fill."""

    routing: tuple[torch.Tensor, torch.Tensor]
    sorting: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

    @classmethod
    def of(cls, tokens: int) -> Buffers:
        """Allocates for so many tokens."""
        routing = tables.topk_routing(tokens, EXPERTS, TOP_K)
        table = tables.moe_sorting(routing.topk_ids, routing.topk_weights, EXPERTS, BLOCK)
        return cls(
            (routing.topk_ids, routing.topk_weights),
            (
                table.sorted_ids,
                table.sorted_weights,
                table.sorted_expert_ids,
                table.num_valid_ids,
            ),
        )


def build(tokens: int, buffers: Buffers, distribution: str = "uniform", s: float = 1.0) -> None:
    """Draws and sorts into the buffers, as a caller from Python does."""
    tables.topk_routing(tokens, EXPERTS, TOP_K, distribution=distribution, s=s, out=buffers.routing)
    tables.moe_sorting(*buffers.routing, EXPERTS, BLOCK, out=buffers.sorting)


def write_and_read(buffers: Buffers) -> None:
    """Writes every output once and reads the pairs once: what no builder can do without."""
    for tensor in (*buffers.routing, *buffers.sorting):
        tensor.fill_(1)
    for tensor in buffers.routing:
        tensor.sum()


def build_with_numpy(tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Does the same in vectorised numpy: top-k of random scores, a stable sort, padding."""
    random = np.random.default_rng(0)
    scores = random.random((tokens, EXPERTS), dtype=np.float32)
    ids = np.argpartition(scores, -TOP_K, axis=1)[:, -TOP_K:]
    weights = random.random((tokens, TOP_K), dtype=np.float32)
    weights /= weights.sum(1, keepdims=True)
    order = np.argsort(ids.ravel(), kind="stable")
    counts = np.bincount(ids.ravel(), minlength=EXPERTS)
    blocks = -(-counts // BLOCK)
    starts = np.concatenate([[0], np.cumsum(blocks)]) * BLOCK
    shift = starts[:-1] - np.concatenate([[0], np.cumsum(counts)[:-1]])
    position = np.arange(order.size) + np.repeat(shift, counts)
    length = order.size + EXPERTS * BLOCK - TOP_K
    sorted_ids = np.full(length, TOP_K << PADDING_SHIFT | tokens, dtype=np.int32)
    sorted_ids[position] = order % TOP_K << PADDING_SHIFT | order // TOP_K
    sorted_weights = np.zeros(length, dtype=np.float32)
    sorted_weights[position] = weights.ravel()[order]
    return sorted_ids, sorted_weights, np.repeat(np.arange(EXPERTS, dtype=np.int32), blocks)


def build_with_torch(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Does the same in torch."""
    ids = torch.rand(tokens, EXPERTS).topk(TOP_K, sorted=False).indices
    weights = torch.rand(tokens, TOP_K)
    weights /= weights.sum(1, keepdim=True)
    order = torch.argsort(ids.flatten(), stable=True)
    counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
    blocks = (counts + BLOCK - 1) // BLOCK
    shift = (blocks.cumsum(0) - blocks) * BLOCK - (counts.cumsum(0) - counts)
    position = torch.arange(order.numel()) + shift.repeat_interleave(counts)
    length = order.numel() + EXPERTS * BLOCK - TOP_K
    sorted_ids = torch.full((length,), TOP_K << PADDING_SHIFT | tokens, dtype=torch.int32)
    sorted_ids[position] = (order % TOP_K << PADDING_SHIFT | order // TOP_K).int()
    sorted_weights = torch.zeros(length)
    sorted_weights[position] = weights.flatten()[order]
    return sorted_ids, sorted_weights, torch.arange(EXPERTS).int().repeat_interleave(blocks)


def report_prefill(tokens: int) -> None:
    """Prints the time of a large batch beside its floor and beside numpy and torch."""
    buffers = Buffers.of(tokens)
    cases = {
        "write the outputs, read the pairs": lambda: write_and_read(buffers),
        "opreplay, uniform": lambda: build(tokens, buffers),
        "opreplay, zipf 0.5": lambda: build(tokens, buffers, "zipf", 0.5),
        "opreplay, buffers allocated": lambda: Buffers.of(tokens),
        "numpy": lambda: build_with_numpy(tokens),
        "torch": lambda: build_with_torch(tokens),
    }
    print(f"draw and aiter layout, {tokens:,} tokens x {TOP_K} of {EXPERTS}, block {BLOCK}")
    floor = 0.0
    for name, work in cases.items():
        samples = seconds_of(work)
        median = statistics.median(samples)
        floor = floor or median
        print(
            f"  {name:36}{median * 1e3:9.2f} ms  (min {min(samples) * 1e3:.2f})"
            f"{median / floor:8.1f} x floor"
        )


def out_overload(name: str) -> _C.Operator:
    """Finds the overload that fills given tensors."""
    return next(op for op in _C.OperatorIndex().overloads(name) if op.overload == "out")


def report_decode(tokens: int) -> None:
    """Prints the time of a small batch from Python, and from a C++ loop through the dispatcher."""
    buffers = Buffers.of(tokens)
    ids, weights = buffers.routing
    status = torch.zeros(3, dtype=torch.int32)
    draw = (EXPERTS, TOP_K, "uniform", 1.0, 1.01, 0, None, 1, 1, 1, 0, None, 0, None, ids, weights)
    sort = (ids, weights, EXPERTS, BLOCK, None, None, "topk_m", -1, *buffers.sorting, status)
    in_cpp = {
        name: _C.Call(out_overload(f"opreplay::{name}"), arguments)
        for name, arguments in (("topk_routing", draw), ("moe_sorting", sort))
    }
    in_python = {
        "topk_routing": lambda: tables.topk_routing(tokens, EXPERTS, TOP_K, out=buffers.routing),
        "moe_sorting": lambda: tables.moe_sorting(
            ids, weights, EXPERTS, BLOCK, out=buffers.sorting
        ),
    }
    print(f"decode with out=, {tokens} tokens x {TOP_K} of {EXPERTS}, block {BLOCK}")
    print(f"  {'':16}    C++ us  Python us")
    for name, call in in_cpp.items():
        from_python = statistics.median(seconds_of(in_python[name], limit=0.2)) * 1e6
        from_cpp = statistics.median(_C.time_call(call, _C.TimingPlan()).ns) / 1e3
        print(f"  {name:16}{from_cpp:10.2f} {from_python:10.2f}")


def measure_curve() -> list[tuple[int, float]]:
    """Times growing batches; returns pairs and seconds."""
    points = []
    for tokens in (125, 500, 2_000, 8_000, 32_000, 128_000, 512_000, 2_000_000):
        buffers = Buffers.of(tokens)
        samples = seconds_of(lambda: build(tokens, buffers))  # noqa: B023  (called here only)
        points.append((tokens * TOP_K, statistics.median(samples)))
        pairs, seconds = points[-1]
        print(f"  {pairs:12,} pairs {seconds * 1e3:10.3f} ms {seconds / pairs * 1e9:8.2f} ns/pair")
    return points


def draw_curve(points: list[tuple[int, float]]) -> str:
    """Returns the curve as an SVG with both axes logarithmic."""
    width, height, left, top = 640, 400, 70, 20
    x_range, y_range = (3.0, 7.3), (-5.0, -1.0)

    def at(pairs: float, seconds: float) -> tuple[float, float]:
        x = (np.log10(pairs) - x_range[0]) / (x_range[1] - x_range[0])
        y = (np.log10(seconds) - y_range[0]) / (y_range[1] - y_range[0])
        return left + x * (width - left - 20), top + (1 - y) * (height - top - 50)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for exponent in range(3, 8):
        x, y = at(10**exponent, 1e-5)
        lines.append(f'<path d="M{x:.1f} {top}V{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">1e{exponent}</text>')
    for exponent, label in (
        (-5, "10 us"),
        (-4, "100 us"),
        (-3, "1 ms"),
        (-2, "10 ms"),
        (-1, "0.1 s"),
    ):
        x, y = at(1e3, 10**exponent)
        lines.append(f'<path d="M{x:.1f} {y:.1f}H{width - 20}" stroke="#ddd"/>')
        lines.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in points))
    lines.append(f'<path d="M{path}" fill="none" stroke="#1f5fbf" stroke-width="2"/>')
    for point in points:
        x, y = at(*point)
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f5fbf"/>')
    lines.append(
        f'<text x="{(width + left) / 2}" y="{height - 10}" text-anchor="middle">'
        "pairs of a token and an expert (draw and aiter layout, two threads)</text></svg>"
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=262_144)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--curve", type=Path, help="SVG file for the time of 1,000 to 16 M pairs")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report_prefill(arguments.tokens)
    report_decode(64)
    if arguments.curve:
        print("linear in the number of pairs")
        arguments.curve.write_text(draw_curve(measure_curve()))


if __name__ == "__main__":
    main()
