"""Times block tables and random fills beside numpy, torch and plain writes of the same bytes.

Run with `python benchmarks/tables_block.py`; `--gigabytes` sets the size of the random fills.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from opreplay import tables

BLOCK_SIZE = 16
SEQUENCES, WIDTH, POOL = 1024, 2048, 2_500_000


def seconds_of(work: Callable[[], object], *, limit: float = 1.0) -> list[float]:
    """Returns the times of several calls after one that is not counted."""
    work()
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < 5 or (len(samples) < 1000 and time.perf_counter() - start < limit):
        before = time.perf_counter()
        work()
        samples.append(time.perf_counter() - before)
    return samples


def report(title: str, cases: dict[str, Callable[[], object]]) -> None:
    """Prints the cases beside the first one, the floor."""
    print(title)
    floor = 0.0
    for name, work in cases.items():
        samples = seconds_of(work)
        median, least = statistics.median(samples), min(samples)
        floor = floor or median
        print(f"  {name:38}{median * 1e3:10.3f} ms  (min {least * 1e3:.3f}){median / floor:8.2f} x")


def table_with_numpy(lens: np.ndarray) -> np.ndarray:
    """Does the same in vectorised numpy: a permutation of the pool, dealt out to the rows."""
    blocks = -(-lens // BLOCK_SIZE)
    filled = np.arange(WIDTH) < blocks[:, None]
    table = np.zeros((lens.size, WIDTH), dtype=np.int32)
    table[filled] = np.random.default_rng(0).permutation(POOL)[: int(blocks.sum())]
    return table


def table_with_torch(lens: torch.Tensor) -> torch.Tensor:
    """Does the same in torch."""
    blocks = (lens + BLOCK_SIZE - 1) // BLOCK_SIZE
    filled = torch.arange(WIDTH) < blocks[:, None]
    table = torch.zeros(lens.numel(), WIDTH, dtype=torch.int32)
    table[filled] = torch.randperm(POOL)[: int(blocks.sum())].int()
    return table


def report_block_table() -> None:
    """Prints the time of a table of 2 M entries, and of its compressed form."""
    lens = torch.full((SEQUENCES,), WIDTH * BLOCK_SIZE, dtype=torch.int32)
    plain = torch.empty(SEQUENCES, WIDTH, dtype=torch.int32)
    out = (torch.empty_like(plain), torch.empty_like(lens))
    entries = SEQUENCES * WIDTH
    csr = tables.block_csr(lens, BLOCK_SIZE, POOL)
    csr_out = (csr.kv_indptr, csr.kv_indices, csr.kv_last_page_len, csr.seq_lens)
    # A table that is built once is not in cache: each call takes the next of 512 MiB of buffers.
    cold = itertools.cycle([torch.zeros_like(plain) for _ in range(64)])
    cold_lens = torch.empty_like(lens)
    report(
        f"block table, {entries:,} entries of a pool of {POOL:,}, out of cache",
        {
            "plain fill of the same bytes": lambda: next(cold).fill_(1),
            "opreplay, permuted": lambda: tables.block_table(
                lens, BLOCK_SIZE, POOL, out=(next(cold), cold_lens)
            ),
        },
    )
    cases: dict[str, Callable[[], object]] = {
        "plain fill of the same bytes": lambda: plain.fill_(1),
        "plain fill, allocated": lambda: torch.full((SEQUENCES, WIDTH), 1, dtype=torch.int32),
    }
    for order in ("permuted", "contiguous", "strided"):
        cases[f"opreplay, {order}"] = lambda order=order: tables.block_table(
            lens, BLOCK_SIZE, POOL, order=order, out=out
        )
    cases |= {
        "opreplay, permuted, compressed": lambda: tables.block_csr(
            lens, BLOCK_SIZE, POOL, out=csr_out
        ),
        "opreplay, permuted, allocated": lambda: tables.block_table(
            lens, BLOCK_SIZE, POOL, width=WIDTH
        ),
        "numpy": lambda: table_with_numpy(lens.numpy()),
        "torch": lambda: table_with_torch(lens),
    }
    report(f"block table, {entries:,} entries of a pool of {POOL:,}, in cache", cases)


def report_decode() -> None:
    """Prints the times of the tables of a decode step."""
    sequences, width = 64, 256
    lens = tables.seq_lens(sequences, high=width * BLOCK_SIZE)
    ones = torch.ones_like(lens)
    table = tables.block_table(lens, BLOCK_SIZE, 100_000, width=width)
    out = (table.table, table.seq_lens)
    slots = torch.empty(sequences, dtype=torch.int64)
    report(
        f"decode step, {sequences} sequences, width {width}, from Python",
        {
            "plain fill of the table": lambda: table.table.fill_(1),
            "block table": lambda: tables.block_table(lens, BLOCK_SIZE, 100_000, out=out),
            "slot mapping": lambda: tables.slot_mapping(
                table.table, lens, ones, BLOCK_SIZE, out=slots
            ),
            "lengths": lambda: tables.seq_lens(sequences, high=4096, out=lens),
        },
    )


def report_random_fill(gigabytes: float) -> None:
    """Prints the time of random fills of one large buffer."""
    buffer = torch.zeros(int(gigabytes * 2**30) // 8 * 8, dtype=torch.uint8)
    size = buffer.numel()

    def fill(dtype: torch.dtype) -> Callable[[], object]:
        view = buffer.view(dtype)
        return lambda: torch.ops.opreplay.fill_random_(view, 1)

    def fill_integers(dtype: torch.dtype, low: int, high: int) -> Callable[[], object]:
        view = buffer.view(dtype)
        return lambda: torch.ops.opreplay.fill_random_integers_(view, low, high, 1)

    # A processor may clear memory without moving it, so zero is no fair floor.
    cases: dict[str, Callable[[], object]] = {
        "memset to 1, one thread": lambda: ctypes.memset(buffer.data_ptr(), 1, size),
        "memset to 0, one thread": lambda: ctypes.memset(buffer.data_ptr(), 0, size),
        "torch fill_": lambda: buffer.view(torch.int32).fill_(1),
        "torch uniform_ float32": lambda: buffer.view(torch.float32).uniform_(),
    }
    for dtype in (
        *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
        *(torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
    ):
        cases[f"fill_random {dtype}"] = fill(dtype)
    cases["fill_random_integers uint8 [0, 256)"] = fill_integers(torch.uint8, 0, 256)
    cases["fill_random_integers int32 [0, 1000)"] = fill_integers(torch.int32, 0, 1000)
    cases["fill_random_integers int64 [0, 50000)"] = fill_integers(torch.int64, 0, 50000)
    report(f"random fill of {size:,} bytes", cases)


def report_fresh_memory(gigabytes: float) -> None:
    """Prints the time of filling memory that was never touched: what a new cache costs."""
    elements = int(gigabytes * 2**30) // 2

    def zero() -> None:
        torch.empty(elements, dtype=torch.bfloat16).zero_()

    def random() -> None:
        torch.ops.opreplay.fill_random_(torch.empty(elements, dtype=torch.bfloat16), 1)

    report(
        f"{elements:,} new bfloat16 elements", {"torch zero_": zero, "fill_random bfloat16": random}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the random fills")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.threads} threads; the last column is times the first row")
    report_block_table()
    report_decode()
    report_random_fill(arguments.gigabytes)
    report_fresh_memory(arguments.gigabytes)


if __name__ == "__main__":
    main()
