"""What recipes of MoE operators share: a call comes in, its routing and a line on it go out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch

from opreplay.recipes.call import InputTensor, RecipeCall, RecipeError
from opreplay.recipes.parameters import Parameter
from opreplay.recipes.symbols import Sizes, Symbols
from opreplay.tables.load import load_stats
from opreplay.tables.moe import Distribution, Routing, topk_routing

__all__ = [
    "EXPERT_MAP",
    "EXPERT_MASK",
    "PARAMETERS",
    "TOPK_IDS",
    "TOPK_WEIGHTS",
    "WEIGHTS",
    "Experts",
    "describe",
    "draw",
    "fill_quantized",
    "found",
    "moe_symbols",
    "number",
    "tensor",
]

PARAMETERS = (
    Parameter(
        "moe.distribution", "uniform", "how tokens choose experts",
        ("uniform", "zipf", "balanced", "one_hot", "power_law", "hot", "histogram"),
    ),
    Parameter("moe.s", 0.5, "exponent of zipf"),
    Parameter("moe.alpha", 1.01, "exponent of power_law"),
    Parameter("moe.hot", 0, "active experts of hot"),
    Parameter("moe.histogram", "", "file with the load of each expert, for histogram"),
)  # fmt: skip

TOPK_IDS = ("topk_ids", "topk_id", "topk_indices", "token_expert_ids")
TOPK_WEIGHTS = ("topk_weights", "topk_weight")
WEIGHTS = ("w1", "w13", "w13_packed", "gate", "WQ", "b_q_weight", "b_q_weights", "b_qweight", "W")
EXPERT_MAP = ("expert_map", "maybe_expert_map")
EXPERT_MASK = ("expert_mask", "local_expert_mask")

_PACKED = (
    *WEIGHTS, "w2", "w2_packed", "down", "q_weight", "b_gptq_qzeros", "b_qzeros",
    "b_zeros_or_none", "b_zeros", "b_tensors", "b", "hidden_states",
    "inter_states", "input", "XQ", "X", "a_tensors", "a",
)  # fmt: skip
"""Operands that may be quantised: bytes or words whose bits are the values."""


@dataclass(frozen=True, slots=True)
class Experts:
    """How many experts tokens choose from, and how many of these are on this rank."""

    total: int
    here: int

    def __post_init__(self) -> None:
        """Refuses a rank with more experts than there are."""
        if not 0 < self.here <= self.total:
            raise RecipeError(f"{self.here} experts are here, of {self.total} in all")

    @property
    def all_here(self) -> bool:
        """True without expert parallelism."""
        return self.here == self.total

    @classmethod
    def of_rank(cls, call: RecipeCall, total: int, here: int) -> Experts:
        """The experts of one rank of several; which ones it has is a guess."""
        experts = cls(total, here)
        if not experts.all_here:
            call.assume(f"nothing tells which of {total} experts are here, the first {here} were")
        return experts

    def local_ids(self) -> list[int]:
        """Number of each expert on this rank, -1 for those of other ranks; the first are here."""
        return [expert if expert < self.here else -1 for expert in range(self.total)]


_BY_TOKEN = (
    "input", "output", "hidden_states", "inter_states", "out", *TOPK_IDS, *TOPK_WEIGHTS,
)  # fmt: skip
"""[tokens, ...]; of those with three dimensions, slots are dim 1."""
_BY_EXPERT = ("w1", "w2", "w13", "w13_bias", "w2_bias", "w1_bias")
"""[experts, ...]."""


def moe_symbols(
    resize_tables: Callable[[Sizes, int, int, int, int, int, int], None] | None = None,
) -> Symbols:
    """Returns the symbols of a layer, or of a part of it, that has the weights of all experts.

    Args:
        resize_tables: Changes the tables of sorted pairs; gets recorded and new tokens, recorded
            and new experts, recorded and new slots.
    """

    def resize(sizes: Sizes, wanted: Mapping[str, int]) -> None:
        tokens, experts = sizes.dim(_BY_TOKEN, 0), sizes.dim(_BY_EXPERT, 0)
        rows = {name: sizes.dims[name][0] for name in sizes.named(_BY_TOKEN)}
        if set(rows.values()) != {tokens}:
            told = ", ".join(f"{name} has {count}" for name, count in rows.items())
            raise ValueError(f"{sizes.op} has rows of different numbers of tokens: {told}")
        slotted = [name for name in rows if len(sizes.dims[name]) == 3]
        slotted += sizes.named((*TOPK_IDS, *TOPK_WEIGHTS))
        if not slotted:
            raise ValueError(f"nothing tells the slots of a token of {sizes.op}")
        slots = sizes.dim(slotted, 1)
        new = wanted.get("num_tokens", tokens)
        total, top_k = wanted.get("num_experts", experts), wanted.get("top_k", slots)
        if top_k > total:
            raise ValueError(f"{top_k} slots of a token do not find {total} distinct experts")
        sizes.resize(_BY_TOKEN, 0, new)
        sizes.resize(slotted, 1, top_k)
        sizes.resize(_BY_EXPERT, 0, total)
        sizes.set_numbers(("topk",), top_k)
        sizes.set_numbers(("num_experts", "global_num_experts"), total)
        if resize_tables is not None:
            resize_tables(sizes, tokens, new, experts, total, slots, top_k)

    return Symbols(("num_tokens", "num_experts", "top_k"), resize)


def found(call: RecipeCall, *names: str) -> str | None:
    """Returns the first argument that has one of these names and is not None."""
    return next((name for name in call.named(*names) if call.has(name)), None)


def tensor(call: RecipeCall, *names: str) -> InputTensor:
    """Returns the tensor argument that has one of these names.

    Raises:
        RecipeError: There is none; the text lists the names that are there.
    """
    return call.tensor(found(call, *names) or names[0])


def number(call: RecipeCall, *names: str) -> int | None:
    """Returns the integer argument that has one of these names; None where there is none."""
    name = found(call, *names)
    return None if name is None else int(call.value(name))


def draw(
    call: RecipeCall, tokens: int, experts: int, top_k: int, *, device: torch.device
) -> Routing:
    """Draws experts for each token as the parameters of the recipe say."""
    return topk_routing(
        tokens,
        experts,
        top_k,
        distribution=cast("Distribution", call.parameter("moe.distribution")),
        s=float(call.parameter("moe.s")),
        alpha=float(call.parameter("moe.alpha")),
        hot=int(call.parameter("moe.hot")),
        histogram=str(call.parameter("moe.histogram")) or None,
        seed=call.seed,
        device=device,
    )


def describe(
    call: RecipeCall, routing: Routing, experts: Experts, *, block: int | None = None
) -> str:
    """Says in a line how the experts here are loaded, and how many rows their blocks have."""
    tokens, top_k = routing.topk_ids.shape
    counts = torch.bincount(routing.topk_ids.flatten(), minlength=experts.total)[: experts.here]
    stats = load_stats(counts)
    here = "" if experts.all_here else f", {experts.here} here"
    told = (
        f"{tokens} tokens of {top_k} of {experts.total} experts{here}, {distribution(call)}; "
        f"{stats.active_experts} active, max/mean load {stats.max_over_mean:.2f}"
    )
    if block is None:
        return told
    rows = int((counts + (block - 1)).div(block, rounding_mode="floor").sum()) * block
    return f"{told}; {rows} rows in blocks of {block} for {stats.real_rows} pairs"


def distribution(call: RecipeCall) -> str:
    """Names the distribution with the parameter that shapes it."""
    name = str(call.parameter("moe.distribution"))
    shape = {"zipf": "s", "power_law": "alpha", "hot": "hot", "histogram": "histogram"}.get(name)
    return name if shape is None else f"{name} {call.parameter(f'moe.{shape}')}"


def fill_quantized(call: RecipeCall) -> None:
    """Gives quantised operands random bits, and scales, which must be positive, values near one."""
    for operand in call.present(*call.named(*_PACKED)):
        if not operand.is_real and operand.dtype.itemsize <= 4:
            operand.fill_integers(-(1 << 31), 1 << 31)
    call.fill_floats(0.5, 1.5, *(name for name in call.names if _is_scale(name)))


def _is_scale(name: str) -> bool:
    return "scale" in name.lower() or name in ("alpha", "alphas")
