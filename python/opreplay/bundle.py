"""The bundle: calls of a plan go in, a file that C++ replays without Python comes out."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opreplay import _C
from opreplay.description import DescribedCall, Describer
from opreplay.inputs import DescribedInputs
from opreplay.libraries import Libraries
from opreplay.options import ReplayOptions
from opreplay.plan import PlannedCall
from opreplay.recipes.tape import Tape, TapeStep
from opreplay.resolve.call import TensorSpec, TorchValue

__all__ = ["BundleReport", "write_bundle"]


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What was written."""

    written: int
    """Calls in the bundle."""
    left_out: tuple[tuple[PlannedCall, str], ...]
    """Calls that cannot be in it, each with a sentence why."""
    warnings: tuple[str, ...]
    """What stands in the way of a process without Python, one sentence each."""


def write_bundle(
    calls: Iterable[PlannedCall], path: str | Path, *, options: ReplayOptions | None = None
) -> BundleReport:
    """Describes calls and writes them; none is timed.

    Args:
        calls: Calls of a plan.
        path: The file to write.
        options: Imports, seed, recipe parameters, memory budget, and whether to record autograd.

    Raises:
        ValueError: The file cannot be written, or an option is malformed.
    """
    options = options or ReplayOptions()
    describe = Describer(options)
    libraries = Libraries()
    content = _Content()
    left_out: list[tuple[PlannedCall, str]] = []
    for call in calls:
        described = describe(call)
        if isinstance(described, str):
            left_out.append((call, described))
            continue
        try:
            content.add(call, described, libraries.of(described.resolved.resolved_op))
        except ValueError as error:
            left_out.append((call, str(error)))
    buffer = io.BytesIO()
    torch.save(content.fields(options.seed), buffer)
    _C.write_bundle(str(path), buffer.getvalue())
    return BundleReport(len(content.calls), tuple(left_out), tuple(libraries.warnings))


@dataclass(slots=True)
class _Content:
    """What goes behind the header: plain values, and words in tuples for all others."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    constants: list[torch.Tensor] = field(default_factory=list)

    def fields(self, seed: int) -> dict[str, Any]:
        return {
            "torch": str(torch.__version__),
            "seed": _plain(seed),
            "constants": self.constants,
            "calls": self.calls,
        }

    def add(
        self,
        call: PlannedCall,
        one: DescribedCall,
        libraries: Sequence[str],
    ) -> None:
        """Adds a call.

        Raises:
            ValueError: A value of a step has no form in the file.
        """
        resolved, described = one.resolved, one.inputs
        steps = _Steps(described, self.constants)
        produced = [
            {
                "argument": [a.name for a in resolved.arguments].index(name),
                "made": steps.output(made),
                "release": release or "",
            }
            for name, (made, release) in described.call.produced.items()
        ]
        arguments = [
            _argument(described, place, argument.value, argument.name)
            for place, argument in enumerate(resolved.arguments)
        ]
        self.calls.append(
            {
                "op": resolved.resolved_op,
                "overload": resolved.overload,
                "schema": resolved.schema,
                "signature": call.signature,
                "mode": one.mode,
                "count": _plain(call.count),
                "recorded_host_us": call.host.median,
                "recorded_device_us": None if call.device is None else call.device.median,
                "libraries": list(libraries),
                "recipe": described.recipe or "",
                "assumptions": [*resolved.assumptions, *described.assumptions],
                "arguments": arguments,
                "steps": steps.fields(),
                "produced": produced,
            }
        )


def _argument(described: DescribedInputs, place: int, value: Any, name: str) -> Any:
    if isinstance(value, tuple):
        return [
            _element(described, place, element, name, item) for item, element in enumerate(value)
        ]
    return _element(described, place, value, name, 0)


def _element(described: DescribedInputs, place: int, value: Any, name: str, item: int) -> Any:
    if isinstance(value, TensorSpec):
        return _tensor(described, value, name, item)
    if isinstance(value, TorchValue):
        if value.kind == "device":
            return ("device", "run")
        if value.kind == "generator":
            return ("generator", -1 - place, _plain(described.seed), False)
        return (value.kind, value.text)
    return _plain(value)


def _tensor(described: DescribedInputs, spec: TensorSpec, name: str, item: int) -> Any:
    tensor = described.call.elements_of(name)[item]
    assert tensor is not None
    pending = tensor.pending
    fill, low, high = ("integers", *pending) if isinstance(pending, tuple) else (pending, 0, 0)
    number, _ = spec.storage or (-1, 0)
    made = tensor.unfilled  # the budget may have made it smaller than it was recorded
    numel = spec.storage_numel if tensor.dims == spec.dims else tensor.elements.numel()
    return (
        *("tensor", str(spec.dtype).removeprefix("torch.")),
        *([_plain(size) for size in made.shape], [_plain(step) for step in made.stride()]),
        *(_plain(numel), number, _plain(made.storage_offset())),
        *(name in described.on_cpu, fill, low, high),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, complex):
        return ("complex", value.real, value.imag)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"the integer {value} does not fit 64 bits")
    if type(value) is int and not -(2**31) <= value < 2**31:
        return ("integer", str(value))  # torch reads pickled integers of 32 bits alone
    return value


class _Steps:
    """The steps of one call that say what its tensors hold, with their values as references."""

    def __init__(self, described: DescribedInputs, constants: list[torch.Tensor]) -> None:
        self._tape: Tape = described.tape
        self._constants = constants
        self._generators: dict[int, int] = {}
        self._stored: dict[int, int] = {}
        self._references: dict[int, tuple[Any, ...]] = {}
        roots = []
        for place, name in enumerate(described.call.names):
            for item, tensor in enumerate(described.call.elements_of(name)):
                if tensor is not None:
                    roots.append(tensor.unfilled)
                    self._references[id(tensor.elements)] = ("memory", place, item)
                    self._references[id(tensor.unfilled)] = ("argument", place, item)
        made = [value for value, _ in described.call.produced.values()]
        handles = [self._maker(value) for value in made if isinstance(value, int)]
        roots += [value for value in made if isinstance(value, torch.Tensor)]
        self._numbers = self._tape.living_steps(roots, and_steps=handles)
        for place, number in enumerate(self._numbers):
            for output, value in enumerate(self._tape.steps[number].outputs):
                items = enumerate(value) if isinstance(value, list | tuple) else [(-1, value)]
                for item, element in items:
                    if isinstance(element, torch.Tensor) and self._tape.constant(element) is None:
                        self._references.setdefault(id(element), ("output", place, output, item))

    def fields(self) -> list[dict[str, Any]]:
        return [self._step(self._tape.steps[number]) for number in self._numbers]

    def output(self, made: torch.Tensor | int) -> tuple[Any, ...]:
        """The reference to what an operator made for an argument."""
        if isinstance(made, int):
            return ("output", self._numbers.index(self._maker(made)), 0, -1)
        found = self._references.get(id(made))
        if found is None:
            raise ValueError("an argument was made outside any operator; make it with run_operator")
        return found

    def _maker(self, handle: int) -> int:
        """The step that returned a handle; the latest, where several returned the same number."""
        for number in reversed(range(len(self._tape.steps))):
            outputs = self._tape.steps[number].outputs
            if len(outputs) == 1 and type(outputs[0]) is int and outputs[0] == handle:
                return number
        raise ValueError("a handle was made outside any operator; make it with run_operator")

    def _step(self, step: TapeStep) -> dict[str, Any]:
        return {
            "op": step.op,
            "overload": step.overload,
            "arguments": [self._value(value, step.op) for value in step.arguments],
        }

    def _value(self, value: Any, op: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._reference(value)
        if isinstance(value, list | tuple):
            return [self._value(element, op) for element in value]
        if isinstance(value, torch.device):
            return ("device", "cpu" if value.index is None else "run")
        if isinstance(value, torch.Generator):
            number = self._generators.setdefault(id(value), len(self._generators))
            return ("generator", number, _plain(value.initial_seed()), True)
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return (type(value).__name__, str(value).removeprefix("torch."))
        if value is None or isinstance(value, bool | int | float | complex | str):
            return _plain(value)
        raise ValueError(f"a step runs {op} on a {type(value).__name__}, which has no stored form")

    def _reference(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        found = self._references.get(id(tensor))
        if found is not None:
            return found
        held = self._tape.constant(tensor)
        if held is None:
            raise ValueError("a step reads a tensor that none of the kept steps made")
        if id(tensor) not in self._stored:
            self._stored[id(tensor)] = len(self._constants)
            self._constants.append(held.contiguous())
        return ("constant", self._stored[id(tensor)])
