"""A script in C++: the contents of a call come in, text goes out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from opreplay import _C
from opreplay.resolve.call import TorchValue
from opreplay.script.contents import SCALAR_TYPES, ScriptArgument, ScriptCall, ScriptTensor
from opreplay.script.writer import Writer, base64_lines

__all__ = ["cpp_text"]

_LAYOUTS = {
    "strided": "Strided",
    "sparse_coo": "Sparse",
    "sparse_csr": "SparseCsr",
    "sparse_csc": "SparseCsc",
    "sparse_bsr": "SparseBsr",
    "sparse_bsc": "SparseBsc",
    "_mkldnn": "Mkldnn",
    "jagged": "Jagged",
}
_MEMORY_FORMATS = {
    "contiguous_format": "Contiguous",
    "preserve_format": "Preserve",
    "channels_last": "ChannelsLast",
    "channels_last_3d": "ChannelsLast3d",
}
_ELEMENTS = {"Tensor": "at::Tensor", "float": "double", "bool": "bool", "str": "std::string"}
"""Types of the elements of lists; integers of every kind are int64_t."""


def cpp_text(call: ScriptCall) -> str:
    """Writes a program that builds with libtorch."""
    return _Cpp(call).text()


class _Cpp(Writer):
    template = "reproducer.cpp.in"
    mark = "//"
    view_as_complex = "at::view_as_complex"

    def dtype(self, dtype: torch.dtype) -> str:
        return f"at::k{SCALAR_TYPES[dtype]}"

    def sequence(self, values: Iterable[str]) -> str:
        return f"{{{', '.join(values)}}}"

    def plain(self, value: bool | int | float | complex | str | None) -> str:
        if value is None:
            return "c10::IValue()"
        if isinstance(value, str):
            return f'"{"".join(map(_escaped, value.encode()))}"s'
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, complex):
            return f"c10::complex<double>({self.plain(value.real)}, {self.plain(value.imag)})"
        limits = f"std::numeric_limits<{'double' if isinstance(value, float) else 'int64_t'}>::"
        if value != value:
            return f"{limits}quiet_NaN()"
        if isinstance(value, float) and abs(value) == float("inf"):
            return f"{'-' if value < 0 else ''}{limits}infinity()"
        return f"{limits}min()" if value == -(2**63) and isinstance(value, int) else repr(value)

    def pack(self, data: bytes) -> str:
        return base64_lines(data)

    def memory_line(self, name: str, text: str) -> str:
        return f"  const at::Tensor {name} = {text};"

    def argument_line(self, argument: ScriptArgument) -> str:
        parameter = argument.parameter
        storage = ".storage()" if parameter.kind == "Storage" else ""
        value = self._value(parameter, argument.value)
        return f"  arguments.emplace_back({value}{storage});  // {parameter.name}"

    def written_line(self, place: int, name: str) -> str:
        return f'  show("{name}", arguments[{place}]);'

    def parts(self) -> dict[str, object]:
        return {
            "op": self.call.op,
            "overload": self.call.overload,
            "guard": "at::NoGradGuard" if self.call.mode == "no_grad" else "c10::InferenceMode",
        }

    def _value(self, parameter: _C.Parameter, value: Any) -> str:
        """An argument as the schema types it."""
        if isinstance(value, tuple):
            return self._list(parameter, value)
        if value is None and not parameter.optional:
            made = {"Tensor": "at::Tensor()", "Generator": "at::Generator()"}
            return made.get(parameter.kind, self.plain(None))
        return self._single(parameter, value)

    def _single(self, parameter: _C.Parameter, value: Any) -> str:
        if isinstance(value, ScriptTensor):
            return self.tensor(value)
        if isinstance(value, TorchValue):
            return self._torch_value(value)
        if value is None or isinstance(value, str):
            return self.plain(value)
        if parameter.kind == "Tensor":
            return f"at::native::wrapped_scalar_tensor({self._number(value)})"
        if parameter.kind in ("float", "bool"):
            return self.plain(float(value) if parameter.kind == "float" else bool(value))
        return self._number(value)

    def _number(self, value: bool | int | float | complex) -> str:
        """A number of its own type, for what takes any."""
        text = self.plain(value)
        return f"int64_t{{{text}}}" if type(value) is int else text

    def _torch_value(self, value: TorchValue) -> str:
        if value.kind == "device":
            return "device"
        if value.kind == "generator":
            return "generator()"
        if value.kind == "dtype":
            name = self.dtype(getattr(torch, value.text))
        elif value.kind == "layout":
            name = f"at::Layout::{_LAYOUTS[value.text]}"
        else:
            name = f"at::MemoryFormat::{_MEMORY_FORMATS[value.text]}"
        return f"static_cast<int64_t>({name})"

    def _list(self, parameter: _C.Parameter, values: tuple[Any, ...]) -> str:
        if parameter.kind == "Scalar":
            return f"scalars({self.sequence(map(self._number, values))})"
        element = _ELEMENTS.get(parameter.kind, "int64_t")
        if parameter.optional_elements:
            element = f"std::optional<{element}>"
        texts = ["std::nullopt" if one is None else self._single(parameter, one) for one in values]
        return f"c10::List<{element}>({self.sequence(texts) if texts else ''})"


def _escaped(byte: int) -> str:
    """A byte within a string literal; three octal digits end by themselves, others might not."""
    plain = 32 <= byte < 127 and byte not in b'"\\?'
    return chr(byte) if plain else f"\\{byte:03o}"
