"""New tokens: where they are written in a paged cache, and their positions; and reads in bulk."""

from __future__ import annotations

import torch

from opreplay.recipes.attention import BLOCK_TABLES, SCALES, Pool, padded, read_pool, tensor_named
from opreplay.recipes.call import InputTensor, RecipeCall, RecipeError
from opreplay.recipes.lengths import split, starts
from opreplay.recipes.registry import Pools, recipe
from opreplay.recipes.sequences import Batch, choose_batch
from opreplay.tables import block

__all__: list[str] = []

SLOTS = ("slot_mapping", "out_cache_loc", "out_loc", "kv_cache_loc", "cache_loc", "loc", "indices")
"""Integers [T]: block times block size, plus the offset; a negative one is skipped."""
POSITIONS = ("positions", "position_ids", "pos_ids", "pos")
"""Integers [T], or [3, T] for text and image, or [rows, columns] of T tokens: rows of the table of
cosines and sines."""
CACHES = ("key_cache", "value_cache", "kv_cache", "k_cache", "v_cache", "k_out", "v_out",
          "k_dequant_scales", "v_dequant_scales", "k_buffer", "v_buffer")  # fmt: skip
POOLS = Pools(CACHES, SLOTS)


@recipe(
    "_C_cache_ops::reshape_and_cache",
    "_C::reshape_and_cache",
    "aiter::reshape_and_cache",
    "aiter::reshape_and_cache_with_pertoken_quant",
    "aiter::reshape_and_cache_with_block_quant",
    "aiter::reshape_and_cache_with_block_quant_for_asm_pa",
    reads_step=True,
    pools=POOLS,
)
def reshape_and_cache(call: RecipeCall) -> str:
    """Slots of a cache [blocks, heads, D / x, block, x]."""
    return _write_tokens(call, read_pool(call, "key_cache", rank=5, block_dim=3))


@recipe(
    "_C_cache_ops::reshape_and_cache_flash",
    "_C::reshape_and_cache_flash",
    "aiter::reshape_and_cache_flash",
    reads_step=True,
    pools=POOLS,
)
def reshape_and_cache_flash(call: RecipeCall) -> str:
    """Slots of a cache [blocks, block, heads, D]."""
    return _write_tokens(call, read_pool(call, "key_cache", rank=4, block_dim=1))


@recipe(
    "_C_cache_ops::concat_and_cache_mla",
    "_C::concat_and_cache_mla",
    "_C_cache_ops::concat_and_cache_mla_rope_fused",
    "_C_cache_ops::indexer_k_quant_and_cache",
    "_C::indexer_k_quant_and_cache",
    "aiter::concat_and_cache_mla",
    "aiter::indexer_k_quant_and_cache",
    "aiter::fused_qk_rope_concat_and_cache_mla",
    reads_step=True,
    pools=POOLS,
)
def concat_and_cache_mla(call: RecipeCall) -> str:
    """Slots of a cache [blocks, block, D], or [blocks, block, 1, D]."""
    rank = 4 if len(call.tensor("kv_cache").dims) == 4 else 3
    return _write_tokens(call, read_pool(call, "kv_cache", rank=rank, block_dim=1))


@recipe("_C::cpu_attn_reshape_and_cache", reads_step=True, pools=POOLS)
def cpu_attn_reshape_and_cache(call: RecipeCall) -> str:
    """Slots of a cache [blocks, heads, block, D]."""
    return _write_tokens(call, read_pool(call, "key_cache", rank=4, block_dim=2))


@recipe(
    "sglang::store_cache",
    "sgl_kernel::store_kv_cache",
    "sgl_kernel::downcast_fp8",
    reads_step=True,
    pools=POOLS,
)
def store_cache(call: RecipeCall) -> str:
    """Slots of a cache that has a row for each token; pages are not in its dims."""
    name = "k_cache" if call.has_tensor("k_cache") else "k_out"
    return _write_tokens(call, Pool(call.tensor(name).dims[0], 1))


@recipe(
    "_C::rotary_embedding",
    "_C::batched_rotary_embedding",
    "_C::fused_qk_norm_rope",
    "sgl_kernel::rotary_embedding",
    "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
    "aiter::rotary_embedding_fwd",
    "aiter::batched_rotary_embedding",
    "aiter::rope_cached_positions_fwd_impl",
    "aiter::rope_cached_positions_2c_fwd_impl",
    reads_step=True,
    pools=POOLS,
)
def rotary_embedding(call: RecipeCall) -> str:
    """Positions, and the slots that some of these operators write as well."""
    buffers = call.present("k_buffer")
    if tensor_named(call, SLOTS) is None or not buffers:
        return _write_tokens(call, None)
    return _write_tokens(call, Pool(buffers[0].dims[0], 1))


def _write_tokens(call: RecipeCall, pool: Pool | None) -> str:
    """Writes the slots and the positions of new tokens, of the same sequences.

    Generating sequences write a token each, wherever they are; a prompt writes blocks of its own
    from its beginning on.

    Raises:
        RecipeError: There are more tokens than slots.
    """
    slots = tensor_named(call, SLOTS) if pool is not None else None
    positions = tensor_named(call, POSITIONS)
    if slots is None and positions is None:
        wanted = "slot_mapping" if pool is not None else "positions"
        raise RecipeError(f"{call.op} has no argument {wanted!r}; it has {', '.join(call.names)}")
    rows = None if positions is None else _rows(call)
    tokens = slots.numel if slots is not None else _tokens(positions)
    batch = _choose(call, tokens, rows=rows, pool=None if slots is None else pool)
    call.fill_floats(0.5, 1.5, *SCALES)
    for offsets in call.present("cos_sin_cache_offsets"):
        offsets.fill_integers(0, 1)
    told = [str(batch)]
    if slots is not None and pool is not None:
        slots.write(_slots(batch, pool, slots))
        told.append(f"slots distinct in [0, {pool.blocks * pool.block_size})")
    if positions is not None:
        made = block.positions(batch.seq_lens, batch.query_lens, total=_tokens(positions))
        shaped = made if positions.numel > made.numel() else made.view(positions.dims)
        positions.write(shaped.to(positions.device, positions.dtype).expand(positions.dims))
        told.append(f"positions in [0, {rows})")
    return "; ".join(told)


def _tokens(positions: InputTensor | None) -> int:
    """Returns the tokens that positions are for; those of text and image have three rows."""
    if positions is None:
        return 0
    three = len(positions.dims) == 2 and positions.dims[0] == 3
    return positions.dims[1] if three else positions.numel


def _choose(call: RecipeCall, tokens: int, *, rows: int | None, pool: Pool | None) -> Batch:
    """Chooses the sequences of an operator that sees their new tokens alone.

    Args:
        call: Has the annotation, gets the assumptions.
        tokens: New tokens of all sequences; those after the annotation's are padding.
        rows: Positions that there are; None where they do not matter.
        pool: The cache that the tokens are written to; None if they are not.

    Raises:
        RecipeError: There are more tokens than slots.
    """
    step = call.batch
    count = 0 if step is None else step.context.sequences + step.generation.sequences
    bounds = [] if rows is None else [rows]
    if pool is not None:
        if tokens > pool.blocks * pool.block_size:
            raise RecipeError(
                f"{tokens} tokens for a cache of {pool.blocks * pool.block_size} slots"
            )
        bounds.append(pool.blocks // max(count, 1) * pool.block_size)
    longest = max(min(bounds), 1)
    if count:
        return choose_batch(call, count, tokens, longest=longest)
    call.assume("the trace has no batch: the tokens are those of whole prompts, as long as can be")
    whole, rest = divmod(tokens, longest)
    lengths = torch.tensor([longest] * whole + [rest] * (rest > 0), dtype=torch.int32)
    return Batch(lengths, lengths)


def _slots(batch: Batch, pool: Pool, slots: InputTensor) -> torch.Tensor:
    longest = max(batch.seq_lens.tolist(), default=0)
    width = max(1, -(-longest // pool.block_size))
    table = block.block_table(batch.seq_lens, pool.block_size, pool.blocks, width=width).table
    made = block.slot_mapping(
        table, batch.seq_lens, batch.query_lens, pool.block_size, total=slots.numel
    )
    return made.view(slots.dims).to(slots.dtype)


def _rows(call: RecipeCall) -> int:
    """Returns the rows of the table of cosines and sines, which bound the positions."""
    for table in call.present("cos_sin_cache", "cos_cache", "cos", "freqs"):
        if table.dims[0]:
            return table.dims[0]
    raise RecipeError(f"{call.op} has no table of cosines with rows")


@recipe(
    "_C_cache_ops::gather_and_maybe_dequant_cache",
    "_C_cache_ops::gather_cache",
    "_C_cache_ops::cp_gather_cache",
    "_C_cache_ops::cp_gather_indexer_k_quant_cache",
    "_C_cache_ops::cp_gather_and_upconvert_fp8_kv_cache",
    "aiter::cp_gather_indexer_k_quant_cache",
    pools=Pools(("src_cache", "kv_cache"), BLOCK_TABLES),
)
def gather_cache(call: RecipeCall) -> str:
    """Sequences fill the rows that are gathered; each has blocks of its own."""
    name = "src_cache" if call.has_tensor("src_cache") else "kv_cache"
    dims = call.tensor(name).dims
    pool = read_pool(call, name, rank=max(3, len(dims)), block_dim=1)
    table = tensor_named(call, BLOCK_TABLES)
    if table is None:
        raise RecipeError(f"{call.op} has no block table; it has {', '.join(call.names)}")
    call.require("cu_seq_lens", "seq_lens")
    sequences, width = table.dims
    each = min(width, pool.blocks // max(sequences, 1)) * pool.block_size
    rows = _gathered(call, sequences * each)
    lengths = split(rows, sequences)
    if sequences > 1:
        call.assume("the trace has no lengths: the gathered rows are split evenly")
    held = torch.tensor(lengths, dtype=torch.int32)
    made = block.block_table(held, pool.block_size, pool.blocks, width=width).table
    table.write(made.to(table.dtype))
    sums = torch.tensor(starts(lengths), dtype=torch.int32)
    for tensor in call.present("cu_seq_lens"):
        tensor.write(padded(sums, tensor, fill=rows))
    for tensor in call.present("workspace_starts"):
        tensor.write(padded(sums[: tensor.numel], tensor))
    for tensor in call.present("seq_lens"):
        tensor.write(padded(held, tensor))
    for tensor in call.present("token_to_seq"):
        owner = torch.repeat_interleave(torch.arange(sequences), held)
        tensor.write(padded(owner, tensor))
    for tensor in call.present("seq_starts"):
        tensor.fill_integers(0, 1)
    call.fill_floats(0.5, 1.5, *SCALES)
    return f"{rows} rows of {sequences} sequences; blocks distinct in [0, {pool.blocks})"


def _gathered(call: RecipeCall, held: int) -> int:
    """Returns the rows that are gathered: as told, or all that the buffer and the blocks hold.

    Raises:
        RecipeError: More are told than the blocks hold.
    """
    room = call.tensor("dst" if call.has_tensor("dst") else "dst_k").dims[0]
    if call.has("num_tokens"):
        told = int(call.value("num_tokens"))
        if told > min(room, held):
            raise RecipeError(
                f"num_tokens is {told}, the buffer has {room} rows and the blocks hold {held}"
            )
        return told
    if room > held:
        call.assume(f"the buffer has {room} rows, of which the blocks fill {held}")
    return min(room, held)
