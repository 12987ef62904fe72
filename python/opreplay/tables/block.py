"""Builds the integer inputs of paged attention: sizes in, lengths, block tables and slots out.

Every builder runs where its tensors are, gives the same bits on every device and for any number of
threads, and has an ``out=`` form that fills recorded buffers in place. On the CPU lengths that do
not fit raise ``ValueError``. On a device that is known only there: the call then reads the status
of the result, which synchronises once, unless a graph is being captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from opreplay import _C  # noqa: F401  (registers torch.ops.opreplay)

__all__ = [
    "BlockCsr",
    "BlockStats",
    "BlockTable",
    "block_csr",
    "block_table",
    "positions",
    "query_start_loc",
    "req_to_token",
    "seq_lens",
    "slot_mapping",
]

LengthKind: TypeAlias = Literal["constant", "uniform", "zipf"]
BlockOrder: TypeAlias = Literal["permuted", "contiguous", "strided"]
OnExhausted: TypeAlias = Literal["error", "shrink_lengths", "share"]

_STATUS_ENTRIES = 4
_BLOCKS_NEEDED, _BLOCKS_IN_POOL, _BLOCK_STATUS_ENTRIES = 4, 5, 6


@dataclass(frozen=True, slots=True)
class BlockStats:
    """What a batch takes of its pool."""

    num_seqs: int
    tokens: int
    """Sum of the lengths that hold."""
    mean_length: float
    """Tokens of a sequence; 0 without sequences."""
    longest: int
    """Tokens of the longest sequence."""
    entries: int
    """Block ids in the table, a shared block in each row that has it."""
    distinct_blocks: int
    """Different blocks among them: what is read from memory."""
    blocks_needed: int
    """Different blocks that the lengths asked for."""
    blocks_in_pool: int
    """Blocks that could be handed out."""

    @property
    def exhausted(self) -> bool:
        """Whether the pool was too small: lengths were shortened, or blocks shared."""
        return self.blocks_needed > self.blocks_in_pool

    @property
    def pool_used(self) -> float:
        """Share of the pool that the table names."""
        return self.distinct_blocks / self.blocks_in_pool


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The blocks of each sequence, a row each."""

    table: Tensor
    """int32 [B, W]: block ids; after a sequence's last block 0, a valid id that is not read."""
    seq_lens: Tensor
    """int32 [B]: the lengths that hold, shortened where that was asked for and needed."""
    status: Tensor
    """int32 [6]: error, sequence, value, limit (all about the first error), blocks needed, pool."""

    block_size: int
    """Tokens of a block."""

    def stats(self) -> BlockStats:
        """Counts blocks and tokens; synchronises on a device."""
        column = torch.arange(self.table.size(1), device=self.table.device)
        blocks = -(-self.seq_lens // self.block_size)
        return _stats(self.table[column < blocks[:, None]], self.seq_lens, self.status)


@dataclass(frozen=True, slots=True)
class BlockCsr:
    """The blocks of all sequences, one after the other."""

    kv_indptr: Tensor
    """int32 [B + 1]: where the pages of each sequence begin; the last is the number of all."""
    kv_indices: Tensor
    """int32 [length]: block ids; after the last page 0, a valid id."""
    kv_last_page_len: Tensor
    """int32 [B]: tokens on the last page, 1 to the page size."""
    seq_lens: Tensor
    """int32 [B]: the lengths that hold, shortened where that was asked for and needed."""
    status: Tensor
    """int32 [6]: error, sequence, value, limit (all about the first error), blocks needed, pool."""

    def stats(self) -> BlockStats:
        """Counts blocks and tokens; synchronises on a device."""
        entries = int(self.kv_indptr[-1])
        return _stats(self.kv_indices[:entries], self.seq_lens, self.status)


def seq_lens(
    num_seqs: int,
    *,
    kind: LengthKind | Tensor = "uniform",
    low: int = 1,
    high: int,
    s: float = 1.0,
    total: int | None = None,
    total_squares: int | None = None,
    maximum: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    out: Tensor | None = None,
) -> Tensor:
    """Chooses the lengths of sequences.

    With ``total`` the lengths are a ramp in random order, clamped to [low, maximum or high]:
    level for ``"constant"``, from half to one and a half of the mean for ``"uniform"``, and as
    steep as ``total_squares`` asks for where that is given.

    Args:
        num_seqs: B.
        kind: ``"constant"`` (all are ``high``), ``"uniform"``, ``"zipf"``, or a tensor of lengths.
        low: shortest length in tokens, at least 1.
        high: longest length: at most what the block table's width and the pool hold.
        s: exponent of ``"zipf"``: a length v has a probability in proportion to ``v ** -s``;
            above 32 all lengths of a sixteenth of an octave share that of their middle.
        total: sum of all lengths, met exactly.
        total_squares: sum of their squares, met as closely as a ramp can.
        maximum: longest length, met exactly by one sequence.
        seed: chooses the draws and the order.
        device: where the lengths are made.
        out: int32 [B] to fill; ``device`` is then not used.

    Returns:
        int32 [B].

    Raises:
        ValueError: the request is impossible; the text names the value and the limit.
    """
    if isinstance(kind, Tensor):
        return _given_lengths(num_seqs, kind, low=low, high=high, device=device, out=out)
    options: dict[str, Any] = {
        "kind": kind,
        "low": low,
        "high": high,
        "s": s,
        "total": total,
        "total_squares": total_squares,
        "maximum": maximum,
        "seed": seed,
    }
    if out is None:
        lengths: Tensor = torch.ops.opreplay.seq_lens.default(
            num_seqs, **options, device=torch.device(device)
        )
        return lengths
    if out.shape != (num_seqs,):
        raise ValueError(f"expected out of {num_seqs} entries, got {out.shape = }")
    torch.ops.opreplay.seq_lens.out(**options, out=out)
    return out


def block_table(
    seq_lens: Tensor,
    block_size: int,
    num_blocks: int,
    *,
    width: int | None = None,
    order: BlockOrder = "permuted",
    reserve_block_zero: bool = False,
    shared_prefix_blocks: int = 0,
    on_exhausted: OnExhausted = "error",
    seed: int = 0,
    out: tuple[Tensor, Tensor] | None = None,
) -> BlockTable:
    """Gives each sequence blocks of the pool, no block to two sequences.

    Args:
        seq_lens: int32 [B], tokens of each sequence; 0 is a padding row.
        block_size: tokens of a block.
        num_blocks: blocks of the pool, at most 2**30.
        width: W; without it as wide as the longest sequence needs, which synchronises once on a
            device.
        order: ``"permuted"`` over the whole pool (a server after hours), ``"contiguous"`` (a fresh
            server), or ``"strided"``: the blocks of a sequence lie B apart, or at the next
            distance that visits the whole pool (sequences that grew in step).
        reserve_block_zero: do not hand out block 0.
        shared_prefix_blocks: leading blocks that all sequences share: full blocks only, and never
            the one with a sequence's last token, which is still written.
        on_exhausted: when the pool is too small: ``"error"``, ``"shrink_lengths"`` (all in
            proportion, and to the width), or ``"share"`` (begin again at the first block).
        seed: chooses the permutation.
        out: int32 [B, W] and int32 [B] to fill: table and seq_lens.

    Raises:
        TypeError: a tensor has the wrong dtype.
        ValueError: the lengths do not fit; the text says what is needed and what there is.
    """
    options: dict[str, Any] = {
        "order": order,
        "reserve_block_zero": reserve_block_zero,
        "shared_prefix_blocks": shared_prefix_blocks,
        "on_exhausted": on_exhausted,
        "seed": seed,
    }
    if out is None:
        table, lengths, status = torch.ops.opreplay.block_table.default(
            seq_lens, block_size, num_blocks, width=width, **options
        )
    else:
        table, lengths = out
        status = seq_lens.new_empty(_BLOCK_STATUS_ENTRIES, dtype=torch.int32)
        torch.ops.opreplay.block_table.out(
            seq_lens,
            block_size,
            num_blocks,
            **options,
            table=table,
            seq_lens_out=lengths,
            status=status,
        )
    _raise_on_device(status, torch.ops.opreplay.check_block_status)
    return BlockTable(table, lengths, status, block_size)


def block_csr(
    seq_lens: Tensor,
    block_size: int,
    num_blocks: int,
    *,
    length: int | None = None,
    order: BlockOrder = "permuted",
    reserve_block_zero: bool = False,
    shared_prefix_blocks: int = 0,
    on_exhausted: OnExhausted = "error",
    seed: int = 0,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> BlockCsr:
    """Gives each sequence the blocks that :func:`block_table` gives it, in compressed rows.

    Args:
        seq_lens: int32 [B], tokens of each sequence.
        block_size: tokens of a page; 1 is a page for each token.
        num_blocks: pages of the pool, at most 2**30.
        length: entries of kv_indices; without it as many as there are pages, which synchronises
            once on a device.
        order: as in :func:`block_table`, like all that follow.
        reserve_block_zero: do not hand out block 0.
        shared_prefix_blocks: leading blocks that all sequences share.
        on_exhausted: what to do when the pool is too small.
        seed: chooses the permutation.
        out: kv_indptr, kv_indices, kv_last_page_len and seq_lens to fill; kv_indices may be longer
            than needed.

    Raises:
        TypeError: a tensor has the wrong dtype.
        ValueError: the lengths do not fit; the text says what is needed and what there is.
    """
    options: dict[str, Any] = {
        "order": order,
        "reserve_block_zero": reserve_block_zero,
        "shared_prefix_blocks": shared_prefix_blocks,
        "on_exhausted": on_exhausted,
        "seed": seed,
    }
    if out is None:
        *out, status = torch.ops.opreplay.block_csr.default(
            seq_lens, block_size, num_blocks, length=length, **options
        )
    else:
        status = seq_lens.new_empty(_BLOCK_STATUS_ENTRIES, dtype=torch.int32)
        torch.ops.opreplay.block_csr.out(
            seq_lens,
            block_size,
            num_blocks,
            **options,
            kv_indptr=out[0],
            kv_indices=out[1],
            kv_last_page_len=out[2],
            seq_lens_out=out[3],
            status=status,
        )
    _raise_on_device(status, torch.ops.opreplay.check_block_status)
    return BlockCsr(out[0], out[1], out[2], out[3], status)


def query_start_loc(query_lens: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Sums up query lengths: where the tokens of each sequence begin.

    Args:
        query_lens: int32 [B], tokens that each sequence computes in this step.
        out: int32 [B + 1] to fill.

    Returns:
        int32 [B + 1]: 0, then the running sums.

    Raises:
        ValueError: a length is negative, or the sum is above int32.
    """
    return _token_index(torch.ops.opreplay.query_start_loc, (query_lens,), {}, out)


def positions(
    seq_lens: Tensor,
    query_lens: Tensor,
    *,
    total: int | None = None,
    dtype: torch.dtype = torch.int64,
    out: Tensor | None = None,
) -> Tensor:
    """Numbers the tokens of a step: the queries are the last tokens of their sequences.

    Args:
        seq_lens: int32 [B], tokens of each sequence, the new ones included.
        query_lens: int32 [B], new tokens.
        total: entries of the result, padded with 0; without it the sum of query_lens, which
            synchronises once on a device.
        dtype: int64 or int32.
        out: tensor to fill; ``total`` and ``dtype`` are then not used.

    Returns:
        [total]: positions from 0.

    Raises:
        ValueError: a query is longer than its sequence, or the tokens do not fit.
    """
    options = {"total": total, "dtype": dtype}
    return _token_index(torch.ops.opreplay.positions, (seq_lens, query_lens), options, out)


def slot_mapping(
    block_table: Tensor,
    seq_lens: Tensor,
    query_lens: Tensor,
    block_size: int,
    *,
    total: int | None = None,
    dtype: torch.dtype = torch.int64,
    out: Tensor | None = None,
) -> Tensor:
    """Looks up where the new tokens are written: block id times block size, plus the offset.

    With ``query_lens`` equal to ``seq_lens`` these are the slots of all tokens: with
    :func:`query_start_loc` the compressed rows of a cache with pages of one token.

    Args:
        block_table: int32 [B, W].
        seq_lens: int32 [B], tokens of each sequence, the new ones included.
        query_lens: int32 [B], new tokens: 1 in decode.
        block_size: tokens of a block.
        total: entries of the result, padded with -1, which kernels skip; without it the sum of
            query_lens, which synchronises once on a device.
        dtype: int64 or int32.
        out: tensor to fill; ``total`` and ``dtype`` are then not used.

    Returns:
        [total]: slots of the cache.

    Raises:
        ValueError: a query is longer than its sequence, a sequence longer than its row of the
            table, or the tokens do not fit.
    """
    inputs = (block_table, seq_lens, query_lens, block_size)
    options = {"total": total, "dtype": dtype}
    return _token_index(torch.ops.opreplay.slot_mapping, inputs, options, out)


def req_to_token(
    block_table: Tensor,
    seq_lens: Tensor,
    block_size: int,
    *,
    context: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Spells out a block table token by token, the form of SGLang.

    Args:
        block_table: int32 [B, W].
        seq_lens: int32 [B], tokens of each sequence.
        block_size: tokens of a block.
        context: columns of the result; without it what a row of the table holds.
        out: int32 [B, context] to fill.

    Returns:
        int32 [B, context]: the slot of each token; 0 after a sequence's last one.

    Raises:
        ValueError: a sequence is longer than the context or than its row of the table.
    """
    inputs = (block_table, seq_lens, block_size)
    return _token_index(torch.ops.opreplay.req_to_token, inputs, {"context": context}, out)


def _given_lengths(
    num_seqs: int,
    lengths: Tensor,
    *,
    low: int,
    high: int,
    device: str | torch.device,
    out: Tensor | None,
) -> Tensor:
    if lengths.shape != (num_seqs,):
        raise ValueError(f"expected {num_seqs} lengths, got {lengths.shape = }")
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"expected integer lengths, got {lengths.dtype = }")
    if num_seqs > 0:
        shortest, longest = (int(bound) for bound in torch.aminmax(lengths))
        if shortest < low or longest > high:
            raise ValueError(
                f"expected lengths in [{low}, {high}], got lengths from {shortest} to {longest}"
            )
    if out is None:
        return lengths.to(device=device, dtype=torch.int32, copy=True)
    return out.copy_(lengths)


def _token_index(
    operator: Any, inputs: tuple[Any, ...], options: dict[str, Any], out: Tensor | None
) -> Tensor:
    """Calls one of the operators that return values and a status."""
    values: Tensor
    if out is None:
        values, status = operator.default(*inputs, **options)
    else:
        values = out
        status = out.new_empty(_STATUS_ENTRIES, dtype=torch.int32)
        operator.out(*inputs, values=values, status=status)
    _raise_on_device(status, torch.ops.opreplay.check_token_status)
    return values


def _raise_on_device(status: Tensor, check: Callable[[Tensor], None]) -> None:
    """Raises what a status says; on the CPU the builder itself has done so already."""
    if status.is_cpu or torch.cuda.is_current_stream_capturing():
        return
    check(status.cpu())


def _stats(ids: Tensor, lengths: Tensor, status: Tensor) -> BlockStats:
    tokens = int(lengths.sum())
    num_seqs = lengths.numel()
    return BlockStats(
        num_seqs=num_seqs,
        tokens=tokens,
        mean_length=tokens / num_seqs if num_seqs else 0.0,
        longest=int(lengths.max()) if num_seqs else 0,
        entries=ids.numel(),
        distinct_blocks=ids.unique().numel(),  # type: ignore[no-untyped-call]
        blocks_needed=int(status[_BLOCKS_NEEDED]),
        blocks_in_pool=int(status[_BLOCKS_IN_POOL]),
    )
