"""Makes the inputs of a resolved call: argument descriptions come in, filled tensors go out."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from opreplay.memory import default_memory_budget, free_memory
from opreplay.recipes import DefaultFill, InputTensor, Recipe, RecipeCall, RecipeError, find_recipe
from opreplay.recipes.parameters import own_parameters
from opreplay.recipes.tape import Tape
from opreplay.resolve.call import Argument, ResolvedCall, TensorSpec, TorchValue
from opreplay.trace.call import Skipped

__all__ = [
    "RUN_DEVICE",
    "DescribedInputs",
    "Inputs",
    "default_memory_budget",
    "describe_inputs",
    "free_memory",
    "make_inputs",
]

ATEN_INTEGERS = (1, 65)
"""Default range of integers in aten: no division by zero, every integer dtype holds it, and its
length is a power of two, which are the fastest ranges to fill."""

_QUANTIZED = {
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
    torch.quint4x2: torch.uint8,
    torch.quint2x4: torch.uint8,
}
"""Quantized dtypes, and the integers that hold their values."""

_QUANTIZED_PER_BYTE = {torch.quint4x2: 2, torch.quint2x4: 4}
"""Elements in a byte, where a byte holds several and the dtype's item size does not say so."""

_BIT_PATTERNS = {
    torch.bits1x8: torch.uint8,
    torch.bits2x4: torch.uint8,
    torch.bits4x2: torch.uint8,
    torch.bits8: torch.uint8,
    torch.bits16: torch.uint16,
} | {getattr(torch, f"{sign}int{bits}"): torch.uint8 for sign in ("", "u") for bits in range(1, 8)}
"""Dtypes without arithmetic, and the integers of the same size."""

_FILLED_AS = _QUANTIZED | _BIT_PATTERNS
"""Dtypes that no kernel fills, and the integers that their memory is filled as."""

_GIB = float(1 << 30)

RUN_DEVICE = "cpu:0"
"""The CPU where a recipe asks for the device of the call: a tensor does not keep the index, a
request for a device does, so that a tape can tell it from the plain CPU."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that a call is run with."""

    arguments: tuple[Any, ...]
    """Python values and tensors in schema order; lists are Python lists."""
    assumptions: tuple[str, ...]
    """Each guess that was made here, one sentence each."""
    recipe: str | None
    """One line on the values that a recipe chose; None where no recipe had to choose."""
    bytes: int
    """Bytes of all storages."""


@dataclass(frozen=True, slots=True)
class DescribedInputs:
    """How the arguments of a call get their values."""

    call: RecipeCall
    """Its tensors; `InputTensor.pending` says what is left to be filled."""
    tape: Tape
    """What the recipe ran."""
    on_cpu: frozenset[str]
    """Arguments that lie on the CPU whatever the device of the call."""
    seed: int
    """Every bit depends on it."""
    assumptions: tuple[str, ...]
    """Each guess that was made here, one sentence each."""
    recipe: str | None
    """One line on the values that a recipe chose; None where no recipe had to choose."""


def make_inputs(
    resolved: ResolvedCall,
    *,
    device: str,
    seed: int,
    memory_budget: int,
    copies: int = 0,
    parameters: Mapping[str, str] | None = None,
    recipe: Recipe | None = None,
) -> Inputs | Skipped:
    """Allocates and fills the arguments of a call.

    Where the tensors do not fit the budget, caches that the recipe declares get as many blocks as
    fit, all dims but the first as recorded; that is an assumption.

    Floats are uniform in [-1, 1). Where the operator has a recipe, the recipe chooses. Integers
    without one lie in `ATEN_INTEGERS` for aten and are zero for every other namespace, because
    zero is the index that exists in every table; that is an assumption. Bools are true or false
    with equal odds. Output buffers stay as allocated; tensors that the operator changes in place
    are read by it and filled like any other. Where the trace holds the values of all integers that
    the call reads, it gets those, unless a recipe of the user chooses.

    Args:
        resolved: The call.
        device: Where the tensors go, for instance ``"cpu"`` or ``"cuda:0"``.
        seed: Every bit depends on this and on the argument's place in the call, nothing else.
        memory_budget: Bytes that all storages and their copies may take.
        copies: How many copies of all storages will be made besides.
        parameters: What the user set for recipes, by name; names of other recipes are passed over.
        recipe: A recipe for this call alone; the default is the registered one, if there is one.

    Returns:
        The inputs; Skipped with ``over_memory_budget``, ``recipe_failed``, or
        ``backend_missing`` where the device has no tensors of a dtype.
    """
    recipe = recipe or find_recipe(resolved.resolved_op)
    begun = _begin(
        resolved, recipe, device, seed, memory_budget, copies, parameters or {}, nullcontext()
    )
    if isinstance(begun, Skipped):
        return begun
    call = begun.call
    with torch.inference_mode(mode=False), torch.no_grad():
        for name in call.names:
            for tensor in call.present(name):
                tensor.fill()
    arguments = tuple(
        call.replaced.get(argument.name, value)
        for argument, value in zip(resolved.arguments, begun.arguments, strict=True)
    )
    return Inputs(arguments, begun.assumptions, begun.recipe, begun.bytes)


def describe_inputs(
    resolved: ResolvedCall,
    *,
    seed: int,
    memory_budget: int,
    parameters: Mapping[str, str] | None = None,
) -> DescribedInputs | Skipped:
    """Finds out how `make_inputs` gives the arguments of a call their values, on any device.

    The recipe works on the CPU; what it runs is recorded, and tensors that no recipe reads are not
    filled. The parameters and what is returned instead are those of `make_inputs`.
    """
    tape = Tape()
    recipe = find_recipe(resolved.resolved_op)
    begun = _begin(resolved, recipe, RUN_DEVICE, seed, memory_budget, 0, parameters or {}, tape)
    if isinstance(begun, Skipped):
        return begun
    cpu = frozenset() if recipe is None else frozenset(recipe.cpu)
    return DescribedInputs(begun.call, tape, cpu, seed, begun.assumptions, begun.recipe)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A call whose recipe has run; tensors that it left alone are not filled yet."""

    call: RecipeCall
    arguments: tuple[Any, ...]
    assumptions: tuple[str, ...]
    recipe: str | None
    bytes: int


def _begin(
    resolved: ResolvedCall,
    recipe: Recipe | None,
    device: str,
    seed: int,
    memory_budget: int,
    copies: int,
    parameters: Mapping[str, str],
    recording: AbstractContextManager[object],
) -> _Begun | Skipped:
    needed = _needed_bytes(resolved)
    shrunk: tuple[str, ...] = ()
    if needed * (1 + copies) > memory_budget:
        smaller = _shrink_pools(resolved, recipe, memory_budget // (1 + copies))
        if smaller is None:
            return _over_budget(needed, copies, memory_budget)
        resolved, shrunk = smaller
        needed = _needed_bytes(resolved)
    if recipe is not None and (absent := _absent_names(resolved, recipe)):
        return _recipe_failed(resolved, recipe, RecipeError(absent))
    # Inference tensors could not take part in a run that records autograd.
    with torch.inference_mode(mode=False), torch.no_grad():
        try:
            given = {**resolved.recipe_parameters, **parameters}
            call, arguments = _allocate(resolved, recipe, device, seed, given)
        except TypeError as error:
            return Skipped("backend_missing", f"{device} cannot hold an argument: {error}")
        summary = None
        if isinstance(recording, Tape):
            for tensor in call.present(*call.names):
                recording.know(tensor.unfilled)
                recording.know(tensor.elements)
        if recipe is not None:
            try:
                with recording:
                    summary = recipe.function(call)
            except Exception as error:  # Recipes are foreign code; what they raise fails the row.
                return _recipe_failed(resolved, recipe, error, *shrunk)
        assumptions = (*call.assumptions, *_zeroed_integers(resolved, call, recipe))
        chosen_by_user = recipe is not None and recipe.origin == "user"
        if not chosen_by_user and (recorded := _recorded_contents(resolved)):
            obstacle = "they may name blocks that the cache lost" if shrunk else ""
            if obstacle := obstacle or _obstacle(resolved, call):
                assumptions += (f"recorded values of {', '.join(recorded)} not used: {obstacle}",)
            else:
                with recording:
                    _write_contents(resolved, call)
                summary, assumptions = f"recorded values of {', '.join(recorded)}", ()
    return _Begun(call, arguments, (*shrunk, *assumptions), summary, needed)


def _recorded_contents(resolved: ResolvedCall) -> list[str]:
    """Names of the arguments whose values the trace holds."""
    names = [argument.name for argument, spec in _tensor_specs(resolved) if spec.contents]
    return list(dict.fromkeys(names))


def _obstacle(resolved: ResolvedCall, call: RecipeCall) -> str:
    """Why recorded values cannot be used: indices, lengths and tables only make sense together."""
    if call.replaced:
        return f"the recipe makes {', '.join(call.replaced)} anew, which must fit the others"
    lost = [
        argument.name
        for argument, spec in _tensor_specs(resolved)
        if spec.contents is None and not argument.output and _is_integer(spec.dtype)
    ]
    return f"those of {', '.join(dict.fromkeys(lost))} were not kept" if lost else ""


def _write_contents(resolved: ResolvedCall, call: RecipeCall) -> None:
    for argument in resolved.arguments:
        values = argument.value if isinstance(argument.value, tuple) else (argument.value,)
        specs = [value for value in values if isinstance(value, TensorSpec)]
        for spec, tensor in zip(specs, call.present(argument.name), strict=True):
            if spec.contents is not None:
                tensor.write_list(spec.contents)


def storage_bytes(spec: TensorSpec) -> int:
    """Returns the bytes that the storage of a tensor takes."""
    per_byte = _QUANTIZED_PER_BYTE.get(spec.dtype)
    if per_byte is not None:
        return -(-spec.storage_numel // per_byte)
    return spec.storage_numel * spec.dtype.itemsize


def _needed_bytes(resolved: ResolvedCall) -> int:
    """Bytes of all storages; one that several tensors share counts once."""
    alone = 0
    shared: dict[tuple[int, torch.dtype], int] = {}
    for _, spec in _tensor_specs(resolved):
        if (key := _shared_key(spec)) is None:
            alone += storage_bytes(spec)
        else:
            shared[key] = max(shared.get(key, 0), storage_bytes(spec))
    return alone + sum(shared.values())


def _shrink_pools(
    resolved: ResolvedCall, recipe: Recipe | None, memory_budget: int
) -> tuple[ResolvedCall, tuple[str, ...]] | None:
    """Takes blocks from the caches until the call fits; None if it cannot be made to fit.

    Returns:
        The call, and the assumption.
    """
    if recipe is None or recipe.pools is None:
        return None
    tensors = {
        argument.name: argument.value
        for argument in resolved.arguments
        if isinstance(argument.value, TensorSpec)
    }
    if not any(name in tensors for name in recipe.pools.tables):
        return None
    caches = {
        name: tensors[name]
        for name in recipe.pools.caches
        if name in tensors and tensors[name].dims
    }
    blocks = max((spec.dims[0] for spec in caches.values()), default=0)
    # Scales have the blocks of their cache, or are one for all of it.
    caches = {name: spec for name, spec in caches.items() if spec.dims[0] == blocks}

    def with_blocks(count: int) -> ResolvedCall:
        fewer = {name: _narrowed(spec, count) for name, spec in caches.items()}
        return replace(
            resolved,
            arguments=tuple(
                replace(argument, value=fewer.get(argument.name, argument.value))
                for argument in resolved.arguments
            ),
        )

    count = bisect.bisect_right(
        range(1, blocks + 1), memory_budget, key=lambda n: _needed_bytes(with_blocks(n))
    )
    if count == 0:
        return None
    names = " and ".join(caches)
    return with_blocks(count), (
        f"{names}: {count} of {blocks} recorded blocks, which the memory budget allows",
    )


def _narrowed(spec: TensorSpec, size: int) -> TensorSpec:
    """Returns a tensor of fewer elements in dim 0, on a storage of its own."""
    dims = (size, *spec.dims[1:])
    steps = zip(dims, spec.strides, strict=True)
    reach = 1 + sum((length - 1) * stride for length, stride in steps)
    numel = 0 if 0 in dims else reach
    return replace(spec, dims=dims, storage_numel=numel, storage=None, contents=None)


def _shared_key(spec: TensorSpec) -> tuple[int, torch.dtype] | None:
    """What tensors on one storage have in common.

    Tensors of several dtypes on one storage get one each: values of one are none of the other.
    """
    if spec.storage is None or spec.dtype in _QUANTIZED:
        return None
    return spec.storage[0], spec.dtype


class _SharedStorages:
    """Storages that several tensors of a call share, each made once per device."""

    def __init__(self, resolved: ResolvedCall) -> None:
        self._numel: dict[tuple[int, torch.dtype], int] = {}
        self._made: dict[tuple[int, torch.dtype, str], torch.Tensor] = {}
        for _, spec in _tensor_specs(resolved):
            if (key := _shared_key(spec)) is not None:
                self._numel[key] = max(self._numel.get(key, 0), spec.storage_numel)

    def elements(self, spec: TensorSpec, device: str) -> torch.Tensor | None:
        """The storage that a tensor shares, in one dimension; None if it has its own."""
        key = _shared_key(spec)
        if key is None:
            return None
        if (*key, device) not in self._made:
            numel, dtype = self._numel[key], spec.dtype
            self._made[(*key, device)] = torch.empty(numel, dtype=dtype, device=device)
        return self._made[(*key, device)]


def _tensor_specs(resolved: ResolvedCall) -> Iterator[tuple[Argument, TensorSpec]]:
    for argument in resolved.arguments:
        values = argument.value if isinstance(argument.value, tuple) else (argument.value,)
        for value in values:
            if isinstance(value, TensorSpec):
                yield argument, value


def _allocate(
    resolved: ResolvedCall,
    recipe: Recipe | None,
    device: str,
    seed: int,
    parameters: Mapping[str, str],
) -> tuple[RecipeCall, tuple[Any, ...]]:
    """Makes every argument; tensors are not filled yet."""
    values: dict[str, Any] = {}
    tensors: dict[str, list[InputTensor | None]] = {}
    arguments: list[Any] = []
    aten = resolved.resolved_op.startswith("aten::")
    shared = _SharedStorages(resolved)
    for place, argument in enumerate(resolved.arguments):
        on_cpu = recipe is not None and argument.name in recipe.cpu
        where = "cpu" if on_cpu else device
        made = [
            _empty(
                element,
                storage=shared.elements(element, where),
                device=where,
                seed=seed,
                stream=(place << 40) | (item << 8),
                default=_default_fill(argument, element, aten=aten),
            )
            if isinstance(element, TensorSpec)
            else None
            for item, element in enumerate(
                argument.value if isinstance(argument.value, tuple) else (argument.value,)
            )
        ]
        value = _value(argument.value, made, device, seed)
        if any(tensor is not None for tensor in made):
            tensors[argument.name] = made
        values[argument.name] = value
        arguments.append(value.untyped_storage() if argument.type == "Storage" else value)
    known = () if recipe is None else recipe.parameters
    chosen = own_parameters(known, parameters)
    reads_step = recipe is not None and recipe.reads_step
    call = RecipeCall(
        resolved.resolved_op,
        values,
        tensors,
        resolved.batch,
        chosen,
        reads_step=reads_step,
        seed=seed,
        overload=resolved.overload,
    )
    return call, tuple(arguments)


def _value(value: Any, made: list[InputTensor | None], device: str, seed: int) -> Any:
    """Returns the Python value of an argument, its tensors being made already."""
    if isinstance(value, tuple):
        return [
            _value(element, [tensor], device, seed)
            for element, tensor in zip(value, made, strict=True)
        ]
    if isinstance(value, TorchValue):
        return _torch_value(value, device, seed)
    return value if made[0] is None else made[0].unfilled


def _torch_value(value: TorchValue, device: str, seed: int) -> Any:
    if value.kind == "device":
        return torch.device(device)
    if value.kind == "generator":
        return torch.Generator(device).manual_seed(seed)
    return getattr(torch, value.text)


def _empty(
    spec: TensorSpec,
    *,
    storage: torch.Tensor | None,
    device: str,
    seed: int,
    stream: int,
    default: DefaultFill,
) -> InputTensor:
    """Makes a tensor with its exact dims, strides and storage, no view of another tensor.

    A view would do for most operators, yet `detach_` and `set_` refuse one. `storage` is the one
    that the tensor shares, in one dimension.
    """
    with warnings.catch_warnings():
        # torch warns that complex32 is experimental and that quantized dtypes will go; the trace
        # has them, so there is nothing for the user to do.
        warnings.simplefilter("ignore", UserWarning)
        if spec.dtype in _QUANTIZED:
            make = torch._empty_affine_quantized
            storage = make(
                [spec.storage_numel], scale=1 / 128, zero_point=0, dtype=spec.dtype, device=device
            )
            value = make([0], scale=1 / 128, zero_point=0, dtype=spec.dtype, device=device)
        else:
            if storage is None:
                storage = torch.empty(spec.storage_numel, dtype=spec.dtype, device=device)
            value = torch.empty(0, dtype=spec.dtype, device=device)
    memory = storage.untyped_storage()
    value.set_(memory, spec.storage[1] if spec.storage else 0, spec.dims, spec.strides)
    filled_as = _FILLED_AS.get(spec.dtype)
    elements = storage
    if filled_as is not None:
        elements = torch.empty(0, dtype=filled_as, device=device).set_(memory)
    return InputTensor(
        value,
        elements,
        seed=seed,
        stream=stream,
        default=default,
        true_elements=spec.true_elements,
        device=None if device != RUN_DEVICE else torch.device(device),
    )


def _absent_names(resolved: ResolvedCall, recipe: Recipe) -> str:
    """Returns a sentence if the operator lacks an argument that the recipe wants on the CPU."""
    names = [argument.name for argument in resolved.arguments]
    absent = [repr(name) for name in recipe.cpu if name not in names]
    if not absent:
        return ""
    there = ", ".join(names) or "none"
    return f"{resolved.resolved_op} has no argument {', '.join(absent)}; it has {there}"


def _default_fill(argument: Argument, spec: TensorSpec, *, aten: bool) -> DefaultFill:
    """Returns what a tensor holds unless a recipe fills it."""
    if argument.output:
        return "none"
    if not _is_integer(spec.dtype):
        return "random"
    if spec.dtype is torch.bool:
        return (0, 2)
    return ATEN_INTEGERS if aten else (0, 1)


def _is_integer(dtype: torch.dtype) -> bool:
    """Tells whether elements are plain integers or bools, one in each item."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype in _FILLED_AS)


def _zeroed_integers(
    resolved: ResolvedCall, call: RecipeCall, recipe: Recipe | None
) -> tuple[str, ...]:
    """Returns the assumption on integers outside aten that nothing filled.

    What a recipe leaves alone and the operator writes is the operator's own.
    """
    if resolved.resolved_op.startswith("aten::"):
        return ()
    names = [
        argument.name
        for argument in resolved.arguments
        if not argument.output
        and not (recipe is not None and argument.written)
        and any(
            tensor.numel
            and not tensor.filled
            and _is_integer(tensor.dtype)
            and tensor.dtype is not torch.bool
            for tensor in call.present(argument.name)
        )
    ]
    if not names:
        return ()
    knows = "no recipe knows the" if recipe is None else "the recipe knows not all"
    listed = ", ".join(names)
    return (f"{knows} integers of {resolved.resolved_op}: zeros in {listed}",)


def _over_budget(needed: int, copies: int, memory_budget: int) -> Skipped:
    with_copies = f" with {copies} copies" if copies else ""
    return Skipped(
        "over_memory_budget",
        f"the call's tensors need {needed * (1 + copies) / _GIB:.3g} GiB{with_copies}, "
        f"{memory_budget / _GIB:.3g} GiB are allowed; --memory-budget allows more",
    )


def _recipe_failed(
    resolved: ResolvedCall, recipe: Recipe, error: Exception, *notes: str
) -> Skipped:
    text = str(error) if isinstance(error, RecipeError) else f"{type(error).__name__}: {error}"
    told = "; ".join((text, *notes))
    return Skipped("recipe_failed", f"{recipe.name} for {resolved.resolved_op}: {told}")
