"""Fits the recorded inputs of a call to one schema: typed arguments come out, or why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opreplay.resolve.call import Argument, TensorSpec, TorchValue, Value
from opreplay.resolve.dtypes import PYTHON_NUMBER_DTYPES, SCALAR_TYPES, dtype_of_name
from opreplay.trace.call import Reason, RecordedArgument, Skipped

if TYPE_CHECKING:
    import torch

    from opreplay._C import Operator, Parameter

__all__ = [
    "Match",
    "StringDefault",
    "enum_number",
    "fit",
    "positional_arguments",
    "storage_extent",
    "tensor_spec",
]

StringDefault = Callable[[str, Mapping[str, TensorSpec]], str | None]
"""Gives the text of a required string argument from its name and the call's tensors, or None."""

Number = bool | int | float | complex

_MOST_LIST_ENTRIES = 30
_FLAG = "torch.profiler.profile(record_shapes=True) of torch 2.1 or newer"
_INTEGER_KINDS = frozenset({"int", "SymInt"})
_ENUMS: dict[str, tuple[str | None, ...]] = {
    # Names in the order of c10::Layout and c10::MemoryFormat.
    "Layout": (
        *("strided", "sparse_coo", "sparse_csr", "_mkldnn"),
        *("sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"),
    ),
    "MemoryFormat": (
        *("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
    ),
    "ScalarType": tuple(None if d is None else str(d).removeprefix("torch.") for d in SCALAR_TYPES),
}
_ENUM_VALUES = {"Layout": "layout", "MemoryFormat": "memory_format", "ScalarType": "dtype"}
_VALUELESS = {
    # Old traces record the kind of a scalar in the type's place, and never its value.
    "Int": frozenset({"int", "SymInt", "Scalar", *_ENUMS}),
    "Double": frozenset({"float", "Scalar"}),
    "Bool": frozenset({"bool", "Scalar"}),
}

# A schema that fits in a plainer way is the likelier one.
_COST_DEFAULTED = 1
_COST_GUESSED = 2
_COST_CONVERTED = 4
_COST_OUT = 8
_COST_LOST = 1000


class _Misfit(Exception):
    """The schema cannot be the one that was called."""


class _Lost(Exception):
    """The schema fits, but a value that it needs is not in the trace."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.skipped = Skipped(reason, detail)


@dataclass(frozen=True, slots=True)
class Match:
    """A schema that the recorded inputs fit."""

    operator: Operator
    """The overload."""
    arguments: tuple[Argument, ...]
    """All arguments in schema order; a lost one holds None."""
    assumptions: tuple[str, ...]
    """Each guess that was made."""
    lost: tuple[Skipped, ...]
    """What stands in the way of a replay although the schema fits."""
    cost: int
    """How far the inputs are from the schema's plainest reading; the least wins."""


def fit(
    operator: Operator,
    parameters: Sequence[Parameter],
    recorded: Sequence[RecordedArgument],
    string_default: StringDefault,
) -> Match | str:
    """Fits recorded inputs to a schema; returns a sentence why not where they do not fit."""
    if len(recorded) > len(parameters):
        return f"it takes {len(parameters)} arguments, {len(recorded)} were recorded"
    for parameter in parameters[len(recorded) :]:
        if not parameter.has_default:
            return f"argument {parameter.name} was not recorded and has no default"
    reader = _Reader(recorded, string_default)
    arguments: list[Argument] = []
    lost: list[Skipped] = []
    for index, parameter in enumerate(parameters):
        value: Value = None
        try:
            if index < len(recorded):
                value = reader.read(parameter, recorded[index])
            else:
                value = reader.default(parameter, "the trace has fewer arguments than the schema")
        except _Misfit as misfit:
            return f"argument {parameter.name} is {parameter.type}, {misfit}"
        except _Lost as loss:
            lost.append(loss.skipped)
            reader.cost += _COST_LOST
        if parameter.output:
            reader.cost += _COST_OUT
        arguments.append(
            Argument(parameter.name, parameter.type, value, parameter.written, parameter.output)
        )
    _read_wrapped_numbers(arguments, reader)
    return Match(
        operator, storage_extent(tuple(arguments)), tuple(reader.assumptions), tuple(lost),
        reader.cost,
    )  # fmt: skip


def positional_arguments(
    recorded: Sequence[RecordedArgument],
) -> tuple[tuple[Argument, ...], tuple[str, ...]] | Skipped:
    """Types the inputs of a call that has no schema, by what was recorded alone."""
    reader = _Reader(recorded, lambda _name, _tensors: None)
    arguments = []
    for index, item in enumerate(recorded):
        name = f"argument_{index}"
        try:
            value = reader.untyped(item)
            arguments.append(Argument(name, item.type or "None", value, False, False))
        except _Lost as loss:
            return Skipped(loss.skipped.reason, f"{name}: {loss.skipped.detail}")
    return tuple(arguments), tuple(reader.assumptions)


def enum_number(value: TorchValue) -> int | str | None:
    """Returns what is recorded for a value: torch's number, a device's text, or None."""
    for kind, of_torch in _ENUM_VALUES.items():
        if of_torch == value.kind:
            return _ENUMS[kind].index(value.text)
    return (value.text or "cpu") if value.kind == "device" else None


def storage_extent(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Widens the storage of `self` (or `source`) to what size, stride and offset ask of it."""
    values = {argument.name: argument.value for argument in arguments}
    size, stride = values.get("size"), values.get("stride")
    if not (isinstance(size, tuple) and isinstance(stride, tuple)):
        return arguments
    offset = values.get("storage_offset")
    steps = [s for s in stride if isinstance(s, int)]
    sizes = [d for d in size if isinstance(d, int)]
    if len(steps) != len(sizes) or 0 in sizes:
        return arguments
    reach = 1 + sum((d - 1) * s for d, s in zip(sizes, steps, strict=True))
    numel = reach + (offset if isinstance(offset, int) else 0)
    target = "source" if isinstance(values.get("source"), TensorSpec) else "self"
    return tuple(
        replace(a, value=replace(a.value, storage_numel=max(a.value.storage_numel, numel)))
        if a.name == target and isinstance(a.value, TensorSpec)
        else a
        for a in arguments
    )


class _Reader:
    """Reads recorded inputs one by one, and keeps what was assumed and what that costs."""

    def __init__(self, recorded: Sequence[RecordedArgument], string_default: StringDefault) -> None:
        self.assumptions: list[str] = []
        self.cost = 0
        self._recorded = recorded
        self._string_default = string_default
        self._tensors: dict[str, TensorSpec] = {}

    def read(self, parameter: Parameter, item: RecordedArgument) -> Value:
        """Reads one input as the schema's parameter."""
        if item.type == "None" and parameter.optional:
            return None
        if item.type in ("", "None"):
            return self._untold(parameter, item)
        if item.type in ("Device", "String"):
            return _device_or_string(parameter, item)
        if item.type in ("TensorList", "GenericList", "ScalarList"):
            if not parameter.is_list:
                raise _Misfit(f"a {item.type} was recorded")
            return self._list(parameter, item)
        if _is_scalar(item):
            return self._scalar(parameter, item)
        spec = self._tensor(item)
        if spec is None:
            raise _Lost(
                "argument_lost", f"argument {parameter.name}: type {item.type!r} is unknown"
            )
        if parameter.kind != "Tensor" or parameter.is_list:
            raise _Misfit(f"a tensor of {item.type} was recorded")
        self._tensors[parameter.name] = spec
        return spec

    def untyped(self, item: RecordedArgument) -> Value:
        """Reads one input by what was recorded alone."""
        if item.type in ("", "None"):
            return None
        if item.type == "Device":
            return TorchValue("device", "")
        if item.type == "String":
            return item.value
        if item.type == "TensorList":
            return self._tensor_list("it", item)
        if item.type == "ScalarList" or _is_scalar(item):
            if not item.value:
                raise _Lost("metadata_missing", f"its value was not recorded; record with {_FLAG}")
            return _numbers(item.value) if item.type == "ScalarList" else _number(item.value)
        spec = self._tensor(item)
        if spec is None:
            raise _Lost("argument_lost", f"type {item.type!r} is unknown")
        return spec

    def default(self, parameter: Parameter, why: str) -> Value:
        """Takes the schema's default and says so."""
        self.cost += _COST_DEFAULTED
        value = _plain(parameter, parameter.default)
        self.assume(f"{parameter.name}: {why}, the default {parameter.default!r} was taken")
        return value

    def assume(self, sentence: str) -> None:
        """Notes a guess."""
        self.assumptions.append(sentence)

    def _tensor(self, item: RecordedArgument) -> TensorSpec | None:
        dtype = dtype_of_name(item.type)
        if dtype is None:
            return None
        dims = _flat(item.dims)
        if item.strides is None or (dims and len(item.strides) != len(dims)):
            if any(d > 1 for d in dims):
                self._assume_contiguous()
            spec = tensor_spec(dtype, dims, None)
        else:
            spec = tensor_spec(dtype, dims, _flat(item.strides))
        (contents,) = item.contents or (None,)
        return replace(_placed(spec, item.storage), contents=contents)

    def _assume_contiguous(self) -> None:
        sentence = "strides were not recorded, tensors are taken as contiguous"
        if sentence not in self.assumptions:
            self.assume(sentence)

    def _untold(self, parameter: Parameter, item: RecordedArgument) -> Value:
        """Reads an input of type "": None, or a value of a kind that the profiler drops."""
        name = parameter.name
        if parameter.kind == "Device":
            return self._device(parameter)
        if parameter.kind == "str" and not parameter.is_list:
            return self._string(parameter)
        if parameter.optional:
            if parameter.kind.startswith("__torch__"):
                self.assume(f"{name}: the profiler drops objects, None was taken")
            return None
        if parameter.kind == "Storage":
            return self._storage(parameter)
        if parameter.kind == "Generator":
            return None
        if parameter.has_default:
            return self.default(parameter, "its value was dropped")
        if parameter.is_list and item.value is None and parameter.kind != "Tensor":
            raise _Lost("metadata_missing", _unrecorded(parameter))
        if parameter.is_list:
            raise _Lost(
                "argument_lost",
                f"argument {name} ({parameter.type}): the profiler drops lists of more than "
                f"{_MOST_LIST_ENTRIES} entries and lists of optional tensors",
            )
        what = "an undefined tensor was recorded" if parameter.kind == "Tensor" else "it is dropped"
        raise _Lost("argument_lost", f"argument {name} ({parameter.type}) has no value: {what}")

    def _device(self, parameter: Parameter) -> Value:
        factory = not any(dtype_of_name(item.type) or item.dims for item in self._recorded)
        if parameter.optional and not factory:
            return None
        self.assume(f"{parameter.name}: the profiler drops devices, the run's device was taken")
        return TorchValue("device", "")

    def _string(self, parameter: Parameter) -> Value:
        text = self._string_default(parameter.name, self._tensors)
        if text is None and parameter.has_default:
            return self.default(parameter, "the profiler drops strings")
        if text is None and parameter.optional:
            self.assume(f"{parameter.name}: the profiler drops strings, None was taken")
            return None
        if text is None:
            raise _Lost(
                "argument_lost",
                f"argument {parameter.name} is a string, which the profiler drops, and nothing "
                "here tells a likely value",
            )
        self.cost += _COST_GUESSED
        self.assume(f"{parameter.name}: the profiler drops strings, {text!r} was taken")
        return text

    def _storage(self, parameter: Parameter) -> TensorSpec:
        """A storage of `self`'s elements; `storage_extent` widens it to what the call asks for."""
        own = self._tensors.get("self")
        if own is None:
            raise _Lost("argument_lost", f"argument {parameter.name}: no tensor tells its dtype")
        self.assume(f"{parameter.name}: the profiler drops storages, a new one was made")
        return tensor_spec(own.dtype, (max(1, own.storage_numel),), None)

    def _scalar(self, parameter: Parameter, item: RecordedArgument) -> Value:
        kinds = _VALUELESS.get(item.type)
        if kinds is not None and parameter.kind not in kinds:
            raise _Misfit(f"a scalar of type {item.type} was recorded")
        if parameter.kind in ("Device", "str", "Storage", "Generator", "Dimname"):
            raise _Misfit("a scalar was recorded")
        if parameter.is_list and (parameter.kind == "Tensor" or parameter.optional_elements):
            raise _Misfit("a scalar was recorded")
        if not item.value or kinds is not None:
            if parameter.kind == "Tensor":
                self.cost += _COST_CONVERTED
            if parameter.has_default and parameter.default is not None:  # it was not None
                return self.default(parameter, "its value was not recorded")
            raise _Lost("metadata_missing", _unrecorded(parameter))
        if parameter.kind in _ENUMS:
            return _enum(parameter, item.value)
        number = _number(item.value)
        if parameter.kind == "Tensor":
            self.cost += _COST_CONVERTED
            return number
        number = _as_kind(parameter, number)
        if parameter.is_list:
            self.cost += _COST_CONVERTED
            return (number,)
        return number

    def _list(self, parameter: Parameter, item: RecordedArgument) -> Value:
        if parameter.kind == "Tensor":
            if item.type == "ScalarList":
                raise _Misfit("a ScalarList was recorded")
            return self._tensor_list(f"argument {parameter.name}", item)
        if item.type == "TensorList":
            raise _Misfit("a TensorList was recorded")
        if not item.value:
            if parameter.has_default and parameter.default is not None:  # it was not None
                return self.default(parameter, "its value was not recorded")
            raise _Lost("metadata_missing", _unrecorded(parameter))
        return tuple(_as_kind(parameter, number) for number in _numbers(item.value))

    def _tensor_list(self, what: str, item: RecordedArgument) -> Value:
        if not item.dims:
            raise _Lost(
                "argument_lost",
                f"{what} is a list of tensors whose shapes are not in the trace: the profiler "
                f"drops the shapes of more than {_MOST_LIST_ENTRIES} tensors, and of all lists "
                "before torch 2.2",
            )
        if item.recovered:
            self.assume(
                f"{what}: the profiler drops it; its sizes are those that the operators inside the "
                "call of median time were given, other calls of the row may have had others"
            )
        dtypes = self._element_dtypes(what, item)
        strides = item.strides or ()
        specs: list[TensorSpec | None] = []
        for index, (dims, dtype) in enumerate(zip(item.dims, dtypes, strict=True)):
            if dtype is None:
                specs.append(None)
                continue
            if not isinstance(dims, tuple):
                raise _Lost("argument_lost", f"{what}: its shapes are not a list of shapes")
            steps = strides[index] if index < len(strides) else None
            if not isinstance(steps, tuple) or len(steps) != len(dims):
                if any(d > 1 for d in dims):
                    self._assume_contiguous()
                steps = None
            contents = item.contents[index] if item.contents else None
            spec = tensor_spec(dtype, dims, steps)
            specs.append(replace(spec, contents=contents, true_elements=item.true_elements))
        return tuple(specs)

    def _element_dtypes(self, what: str, item: RecordedArgument) -> list[torch.dtype | None]:
        """The dtype of each tensor of a list; None for one that is undefined."""
        if item.elements is None:
            dtype, source = self._neighbour_dtype()
            self.assume(f"{what}: the dtype of list elements is not recorded, {source}")
            return [dtype] * len(item.dims)
        dtypes = [dtype_of_name(name) for name in item.elements]
        for name, found in zip(item.elements, dtypes, strict=True):
            if found is None and name != "None":
                raise _Lost("argument_lost", f"{what}: element type {name!r} is unknown")
        return dtypes

    def _neighbour_dtype(self) -> tuple[torch.dtype, str]:
        import torch

        for item in self._recorded:
            dtype = dtype_of_name(item.type)
            if dtype is not None and not _is_scalar(item):
                return dtype, f"that of the call's first tensor, {dtype}, was taken"
        return torch.float32, "torch.float32 was taken"


def tensor_spec(
    dtype: torch.dtype, dims: tuple[int, ...], strides: tuple[int, ...] | None
) -> TensorSpec:
    """A tensor's description; contiguous where `strides` is None."""
    if strides is None:
        steps, step = [], 1
        for size in reversed(dims):
            steps.append(step)
            step *= max(1, size)
        strides = tuple(reversed(steps))
    numel = 0 if 0 in dims else 1 + sum((d - 1) * s for d, s in zip(dims, strides, strict=True))
    return TensorSpec(dtype, dims, strides, numel)


def _placed(spec: TensorSpec, storage: tuple[int, int] | None) -> TensorSpec:
    """The tensor at its place in a storage that it shares."""
    if storage is None:
        return spec
    return replace(spec, storage_numel=spec.storage_numel + storage[1], storage=storage)


def _device_or_string(parameter: Parameter, item: RecordedArgument) -> Value:
    kind = {"Device": "Device", "String": "str"}[item.type]
    if parameter.kind != kind or parameter.is_list:
        raise _Misfit(f"a {item.type} was recorded")
    return TorchValue("device", "") if kind == "Device" else item.value


def _read_wrapped_numbers(arguments: list[Argument], reader: _Reader) -> None:
    """Takes a 0-dim double, long or bool beside a tensor of another dtype as a Python number.

    That is how the profiler records the 2 of ``x * 2``; a real 0-dim tensor would promote x.
    """
    operands = {"self", "other"}
    specs = {a.name: a.value for a in arguments if a.name in operands and not a.written}
    if set(specs) != operands:
        return
    for index, argument in enumerate(arguments):
        if argument.name not in operands or argument.written:
            continue
        spec = argument.value
        partner = specs["other" if argument.name == "self" else "self"]
        if not isinstance(spec, TensorSpec) or not isinstance(partner, TensorSpec):
            continue
        if spec.dims == () and spec.dtype in PYTHON_NUMBER_DTYPES and partner.dtype != spec.dtype:
            number: Value = True if str(spec.dtype) == "torch.bool" else 1
            if spec.dtype.is_floating_point:
                number = 1.0
            arguments[index] = replace(argument, value=number)
            reader.assume(
                f"{argument.name}: a 0-dim {spec.dtype} was recorded, which is how a Python number "
                f"is; its value is lost, {number} was taken"
            )
            return


def _unrecorded(parameter: Parameter) -> str:
    return (
        f"argument {parameter.name} ({parameter.type}): its value was not recorded; "
        f"record with {_FLAG}"
    )


def _is_scalar(item: RecordedArgument) -> bool:
    return item.type == "Scalar" or (item.type in _VALUELESS and item.dims == ())


def _flat(sizes: object) -> tuple[int, ...]:
    if isinstance(sizes, tuple) and all(isinstance(s, int) for s in sizes):
        return sizes
    raise _Lost("argument_lost", f"its sizes are not numbers: {sizes}")


def _number(text: str) -> Number:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float, complex):
        try:
            return kind(text)
        except ValueError:
            continue
    raise _Lost("argument_lost", f"its recorded value is not a number: {text}")


def _numbers(text: str) -> tuple[Number, ...]:
    inner = text.strip()[1:-1].strip()
    return tuple(_number(part.strip()) for part in inner.split(",") if part.strip())


def _as_kind(parameter: Parameter, number: Number) -> Number:
    """The number as the parameter's kind; an integer may stand for a float, nothing else."""
    kind = parameter.kind
    if kind == "float" and isinstance(number, int | float) and not isinstance(number, bool):
        return float(number)
    plain = isinstance(number, int) and not isinstance(number, bool)
    fits = kind == "Scalar" or (isinstance(number, bool) if kind == "bool" else plain)
    if not fits or kind not in ("bool", "Scalar", *_INTEGER_KINDS):
        raise _Misfit(f"the number {number} was recorded")
    return number


def _enum(parameter: Parameter, text: str) -> TorchValue:
    names = _ENUMS[parameter.kind]
    number = _number(text)
    if isinstance(number, bool) or not isinstance(number, int):
        raise _Misfit(f"{text} was recorded")
    name = names[number] if 0 <= number < len(names) else None
    if name is None:
        raise _Misfit(f"{text} was recorded, which names no {parameter.kind}")
    return TorchValue(_ENUM_VALUES[parameter.kind], name)  # type: ignore[arg-type]


def _plain(parameter: Parameter, value: object) -> Value:
    """A schema default in the form of a typed argument; enum defaults come as integers."""
    if isinstance(value, list):
        return tuple(value)
    if parameter.kind in _ENUMS and isinstance(value, int):
        return _enum(parameter, str(value))
    return value  # type: ignore[return-value]
