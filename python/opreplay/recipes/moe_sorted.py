"""Kernels that read pairs sorted by expert: the table that fits the buffers of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opreplay.recipes.call import InputTensor, RecipeCall, RecipeError
from opreplay.recipes.moe_routing import (
    PARAMETERS,
    WEIGHTS,
    Experts,
    describe,
    draw,
    fill_quantized,
    found,
    moe_symbols,
    number,
    tensor,
)
from opreplay.recipes.registry import recipe
from opreplay.recipes.symbols import Sizes
from opreplay.tables.moe import moe_align_block_size, moe_sorting

__all__: list[str] = []

SORTED_IDS = ("sorted_token_ids", "sorted_ids")
BY_EXPERT = (*WEIGHTS, "w2", "down", "smooth_scale")
"""[experts, ...]."""

USUAL_BLOCK = 32
"""Rows of a block where neither the call nor a buffer of it tells."""

LARGEST_BLOCK = 512
"""Rows of the largest block that is looked for where the call doesn't say how many it has."""

MOST_EXPERTS = 4096
"""Experts of all ranks that are looked for."""

Lengths = Callable[[int, int], tuple[int, ...]]
"""The lengths that an engine gives its buffers for some experts in blocks of some rows; the usual
one comes first."""


def _aiter_lengths(tokens: int, experts: int, top_k: int, block: int) -> tuple[int, ...]:
    """Lengths that aiter gives its buffers: for every expert, or for those that can be active."""
    adaptive = tokens * top_k + min(experts, tokens * top_k) * (block - 1)
    return tokens * top_k + experts * block - top_k, -(-adaptive // block) * block


def resize_sorted(
    sizes: Sizes, tokens: int, new: int, experts: int, total: int, slots: int, top_k: int
) -> None:
    """Makes the tables of sorted pairs as long as aiter does, by the formula that was recorded."""
    if "block_m" not in sizes.numbers:
        raise ValueError(f"nothing tells the rows of a block of {sizes.op}")
    block, length = sizes.numbers["block_m"], sizes.dim(SORTED_IDS, 0)
    known = _aiter_lengths(tokens, experts, slots, block)
    if length not in known:
        raise ValueError(
            f"{length} sorted ids are not what {tokens} tokens of {slots} of {experts} experts "
            f"have in blocks of {block}: {known[0]} or {known[1]}"
        )
    longer = _aiter_lengths(new, total, top_k, block)[known.index(length)]
    sizes.resize((*SORTED_IDS, "sorted_weights"), 0, longer)
    sizes.resize(("sorted_expert_ids",), 0, -(-longer // block))
    sizes.named(("num_valid_ids",))


@recipe(
    "aiter::ck_moe_stage1",
    "aiter::ck_moe_stage2",
    "aiter::moe_stage1_g1u1",
    "aiter::moe_cktile2stages_gemm1_ck",
    "aiter::moe_cktile2stages_gemm2_ck",
    "aiter::_opus_moe_stage1_a8w4_fwd_raw",
    "aiter::_opus_moe_stage2_a8w4_decode_fwd_raw",
    "aiter::fmoe",
    "aiter::fmoe_g1u1",
    "aiter::fmoe_g1u1_tkw1",
    "aiter::fmoe_g1u1_a16",
    "aiter::fmoe_int8_g1u0",
    "aiter::fmoe_int8_g1u0_a16",
    "aiter::fmoe_fp8_blockscale_g1u1",
    "aiter::moe_smooth_per_token_scaled_quant_v2",
    "aiter::fused_dynamic_mx_quant_moe_sort_hip",
    "aiter::mxfp4_moe_sort_hip",
    "aiter::mxfp4_moe_sort_scales",
    parameters=PARAMETERS,
    symbols=moe_symbols(resize_sorted),
)
def sorted_pairs(call: RecipeCall) -> str:
    """In aiter, kernels read the token and the slot of each pair, expert after expert."""
    ids = tensor(call, *SORTED_IDS)
    tokens, top_k = _aiter_pairs(call)
    told = number(call, "block_m", "block_size_M", "MB")
    # What only sorts scales has no weights, and no experts of blocks.
    by_block = found(call, *BY_EXPERT) is not None or call.has("sorted_expert_ids")
    blocks = call.tensor("sorted_expert_ids") if by_block else None

    def lengths(experts: int, block: int) -> tuple[int, ...]:
        return _aiter_lengths(tokens, experts, top_k, block)

    experts, block = _measure(call, blocks, told, lengths)
    routing = draw(call, tokens, experts.total, top_k, device=ids.device)
    mask = None
    if not experts.all_here:
        mask = (routing.topk_ids.new_tensor(experts.local_ids()) >= 0).int()
    table = moe_sorting(
        routing.topk_ids,
        routing.topk_weights,
        experts.total,
        block,
        expert_mask=mask,
        length=ids.numel,
        unused_expert=0,  # A block after the last is not computed, yet may be prefetched.
    )
    ids.write(table.sorted_ids)
    if blocks is not None:
        blocks.write(table.sorted_expert_ids[: blocks.numel])
    valid = tensor(call, "num_valid_ids", "max_token_ids", "cumsum_tensor")
    valid.write(table.num_valid_ids[: valid.numel])
    fill_quantized(call)
    for weights in call.present("sorted_weights", "topk_weight"):
        weights.write(table.sorted_weights[: weights.numel])
    return describe(call, routing, experts, block=block)


def _aiter_pairs(call: RecipeCall) -> tuple[int, int]:
    """Returns tokens and slots of each; the second stage's input has a row for each pair."""
    rows = tensor(call, "hidden_states", "inter_states", "input", "XQ", "scale", "a_scale").dims
    top_k, tokens = number(call, "topk"), number(call, "token_num")
    if top_k is None:
        results = found(call, "out", "Y")
        dims = call.tensor(results).dims if results else ()
        if len(dims) == 3:
            top_k = dims[1]
        elif tokens:
            top_k = max(1, rows[0] // tokens)
        else:
            raise RecipeError(f"nothing tells the slots of a token: rows are {rows}, out is {dims}")
    if tokens is None:
        second = len(rows) == 2 and ("stage2" in call.op or "gemm2" in call.op)
        if second and rows[0] % top_k:
            raise RecipeError(f"{rows[0]} rows are no whole tokens of {top_k} slots")
        tokens = rows[0] // top_k if second else rows[0]
    return tokens, top_k


@recipe(
    "_moe_C::moe_wna16_gemm",
    "_moe_C::moe_wna16_marlin_gemm",
    "_moe_C::marlin_gemm_moe",
    "sgl_kernel::moe_wna16_marlin_gemm",
    "_C::ggml_moe_a8",
    parameters=PARAMETERS,
)
def aligned_pairs(call: RecipeCall) -> str:
    """In vLLM and SGLang, kernels read the number of each pair, expert after expert."""
    ids = tensor(call, *SORTED_IDS)
    tokens, top_k = _vllm_pairs(call)
    # The first Marlin kernel counts the rows of each expert itself.
    counts_itself = call.has("topk_ids")
    blocks = None if counts_itself else tensor(call, "expert_ids", "experts_ids")

    def lengths(experts: int, block: int) -> tuple[int, ...]:
        pairs = tokens * top_k
        most = pairs + experts * (block - 1)
        # SGLang has room for one expert more, the one that stands for other ranks.
        return most, -(-most // block) * block, min(pairs * block, most), most + block - 1

    told = number(call, "moe_block_size", "BLOCK_SIZE_M")
    experts, block = _measure(call, blocks, told, lengths)
    routing = draw(call, tokens, experts.total, top_k, device=ids.device)
    expert_map = None
    if not experts.all_here:
        expert_map = routing.topk_ids.new_tensor(experts.local_ids())
    table = moe_align_block_size(
        routing.topk_ids,
        experts.total,
        block,
        expert_map=expert_map,
        # Marlin is told that blocks of other ranks are among the others, called -1.
        foreign="mark" if found(call, "is_ep") and call.value("is_ep") else "drop",
        length=ids.numel,
    )
    ids.write(table.sorted_token_ids)
    if blocks is not None:
        blocks.write(table.expert_ids)
    if not counts_itself:
        valid = tensor(
            call, "num_tokens_post_pad", "num_tokens_post_padded", "num_tokens_past_padded"
        )
        valid.write(table.num_tokens_post_padded)
    fill_quantized(call)
    for weights in call.present("topk_weights"):
        weights.write(routing.topk_weights.view(weights.dims).to(weights.dtype))
    for chosen in call.present("topk_ids"):
        chosen.write(routing.topk_ids.view(chosen.dims).to(chosen.dtype))
    for order in call.present("perm", "perm_or_none"):
        order.write_distinct(order.dims[-1], over=[-1])
    return describe(call, routing, experts, block=block)


def _vllm_pairs(call: RecipeCall) -> tuple[int, int]:
    """Returns tokens and slots of each, as output or weights have them.

    A layer's second product runs over the pairs of the first, each of one slot.
    """
    slots = number(call, "top_k", "topk") or 1
    rows = number(call, "size_m", "tokens")
    rows = tensor(call, "input", "a", "X").dims[0] if rows is None else rows
    shaped = found(call, "topk_weights", "output", "c_or_none")
    dims = call.tensor(shaped).dims if shaped else ()
    if len(dims) >= 2 and dims[0] * dims[1] == rows * slots:
        return dims[0], dims[1]
    return rows, slots


def _experts_here(call: RecipeCall) -> int | None:
    """Returns the experts that there are weights of, or that are told; all weights must agree."""
    counts = {name: call.tensor(name).dims[0] for name in BY_EXPERT if call.has_tensor(name)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise RecipeError(f"weights are of different numbers of experts: {told}")
    return next(iter(counts.values()), number(call, "NE"))


def _measure(
    call: RecipeCall, blocks: InputTensor | None, block: int | None, lengths: Lengths
) -> tuple[Experts, int]:
    """Finds the experts and the rows of a block that explain the lengths of the buffers.

    Args:
        call: The call.
        blocks: The buffer with an entry for each block, where the call has one.
        block: Rows of a block, where the call says so.
        lengths: The engine's lengths of the buffer with an entry for each row.

    Raises:
        RecipeError: Nothing does; the text has the numbers.
    """
    length, here = tensor(call, *SORTED_IDS).numel, _experts_here(call)
    if block is None and blocks is None:
        call.assume(f"nothing tells the rows of a block, {USUAL_BLOCK} were taken")
        block = USUAL_BLOCK
    sizes = [block] if block else list(range(1, LARGEST_BLOCK + 1))
    if blocks is not None:
        sizes = [size for size in sizes if blocks.numel == -(-length // size)]
        if block and not sizes:
            raise RecipeError(
                f"{length} sorted ids in blocks of {block} have {-(-length // block)} experts, "
                f"recorded are {blocks.numel}"
            )
    explained = next(_explanations(length, sizes, here, lengths), None)
    if explained is not None:
        total, size = explained
        if here is None:
            call.assume(f"nothing tells the experts, {total} explain the length of the table")
        return Experts.of_rank(call, total, here or total), size
    if block and here and length > lengths(here, block)[0]:
        call.assume(
            f"{here} experts in blocks of {block} have {lengths(here, block)[0]} sorted ids, the "
            f"other {length - lengths(here, block)[0]} were taken as padding"
        )
        return Experts(here, here), block
    there = f"{here or 'any number of'} experts in blocks of {block or 'any number of'} rows"
    usual = f", which have {lengths(here, block)[0]}" if block and here else ""
    raise RecipeError(f"{length} sorted ids do not fit {there}{usual}")


def _explanations(
    length: int, sizes: list[int], here: int | None, lengths: Lengths
) -> Iterator[tuple[int, int]]:
    """Yields experts and rows of a block that have this length, the likeliest first."""
    if here is not None:
        for likely in (slice(1), slice(1, None)):
            for size in sizes:
                if length in lengths(here, size)[likely]:
                    yield here, size
    # Under expert parallelism every rank has as many experts, and buffers for all of them.
    for size in sizes:
        for total in range(2 * here if here else 1, MOST_EXPERTS + 1, here or 1):
            usual = lengths(total, size)[0]
            if usual == length:
                yield total, size
            if usual >= length:
                break
