"""TraceLens' initializers as recipes: a `CustomInit` comes in, a recipe of the user goes out."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import torch

from opreplay.recipes import (
    Recipe,
    RecipeCall,
    RecipeError,
    find_recipe,
    list_recipes,
    register_recipe,
    remove_recipe,
)
from opreplay.recipes.parameters import read_parameters
from opreplay.recipes.registry import RecipeFunction
from opreplay.trace.event_dicts import annotate_batches, batch_fields
from opreplay.tracelens.replay_ir import ReplayIr, kwarg_only_names, replay_ir, schema_of

__all__ = [
    "CustomInit",
    "MoeRoutingInit",
    "PagedAttentionInit",
    "Replayer",
    "custom_init_of",
    "extract_batch_context",
    "init_recipe",
    "list_custom_inits",
    "recipe_parameters",
    "register_custom_init",
    "remove_custom_init",
    "zeros_recipe",
]

_PARAMETERS = {"moe_distribution": "moe.distribution", "moe_zipf_s": "moe.s"}
"""Names of recipe parameters by TraceLens' names."""


class Replayer(Protocol):
    """What an initializer works on."""

    event: Mapping[str, Any]
    """The event; ``batch_context`` is there if the batch of its step is known."""
    event_replay_IR: ReplayIr
    """Name, schema type and description of each argument."""
    device: str
    """Where the tensors lie."""
    args: list[Any]
    """Arguments passed by place, tensors filled."""
    kwargs: dict[str, Any]
    """Arguments that the schema takes by keyword alone."""

    def take(self, call: RecipeCall) -> None:
        """Takes over the arguments of a materialised call."""


class CustomInit(ABC):
    """Fills the tensors of some operators; to be subclassed and registered."""

    op_patterns: ClassVar[list[str]] = []
    """Exact operator names."""

    @abstractmethod
    def initialize(self, replayer: Any, **kwargs: Any) -> str | None:
        """Changes ``replayer.args`` and ``replayer.kwargs`` in place.

        Args:
            replayer: Has what `Replayer` lists.
            **kwargs: The `init_kwargs` of the `EventReplayer`.

        Returns:
            One line on what was chosen.
        """


class _BuiltInInit(CustomInit):
    """Stands for the recipe that opreplay has for an operator."""

    def initialize(self, replayer: Any, **kwargs: Any) -> str | None:
        """Fills with opreplay's recipe, so that a subclass can go on from there."""
        call: RecipeCall = replayer.recipe_call
        found = _built_in(call.op)
        if found is None:
            raise RecipeError(f"opreplay has no recipe for {call.op}")
        call.choose(read_parameters(found.parameters, recipe_parameters(kwargs)))
        summary = found.function(call)
        replayer.take(call)
        return summary


class PagedAttentionInit(_BuiltInInit):
    """Distinct blocks, lengths and query starts of decode attention."""

    op_patterns: ClassVar[list[str]] = [
        "_rocm_C::paged_attention",
        "_C::paged_attention_v1",
        "_C::paged_attention_v2",
    ]


class MoeRoutingInit(_BuiltInInit):
    """Sorted tables of distinct experts; ``moe_distribution`` and ``moe_zipf_s`` choose."""

    op_patterns: ClassVar[list[str]] = ["aiter::ck_moe_stage1", "aiter::ck_moe_stage2"]


_BUILT_IN: tuple[CustomInit, ...] = (PagedAttentionInit(), MoeRoutingInit())
_registered: dict[RecipeFunction, CustomInit] = {}


def register_custom_init(init: CustomInit) -> None:
    """Registers an initializer; it beats opreplay's recipes and those registered before it.

    Raises:
        ValueError: It has no `op_patterns`, or one of them is no exact operator name.
    """
    if not init.op_patterns:
        raise ValueError(f"{type(init).__name__}.op_patterns names no operator")
    function = _as_recipe(init)
    for made in [_recipe(function, op) for op in init.op_patterns]:
        register_recipe(made)
    _registered[function] = init


def remove_custom_init(init: CustomInit) -> None:
    """Takes an initializer back, so that what it beat is used again.

    Raises:
        KeyError: It is not registered.
    """
    functions = [function for function, known in _registered.items() if known is init]
    if not functions:
        raise KeyError(f"{init!r} is not registered")
    for function in functions:
        remove_recipe(function)
        del _registered[function]


def list_custom_inits() -> list[tuple[str, list[str]]]:
    """Returns class names and operators of all initializers, those that win first."""
    inits = (*reversed(_registered.values()), *_BUILT_IN)
    return [(type(init).__name__, list(init.op_patterns)) for init in inits]


def extract_batch_context(analyzer: Any) -> int:
    """Writes the batch of the enclosing engine step into paged attention's events.

    Args:
        analyzer: Anything whose ``tree.events`` are the events of a trace.

    Returns:
        How many events were given a ``"batch_context"``.
    """
    return annotate_batches(analyzer.tree.events, frozenset(PagedAttentionInit.op_patterns))


def custom_init_of(op: str) -> CustomInit | None:
    """Returns the registered initializer of an operator; None where a recipe or none serves it."""
    found = find_recipe(op)
    return None if found is None else _registered.get(found.function)


def init_recipe(init: CustomInit, op: str, replayer: Replayer, kwargs: Mapping[str, Any]) -> Recipe:
    """Returns the recipe that has an initializer fill the arguments of one replayer."""
    return _recipe(_as_recipe(init, replayer, kwargs), op)


def zeros_recipe(op: str) -> Recipe:
    """Returns the recipe for an operator whose integers shall be zero, as without initializers."""
    return _recipe(_leave_zeros, op)


def recipe_parameters(kwargs: Mapping[str, Any]) -> dict[str, str]:
    """Returns `init_kwargs` by the names of recipe parameters, as text."""
    return {_PARAMETERS.get(name, name): str(value) for name, value in kwargs.items()}


class _Arguments:
    """What an initializer works on where there is no `EventReplayer`: a run of a trace or plan."""

    def __init__(self, call: RecipeCall) -> None:
        fields = {} if call.batch is None else {"batch_context": batch_fields(call.batch)}
        self.event: Mapping[str, Any] = {"name": call.op, **fields}
        keywords = kwarg_only_names(call.op, call.overload)
        schema = schema_of(call.op, call.overload)
        types = {} if schema is None else {a.name: str(a.type) for a in schema.arguments}
        arguments = [(name, types.get(name, ""), call.value(name)) for name in call.names]
        self.event_replay_IR = replay_ir(arguments, keywords)
        tensors = call.present(*call.names)
        self.device = str(tensors[0].device) if tensors else "cpu"
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self._keywords = keywords

    def take(self, call: RecipeCall) -> None:
        self.recipe_call = call
        self.args = [call.value(name) for name in call.names if name not in self._keywords]
        self.kwargs = {name: call.value(name) for name in call.names if name in self._keywords}


def _as_recipe(
    init: CustomInit,
    replayer: Replayer | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> RecipeFunction:
    @functools.wraps(init.initialize)
    def fill(call: RecipeCall) -> str | None:
        _fill_zeros(call)
        for name in call.names:
            for tensor in call.present(name):
                tensor.fill()
        target: Replayer = _Arguments(call) if replayer is None else replayer
        target.take(call)
        summary = init.initialize(target, **(kwargs or {}))
        if replayer is None:
            _put_back(call, target)
        return summary

    return fill


def _leave_zeros(call: RecipeCall) -> None:
    _fill_zeros(call)
    call.assume("no initializer ran: integers are zero")


def _fill_zeros(call: RecipeCall) -> None:
    """Zeros in all integers that the operator reads, as TraceLens has them."""
    for name in call.names:
        for tensor in call.present(name):
            if not tensor.is_real:
                tensor.fill_integers(0, 1)


def _put_back(call: RecipeCall, target: Replayer) -> None:
    """Has the call use the tensors that an initializer put in the place of others."""
    positional = [name for name in call.names if name not in target.kwargs]
    for name, value in (*zip(positional, target.args, strict=True), *target.kwargs.items()):
        if value is call.value(name):
            continue
        if not isinstance(value, torch.Tensor):
            raise RecipeError(
                f"the initializer put {value!r} in the place of argument {name!r}; a run of a "
                "trace or plan takes other tensors only"
            )
        call.replace(name, value)


def _recipe(function: RecipeFunction, op: str) -> Recipe:
    """A recipe of the user, that says of the operator what the one it beats says."""
    beaten = _built_in(op) or Recipe(function, (op,), (), "user")
    # An initializer may read the batch, which stands on its event.
    return replace(beaten, function=function, ops=(op,), origin="user", reads_step=True)


def _built_in(op: str) -> Recipe | None:
    """The recipe that serves an operator unless the user registers another one."""
    below = [known for known in list_recipes() if op in known.ops and known.origin != "user"]
    return max(below, key=lambda known: known.origin == "plug-in") if below else None
