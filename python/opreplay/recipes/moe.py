"""Mixtures of experts: distinct experts for each token, where the operator sorts them itself."""

from __future__ import annotations

import torch

from opreplay.recipes.call import InputTensor, RecipeCall, RecipeError
from opreplay.recipes.moe_routing import (
    EXPERT_MAP,
    EXPERT_MASK,
    PARAMETERS,
    TOPK_IDS,
    TOPK_WEIGHTS,
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
from opreplay.tables.moe import Routing, moe_align_block_size, moe_sorting

__all__: list[str] = []


@recipe(
    "_C::cpu_fused_moe",
    "_C::cpu_fused_moe_int8",
    "_C::fused_experts_cpu",
    "_C::dynamic_4bit_int_moe",
    "_C::ggml_moe_a8_vec",
    "_C::get_cutlass_moe_mm_data",
    "_moe_C::moe_permute",
    "_moe_C::moe_permute_with_scratch",
    "_moe_C::moe_sum",
    "vllm::inplace_fused_experts",
    "vllm::outplace_fused_experts",
    "vllm::rocm_aiter_fused_moe",
    "vllm::rocm_aiter_asm_moe_tkw1",
    "sglang::inplace_fused_experts",
    "sglang::outplace_fused_experts",
    "sgl_kernel::prepare_moe_input",
    "sgl_kernel::get_cutlass_w4a8_moe_mm_data",
    "aiter::fused_moe_",
    "aiter::fhmoe_",
    "aiter::mxfp4_moe_sort",
    "aiter::mxfp4_moe_sort_quant",
    "aiter::moe_smoothquant_fwd",
    parameters=PARAMETERS,
    symbols=moe_symbols(),
)
def routed_tokens(call: RecipeCall) -> str | None:
    """The operator sorts the tokens itself: only the choice of experts matters."""
    fill_quantized(call)
    if found(call, *TOPK_IDS) is None and call.op == "_moe_C::moe_sum":
        return None  # Without ids it adds up every slot.
    experts = _experts(call)
    routing = _route(call, experts)
    for given in call.present("problem_sizes1", "problem_sizes2"):
        if given.dims[0] != experts.total:
            raise RecipeError(
                f"problem_sizes has {given.dims[0]} experts, num_experts is {experts.total}"
            )
    return describe(call, routing, experts)


@recipe(
    "_moe_C::moe_align_block_size",
    "_moe_C::sgl_moe_align_block_size",
    "sgl_kernel::moe_align_block_size",
    "aiter::moe_align_block_size",
    parameters=PARAMETERS,
)
def align_block_size(call: RecipeCall) -> str:
    """Sorts pairs into blocks of one expert; the recorded buffers hold what is drawn."""
    bins: int = call.value("num_experts")
    # SGLang's kernel counts a bin for tokens of other ranks, except in its two oldest forms.
    extra = "cumsum_buffer" in call.names and "token_cnts_buffer" not in call.names
    experts = _experts(call, routed=bins - extra)
    routing = _route(call, experts)
    block, places = call.value("block_size"), call.tensor("sorted_token_ids")
    blocks = tensor(call, "experts_ids", "expert_ids")
    _check_blocks(places, blocks, block)
    mapped = found(call, *EXPERT_MAP)
    moe_align_block_size(  # Raises where the buffer is too short.
        routing.topk_ids,
        experts.total,
        block,
        expert_map=call.tensor(mapped).value if mapped else None,
        length=places.numel,
    )
    # Callers that leave the padding to themselves have written it before.
    pairs = routing.topk_ids.numel()
    places.fill_integers(pairs, pairs + 1)
    return describe(call, routing, experts, block=block)


@recipe("_moe_C::moe_lora_align_block_size", parameters=PARAMETERS)
def lora_align_block_size(call: RecipeCall) -> str:
    """Every token has an adapter, every adapter is enabled."""
    experts = _experts(call)
    routing = _route(call, experts)
    adapters = call.value("max_loras")
    call.tensor("token_lora_mapping").fill_integers(0, adapters)
    call.tensor("adapter_enabled").fill_integers(1, 2)
    ids = call.tensor("lora_ids")
    ids.write_list([place if place < adapters else -1 for place in range(ids.numel)])
    return f"{describe(call, routing, experts)}; adapters uniform in [0, {adapters})"


@recipe("aiter::moe_sorting_fwd", "aiter::moe_sorting_opus_fwd", parameters=PARAMETERS)
def sorting(call: RecipeCall) -> str:
    """Sorts pairs into blocks of one expert; the recorded buffers hold what is drawn."""
    experts = _experts(call)
    routing = _route(call, experts)
    places, block = call.tensor("sorted_token_ids"), call.value("unit_size")
    _check_blocks(places, call.tensor("sorted_expert_ids"), block)
    masked = found(call, *EXPERT_MASK)
    moe_sorting(  # Raises where the buffer is too short.
        routing.topk_ids,
        routing.topk_weights,
        call.value("num_experts"),
        block,
        expert_mask=call.tensor(masked).value if masked else None,
        length=places.numel,
    )
    return describe(call, routing, experts, block=block)


def _check_blocks(places: InputTensor, experts: InputTensor, block: int) -> None:
    if experts.numel != -(-places.numel // block):
        raise RecipeError(
            f"{places.numel} sorted ids in blocks of {block} have {-(-places.numel // block)} "
            f"experts, recorded are {experts.numel}"
        )


def _experts(call: RecipeCall, *, routed: int | None = None) -> Experts:
    """Reads how many experts there are off weights, maps and scalars, which must agree."""
    weights = found(call, *WEIGHTS, *(("x_scale",) if call.op.endswith("smoothquant_fwd") else ()))
    here = number(call, "n_local_expert")
    if weights is not None:
        here = call.tensor(weights).dims[0]
    told = routed or number(call, "num_experts", "n_expert", "global_num_experts", "NE")
    if told is not None and told < 1:  # vLLM's -1 stands for the experts that there are weights of.
        told = None
    mapped, masked = found(call, *EXPERT_MAP), found(call, *EXPERT_MASK)
    if mapped is not None:
        total = call.tensor(mapped).numel
        if told not in (None, total):
            raise RecipeError(f"{mapped} has {total} experts, the call names {told}")
        return Experts.of_rank(call, total, _known(call, here, mapped, total))
    if masked is not None:
        # Past the experts of all ranks the mask has one that stands for none.
        entries = call.tensor(masked).numel
        if here == entries:
            return Experts(entries, entries)
        return Experts.of_rank(call, entries - 1, _known(call, here, masked, entries - 1))
    if told is not None and here is not None and told != here:
        raise RecipeError(
            f"{weights} has {here} experts, the call names {told}, and no map says which are here"
        )
    if (known := told or here) is None:
        raise RecipeError(
            f"nothing tells the number of experts of {call.op}; it has {', '.join(call.names)}"
        )
    return Experts(known, known)


def _known(call: RecipeCall, here: int | None, name: str, total: int) -> int:
    if here is None:
        call.assume(f"{name}: nothing tells how many experts are here, all {total} were taken")
        return total
    return here


def _route(call: RecipeCall, experts: Experts) -> Routing:
    """Draws the experts of each token and writes all arguments that say so."""
    ids = tensor(call, *TOPK_IDS)
    if len(ids.dims) != 2:
        raise RecipeError(f"expected ids [tokens, top_k], recorded are {ids.dims}")
    tokens, top_k = ids.dims
    routing = draw(call, tokens, experts.total, top_k, device=ids.device)
    ids.write(routing.topk_ids.to(ids.dtype))
    for name in TOPK_WEIGHTS:
        for weights in call.present(name):
            weights.write(routing.topk_weights.view(weights.dims).to(weights.dtype))
    for mapped in call.present(*EXPERT_MAP):
        mapped.write_list(experts.local_ids())
    for masked in call.present(*EXPERT_MASK):
        masked.write_list([int(expert < experts.here) for expert in range(masked.numel)])
    for present in call.present("num_local_tokens"):
        present.fill_integers(tokens, tokens + 1)
    for order in call.present("token_expert_indices"):
        pairs = torch.arange(tokens * top_k, device=order.device)
        order.write(pairs.view(top_k, tokens).t().reshape(order.dims).to(order.dtype))
    return routing


@recipe(
    "_moe_C::topk_softmax",
    "_moe_C::topk_sigmoid",
    "_moe_C::topk_softplus_sqrt",
    "_moe_C::grouped_topk",
    "_C::hash_topk_cpu",
    "_C::biased_topk_cpu",
    "vllm::rocm_aiter_topk_softmax",
    "vllm::rocm_aiter_topk_sigmoid",
    "vllm::rocm_aiter_biased_grouped_topk",
    "vllm::rocm_aiter_grouped_topk",
    "sgl_kernel::topk_softmax",
    "sgl_kernel::topk_sigmoid",
    "sgl_kernel::moe_fused_gate",
    "aiter::topk_softmax",
    "aiter::_topk_softmax",
    "aiter::topk_softmax_asm",
    "aiter::topk_sigmoid",
    "aiter::biased_grouped_topk_hip",
    "aiter::grouped_topk",
    "aiter::moe_fused_gate",
    "aiter::_moe_fused_gate",
    "aiter::topk_gating_fwd",
)
def gating(call: RecipeCall) -> str:
    """Random logits choose experts about evenly; with equal ones all tokens would go the same way.

    Logits are left to the default of floats, as are biases: uniform in [-1, 1).
    """
    logits = tensor(call, "gating_output", "scores", "input")
    for padding in call.present("is_padding"):
        padding.fill_integers(0, 1)
    for table in call.present("tid2eid"):
        table.write_distinct(logits.dims[-1], over=[-1])
        for tokens in call.present("input_ids"):
            tokens.fill_integers(0, table.dims[0])
    return f"logits of {logits.dims[0]} tokens for {logits.dims[-1]} experts uniform in [-1, 1)"


@recipe("aiter::silu_and_mul_bias", "aiter::swiglu_and_mul_bias", "aiter::gelu_and_mul_bias")
def activation_with_bias(call: RecipeCall) -> str:
    """Each row has the bias of its expert."""
    experts = call.tensor("bias").dims[0]
    call.tensor("expert_ids").fill_integers(0, experts)
    return f"experts uniform in [0, {experts})"
