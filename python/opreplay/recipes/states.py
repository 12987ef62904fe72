"""States of sequences in Mamba and short convolutions: one for each, none twice."""

from __future__ import annotations

from opreplay.recipes.attention import (
    QUERY_STARTS,
    number_named,
    padded,
    tensor_named,
    write_queries,
)
from opreplay.recipes.call import InputTensor, RecipeCall, RecipeError
from opreplay.recipes.registry import Pools, recipe
from opreplay.recipes.sequences import UNBOUNDED_LENGTH, Batch, choose_batch

__all__: list[str] = []

STATES = ("ssm_states", "conv_states", "conv_state")
"""One state in each entry of dim 0."""
STATE_INDICES = ("cache_indices", "conv_state_indices", "state_indices")
"""int32 [B]: the state of each sequence."""


@recipe(
    "_C::selective_scan_fwd",
    "_C::causal_conv1d_fwd",
    "_C::causal_conv1d_update",
    "sgl_kernel::causal_conv1d_fwd",
    "sgl_kernel::causal_conv1d_update",
    "aiter::causal_conv1d_update",
    reads_step=True,
    pools=Pools(STATES, STATE_INDICES),
)
def sequence_states(call: RecipeCall) -> str:
    """States are distinct; sequences that generate have one already, new prompts have none."""
    told = []
    flags = call.present("has_initial_state")
    if tensor_named(call, QUERY_STARTS) is not None:
        batch = _batch(call)
        write_queries(call, batch)
        for tensor in flags:
            tensor.write(padded(batch.seq_lens > batch.query_lens, tensor))
        told.append(str(batch))
    else:
        for tensor in flags:
            tensor.fill_integers(1, 2)
    indices = tensor_named(call, STATE_INDICES)
    if indices is not None:
        told.append(_write_indices(call, indices))
    return "; ".join(told) or "each sequence has the state of its own row"


def _batch(call: RecipeCall) -> Batch:
    bounds, rows = tensor_named(call, QUERY_STARTS), call.present("u", "x")
    if bounds is None or not rows:
        raise RecipeError(f"{call.op} has no argument 'x'; it has {', '.join(call.names)}")
    tokens = rows[0].dims[-1]
    return choose_batch(call, bounds.numel - 1, tokens, longest=max(tokens, UNBOUNDED_LENGTH))


def _write_indices(call: RecipeCall, indices: InputTensor) -> str:
    states = tensor_named(call, STATES)
    if states is None:
        raise RecipeError(f"{call.op} has no states; it has {', '.join(call.names)}")
    count = states.dims[0]
    null = number_named(call, ("pad_slot_id", "null_block_id"))
    usable = count - (null is not None and 0 <= null < count)
    if indices.numel > usable:
        raise RecipeError(f"{indices.numel} sequences for {usable} states")
    indices.write_distinct(usable)
    if usable < count and null is not None:
        # A sequence in the null state is skipped.
        indices.unfilled.add_((indices.unfilled >= null).to(indices.dtype))
    return f"states distinct in [0, {count})"
