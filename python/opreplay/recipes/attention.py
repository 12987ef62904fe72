"""What attention must be told of its sequences: a batch comes in, filled arguments go out.

Engines call the same argument by many names; each tuple below holds those of one meaning. Case does
not matter, and an operator that lacks an argument is not given it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from opreplay.recipes.call import InputTensor, RecipeCall, RecipeError
from opreplay.recipes.sequences import Batch, choose_batch
from opreplay.tables import block

__all__ = [
    "BLOCK_TABLES",
    "KEY_LENGTHS",
    "KEY_STARTS",
    "LAST_PAGES",
    "LONGEST_KEYS",
    "LONGEST_QUERY",
    "PAGES",
    "PAGE_STARTS",
    "QUERY_STARTS",
    "SCALES",
    "Pool",
    "choose_paged",
    "number_named",
    "padded",
    "read_pool",
    "require_paged_keys",
    "tensor_named",
    "write_keys",
    "write_queries",
]

QUERY_STARTS = (
    "cu_seqlens_q", "cu_seqlens_q_padded", "query_start_loc", "qo_indptr", "cu_query_lens",
    "seqlens_qo_indptr", "cum_seq_q",
)  # fmt: skip
"""int32 [B + 1]: where the queries of each sequence begin."""
KEY_STARTS = ("cu_seqlens_k", "cu_seqlens_k_padded", "cum_seq_k")
"""int32 [B + 1]: where the keys of each sequence begin, or the running sum of their number."""
KEY_LENGTHS = (
    "seq_lens", "context_lens", "context_lengths", "seqused_k", "seqlens_k", "seqlen_k",
    "cache_seqlens", "kv_lens",
)  # fmt: skip
"""int32 [B]: keys of each sequence, the new ones included."""
BLOCK_TABLES = ("block_tables", "block_table", "page_table", "blk_tables")
"""int32 [B, W]: blocks of each sequence."""
PAGE_STARTS = ("kv_indptr", "pages_kv_indptr", "paged_kv_indptr")
"""int32 [B + 1]: where the pages of each sequence begin."""
PAGES = ("kv_page_indices", "kv_indices", "paged_kv_indices")
"""int32: the pages of all sequences, one after the other; often a buffer that is not full."""
LAST_PAGES = ("kv_last_page_lens", "kv_last_page_len", "paged_kv_last_page_len")
"""int32 [B]: keys on the last page of each sequence."""
LONGEST_QUERY = ("max_seqlen_q", "max_q", "max_qlen", "max_seqlen_qo")
"""Queries of the sequence that has most."""
LONGEST_KEYS = ("max_seq_len", "max_context_len", "max_seqlen_k", "max_k")
"""Keys of the sequence that has most; what the model allows where a graph was captured."""
SCALES = (
    "alibi_slopes", "k_scale", "v_scale", "q_scale", "kv_scale", "fp8_out_scale", "q_descale",
    "k_descale", "v_descale", "K_QScale", "V_QScale", "k_dequant_scales", "v_dequant_scales",
    "softmax_lse", "logsumexp", "scale",
)  # fmt: skip
"""Floats that must be positive."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A cache of blocks, of which sequences own some."""

    blocks: int
    """How many there are."""
    block_size: int
    """Tokens of a block."""


def tensor_named(call: RecipeCall, names: Sequence[str]) -> InputTensor | None:
    """Returns the tensor under the first of some names; None where the call has none."""
    return next(iter(_tensors(call, names)), None)


def number_named(call: RecipeCall, names: Sequence[str]) -> int | None:
    """Returns the number under the first of some names; None where the call has none."""
    for name in call.named(*names):
        value = call.value(name)
        if isinstance(value, int):
            return value
    return None


def read_pool(call: RecipeCall, name: str, *, rank: int, block_dim: int) -> Pool:
    """Reads the sizes of a cache off its dims.

    Args:
        call: Has the cache.
        name: Argument that is the cache, of keys where there are two.
        rank: Dimensions of its layout.
        block_dim: The one that runs over the tokens of a block.

    Raises:
        RecipeError: The cache has another layout.
    """
    dims = call.tensor(name).dims
    if len(dims) != rank:
        raise RecipeError(f"{name} of {call.op} has {rank} dimensions, recorded is {dims}")
    return Pool(dims[0], dims[block_dim])


def require_paged_keys(call: RecipeCall) -> None:
    """Checks that there is an argument for the keys of each sequence, and one for their blocks.

    Raises:
        RecipeError: There is none, under any of the names that engines give it.
    """
    call.require(*KEY_LENGTHS, *PAGE_STARTS, *KEY_STARTS)
    call.require(*BLOCK_TABLES, *PAGES)


def choose_paged(
    call: RecipeCall,
    pool: Pool,
    sequences: int,
    queries: int | None,
    *,
    decode: bool = False,
    limit: int | None = None,
) -> Batch:
    """Chooses lengths that the pool, the table, the pages and the recorded maximum hold.

    Args:
        call: Has the annotation, gets the assumptions.
        pool: Where the keys are.
        sequences: B.
        queries: Tokens that the operator computes.
        decode: True if the operator serves generating sequences alone.
        limit: Keys of a sequence that the operator has room for, besides.

    Raises:
        RecipeError: No batch of this size fits.
    """
    each = pool.blocks // max(sequences, 1)
    for table in _tensors(call, BLOCK_TABLES):
        each = min(each, table.dims[1])
    for pages in _tensors(call, PAGES):
        each = min(each, pages.numel // max(sequences, 1))
    longest = min(each * pool.block_size, limit or each * pool.block_size)
    recorded = number_named(call, LONGEST_KEYS)
    exact = recorded if recorded is not None and 0 < recorded <= longest else None
    return choose_batch(
        call,
        sequences,
        queries,
        longest=longest if exact is None else exact,
        longest_query=number_named(call, LONGEST_QUERY),
        exact=exact is not None,
        decode=decode,
    )


def write_queries(call: RecipeCall, batch: Batch) -> None:
    """Writes where the queries of each sequence begin."""
    starts = block.query_start_loc(batch.query_lens)
    for tensor in _tensors(call, QUERY_STARTS):
        tensor.write(padded(starts, tensor, fill=int(starts[-1])))


def write_keys(call: RecipeCall, batch: Batch, pool: Pool | None, *, appended: int = 0) -> str:
    """Writes how many keys each sequence has and where they are; returns what to tell of it.

    Args:
        call: Gets the values.
        batch: The sequences.
        pool: The cache; None where the keys of all sequences lie one after the other.
        appended: Keys of each sequence that the operator itself puts into the cache, at the end.

    Raises:
        RecipeError: A tensor has another size.
        ValueError: The pool, the table or the pages are too small.
    """
    lengths = _tensors(call, KEY_LENGTHS)
    for tensor in lengths:
        tensor.write(padded((batch.seq_lens - appended).clamp_(min=0), tensor))
    starts = block.query_start_loc(batch.seq_lens)
    for tensor in _tensors(call, KEY_STARTS):
        # Beside the lengths of a paged cache it is a dummy, which engines leave at zero.
        dummy = pool is not None and bool(lengths)
        tensor.write(padded(torch.zeros_like(starts) if dummy else starts, tensor))
    if pool is None:
        return f"{int(starts[-1])} keys in a row"
    for table in _tensors(call, BLOCK_TABLES):
        held = batch.seq_lens.to(table.device)
        made = block.block_table(held, pool.block_size, pool.blocks, width=table.dims[1]).table
        table.write(made.to(table.dtype))
    _write_pages(call, batch, pool)
    return f"blocks distinct in [0, {pool.blocks})"


def padded(values: torch.Tensor, tensor: InputTensor, *, fill: int = 0) -> torch.Tensor:
    """Returns values in the dtype and dims of a buffer, with `fill` after the last one.

    Raises:
        RecipeError: There are more values than the buffer holds.
    """
    if values.numel() > tensor.numel:
        raise RecipeError(f"{values.numel()} values for a tensor of {tensor.numel} elements")
    made = torch.full((tensor.numel,), fill, dtype=tensor.dtype, device=values.device)
    made[: values.numel()] = values
    return made.view(tensor.dims)


def _write_pages(call: RecipeCall, batch: Batch, pool: Pool) -> None:
    pages = tensor_named(call, PAGES)
    if pages is None:
        return
    held = batch.seq_lens.to(pages.device)
    made = block.block_csr(held, pool.block_size, pool.blocks, length=pages.numel)
    pages.write(padded(made.kv_indices, pages))
    for tensor in _tensors(call, PAGE_STARTS):
        tensor.write(padded(made.kv_indptr, tensor, fill=int(made.kv_indptr[-1])))
    for tensor in _tensors(call, LAST_PAGES):
        tensor.write(padded(made.kv_last_page_len, tensor, fill=1))


def _tensors(call: RecipeCall, names: Sequence[str]) -> list[InputTensor]:
    return [call.tensor(name) for name in call.named(*names) if call.has_tensor(name)]
