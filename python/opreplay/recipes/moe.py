"""Mixtures of experts: distinct experts for each token, and the sorted tables made from them."""

from __future__ import annotations

from typing import cast

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.parameters import Parameter
from opreplay.recipes.registry import recipe
from opreplay.tables.moe import Distribution, Routing, moe_sorting, topk_routing

__all__: list[str] = []

PARAMETERS = (
    Parameter(
        "moe.distribution", "uniform", "how tokens choose experts",
        ("uniform", "zipf", "balanced", "one_hot"),
    ),
    Parameter("moe.s", 0.5, "exponent of zipf"),
)  # fmt: skip


@recipe("_moe_C::moe_align_block_size", parameters=PARAMETERS)
def align_block_size(call: RecipeCall) -> str:
    """Experts of a token are distinct and uniform."""
    ids, experts = call.tensor("topk_ids"), call.value("num_experts")
    tokens, top_k = ids.dims
    routing = _routing(call, tokens, experts, top_k)
    ids.write(routing.topk_ids.to(ids.dtype))
    told = f"{tokens} tokens of {top_k} of {experts} experts, {call.parameter('moe.distribution')}"
    for expert_map in call.present("maybe_expert_map"):
        expert_map.write_list(range(expert_map.numel))
        told += ", all local"
    return told


@recipe("aiter::ck_moe_stage1", "aiter::ck_moe_stage2", parameters=PARAMETERS)
def ck_moe_stage(call: RecipeCall) -> str:
    """Both stages read the table of `moe_sorting`: token and slot of each pair, by expert."""
    first = call.op.endswith("stage1")
    # The second stage's input has a row for each pair: [M, K, inter].
    tokens = call.tensor("hidden_states" if first else "inter_states").dims[0]
    experts = call.tensor("w1").dims[0]
    top_k, block_size = call.value("topk"), call.value("block_m")
    sorted_ids, sorted_experts = call.tensor("sorted_token_ids"), call.tensor("sorted_expert_ids")
    valid = call.tensor("num_valid_ids")
    if sorted_experts.numel != -(-sorted_ids.numel // block_size):
        raise RecipeError(
            f"{sorted_ids.numel} sorted ids in blocks of {block_size} have "
            f"{-(-sorted_ids.numel // block_size)} experts, recorded are {sorted_experts.numel}"
        )
    routing = _routing(call, tokens, experts, top_k)
    table = moe_sorting(
        routing.topk_ids,
        routing.topk_weights,
        experts,
        block_size,
        length=sorted_ids.numel,
        unused_expert=0,  # A block after the last is not computed, yet may be prefetched.
    )
    sorted_ids.write(table.sorted_ids)
    sorted_experts.write(table.sorted_expert_ids[: sorted_experts.numel])
    valid.write(table.num_valid_ids[: valid.numel])
    for weights in call.present("sorted_weights"):
        weights.write(table.sorted_weights)
    call.fill_floats(0.5, 1.5, "w1_scale", "w2_scale", "a1_scale", "a2_scale")
    return (
        f"{tokens} tokens of {top_k} of {experts} experts, {call.parameter('moe.distribution')}; "
        f"{routing.stats().active_experts} active, "
        f"{int(table.num_valid_ids[0])} rows in blocks of {block_size}"
    )


def _routing(call: RecipeCall, tokens: int, experts: int, top_k: int) -> Routing:
    distribution = cast("Distribution", call.parameter("moe.distribution"))
    s = float(call.parameter("moe.s"))
    return topk_routing(tokens, experts, top_k, distribution=distribution, s=s)
