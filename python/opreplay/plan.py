"""The plan: resolved calls of a trace in a form that needs neither the trace nor torch.

Names, types, shapes, strides and scalars stand in a plan, with counts and recorded times; no model
code and no tensor values do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opreplay.resolve.call import Argument, ResolvedCall, TensorSpec, TorchValue, Value
from opreplay.trace.call import Point, RecordedTimes, Skipped
from opreplay.trace.selection import Level, Selection
from opreplay.trace.steps import Step

__all__ = [
    "Plan",
    "PlannedArgument",
    "PlannedCall",
    "PlannedOperator",
    "PlannedRecipe",
    "PlannedTensor",
    "PlannedValue",
    "planned",
    "resolved",
]


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to be made, with its dtype by name."""

    dtype: str
    """Name of the element type, for instance ``"bfloat16"``."""
    dims: tuple[int, ...]
    """Sizes."""
    strides: tuple[int, ...]
    """Strides in elements."""
    storage_numel: int
    """Elements that the storage must hold."""
    storage: tuple[int, int] | None = None
    """Number of a storage that tensors of the call share, and the offset in it [elements]."""
    true_elements: int | None = None
    """Number of elements of a mask that are true, where the trace tells it."""


PlannedValue = (
    PlannedTensor
    | TorchValue
    | tuple["PlannedValue", ...]
    | int
    | float
    | complex
    | bool
    | str
    | None
)


@dataclass(frozen=True, slots=True)
class PlannedArgument:
    """One argument of a planned call; the fields are those of `Argument`."""

    name: str
    """Name in the schema."""
    type: str
    """Schema type without alias annotations."""
    value: PlannedValue
    """The tensor to make, or the value itself."""
    written: bool
    """True if the operator writes to it."""
    output: bool
    """True if it is a pure output buffer."""
    producer: str | None = None
    """Operator that the recipe runs before the call to make this argument."""


@dataclass(frozen=True, slots=True)
class PlannedRecipe:
    """What chooses the values of a planned call."""

    name: str
    """Module and name of its function."""
    parameters: tuple[tuple[str, str | int | float], ...]
    """Value of each of its parameters, by name."""


@dataclass(frozen=True, slots=True)
class PlannedOperator:
    """What a call was resolved to; the fields are those of `ResolvedCall`."""

    resolved_op: str
    """Operator name that runs."""
    overload: str
    """Overload name; empty for the default overload."""
    schema: str | None
    """Schema text; None for a plain Python callable."""
    arguments: tuple[PlannedArgument, ...]
    """All arguments in schema order."""
    assumptions: tuple[str, ...]
    """Each guess that was made, one sentence each."""
    rejected: tuple[tuple[str, str], ...]
    """Other schemas of the name, each with the reason why it does not fit."""
    recipe: PlannedRecipe | None = None
    """What chooses the values of its tensors; None where the defaults do."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """Recorded calls of one signature, resolved, or left out with the reason."""

    op: str
    """Operator name as recorded."""
    signature: str
    """Stable hash of the call, as in the trace."""
    step: str | None
    """Innermost annotation around the call with the median time."""
    parent: str | None
    """Innermost operator around it; None for an outermost call."""
    leaf: bool
    """True if no other operator ran inside it."""
    count: int
    """Number of recorded calls."""
    host: RecordedTimes
    """Recorded times of the CPU events."""
    device: RecordedTimes | None
    """Recorded spans of the kernels launched inside; None where none were."""
    kernels: tuple[tuple[str, int], ...]
    """Name and number of the kernels that one call launched."""
    in_graph: bool
    """True if any of the calls ran under graph capture."""
    batch: Step | None
    """Batch of the step that the call stands for; None where its values depend on none."""
    outcome: PlannedOperator | Skipped
    """What runs, or why nothing does."""
    point: Point | None = None
    """Where it stands in a sweep; None for a call as recorded. A plan file has none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls of a trace, ready to be run without it."""

    calls: tuple[PlannedCall, ...]
    """One entry for each signature, and each step or phase, in the order of the trace."""
    recorded_on: tuple[str, ...] = ()
    """Names of the accelerators that the trace was recorded on, as far as it tells them."""

    def select(self, selection: Selection) -> list[PlannedCall]:
        """Chooses calls in the way that `Trace.groups` does.

        A plan keeps only the innermost annotation of each call, so the scope looks no further.

        Raises:
            ValueError: No annotation fits the scope.
        """
        steps = None if selection.scope is None else self._steps_of(selection.scope)
        level = selection.level
        chosen = [
            call
            for call in self.calls
            if selection.fits(call.op)
            and (steps is None or call.step in steps)
            and (level != "outermost" or call.parent is None)
            and (level != "leaf" or call.leaf)
        ]
        if selection.top is not None:
            chosen = _by_time(chosen, level)[: selection.top]
        return chosen[: selection.limit]

    def _steps_of(self, scope: str) -> set[str]:
        steps = {call.step for call in self.calls if call.step is not None}
        fitting = {scope} & steps or {step for step in steps if scope in step}
        if not fitting:
            some = ", ".join(sorted(steps)[:5]) or "none"
            raise ValueError(f"no annotation is named {scope!r}; the plan has: {some}")
        return fitting


def _by_time(calls: list[PlannedCall], level: Level) -> list[PlannedCall]:
    on_device = any(call.device for call in calls)

    def time(call: PlannedCall) -> float:
        times = call.device if on_device else call.host
        if times is None:
            return 0.0
        return times.total if level == "outermost" else times.self_total

    return sorted(calls, key=time, reverse=True)


def planned(
    call: ResolvedCall,
    recipe: PlannedRecipe | None = None,
    producers: Mapping[str, str] | None = None,
) -> PlannedOperator:
    """Returns the form of a resolved call that a plan holds.

    Args:
        call: The call.
        recipe: What chooses its values.
        producers: Operators that the recipe runs to make an argument, by the argument's name.
    """
    made_by = producers or {}
    return PlannedOperator(
        resolved_op=call.resolved_op,
        overload=call.overload,
        schema=call.schema,
        arguments=tuple(
            PlannedArgument(
                a.name,
                a.type,
                _planned_value(a.value),
                a.written,
                a.output,
                None if a.value is None else made_by.get(a.name),
            )
            for a in call.arguments
        ),
        assumptions=call.assumptions,
        rejected=call.rejected,
        recipe=recipe,
    )


def resolved(op: str, operator: PlannedOperator) -> ResolvedCall:
    """Returns the resolved call that a plan holds; the reverse of `planned`.

    Args:
        op: Operator name as recorded.
        operator: The planned form.

    Raises:
        ValueError: This torch does not know a dtype.
    """
    return ResolvedCall(
        op=op,
        resolved_op=operator.resolved_op,
        overload=operator.overload,
        schema=operator.schema,
        arguments=tuple(
            Argument(a.name, a.type, _value(a.value), a.written, a.output)
            for a in operator.arguments
        ),
        assumptions=operator.assumptions,
        rejected=operator.rejected,
        recipe_parameters={}
        if operator.recipe is None
        else {name: str(value) for name, value in operator.recipe.parameters},
    )


def _planned_value(value: Value) -> PlannedValue:
    if isinstance(value, TensorSpec):
        dtype = str(value.dtype).removeprefix("torch.")
        return PlannedTensor(
            dtype,
            value.dims,
            value.strides,
            value.storage_numel,
            value.storage,
            value.true_elements,
        )
    if isinstance(value, tuple):
        return tuple(_planned_value(element) for element in value)
    return value


def _value(value: PlannedValue) -> Value:
    if isinstance(value, PlannedTensor):
        import torch

        dtype = getattr(torch, value.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"torch {torch.__version__} has no dtype {value.dtype!r}")
        return TensorSpec(
            dtype,
            value.dims,
            value.strides,
            value.storage_numel,
            value.storage,
            true_elements=value.true_elements,
        )
    if isinstance(value, tuple):
        return tuple(_value(element) for element in value)
    return value
