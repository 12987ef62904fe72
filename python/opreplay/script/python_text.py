"""A script in Python: the contents of a call come in, text goes out."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import torch

from opreplay.resolve.call import TorchValue
from opreplay.script.contents import ScriptArgument, ScriptCall, ScriptTensor
from opreplay.script.writer import Writer, base64_lines

__all__ = ["python_text"]


def python_text(call: ScriptCall) -> str:
    """Writes a script that runs with torch and what registers the operator."""
    return _Python(call).text()


class _Python(Writer):
    template = "reproducer.py.in"
    mark = "#"
    view_as_complex = "torch.view_as_complex"

    def dtype(self, dtype: torch.dtype) -> str:
        return str(dtype)

    def sequence(self, values: Iterable[str]) -> str:
        return f"[{', '.join(values)}]"

    def plain(self, value: bool | int | float | complex | str | None) -> str:
        if isinstance(value, complex):
            return f"complex({self.plain(value.real)}, {self.plain(value.imag)})"
        if isinstance(value, float) and not abs(value) < float("inf"):
            return f'float("{value}")'
        return repr(value)

    def pack(self, data: bytes) -> str:
        return base64_lines(zlib.compress(data, 9))

    def memory_line(self, name: str, text: str) -> str:
        return f"{name} = {text}"

    def argument_line(self, argument: ScriptArgument) -> str:
        storage = ".untyped_storage()" if argument.parameter.kind == "Storage" else ""
        return f'    "{argument.parameter.name}": {self._value(argument.value)}{storage},'

    def written_line(self, place: int, name: str) -> str:
        return f'    show("{name}", arguments["{name}"])'

    def parts(self) -> dict[str, object]:
        namespace, _, name = self.call.op.partition("::")
        modules = [module.partition(":") for module in self.call.modules]
        needs = dict.fromkeys(module.partition(".")[0] for module, _, _ in modules)
        return {
            "needs": "".join(f" and {package}" for package in needs),
            "imports": "".join(
                f"import {module}\n{f'{chr(10)}{module}.{function}(){chr(10)}' if function else ''}"
                for module, _, function in modules
            ),
            "namespace": namespace,
            "name": name,
            "overload": self.call.overload or "default",
            "guard": "no_grad" if self.call.mode == "no_grad" else "inference_mode",
        }

    def _value(self, value: Any) -> str:
        if isinstance(value, tuple):
            return self.sequence(map(self._value, value))
        if isinstance(value, ScriptTensor):
            return self.tensor(value)
        if not isinstance(value, TorchValue):
            return self.plain(value)
        if value.kind == "device":
            return "device"
        if value.kind == "generator":
            return "torch.Generator(device).manual_seed(seed)"
        return f"torch.{value.text}"
