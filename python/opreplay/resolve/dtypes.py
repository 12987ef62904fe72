"""The one table of element types: profiler names and enum values come in, torch dtypes go out."""

from __future__ import annotations

import torch

__all__ = ["PYTHON_NUMBER_DTYPES", "SCALAR_TYPES", "dtype_of_name", "profiler_name"]


def _torch_dtypes(*names: str) -> tuple[torch.dtype | None, ...]:
    """The dtypes of these names; None where this torch has no such dtype."""
    return tuple(getattr(torch, name, None) for name in names)


SCALAR_TYPES: tuple[torch.dtype | None, ...] = _torch_dtypes(
    # In the order of c10::ScalarType (c10/core/ScalarType.h): the profiler records its values.
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    *("uint16", "uint32", "uint64"),
    *(f"uint{bits}" for bits in range(1, 8)),
    *(f"int{bits}" for bits in range(1, 8)),
    *("float8_e8m0fnu", "float4_e2m1fn_x2"),
)
"""torch dtypes by their value as a ``ScalarType`` argument."""

_NAMES: dict[str, tuple[str, ...]] = {
    # The C++ name of the element type as compilers print it, and the capitalised names of
    # hand-made traces.
    "float16": ("c10::Half", "Half", "half"),
    "bfloat16": ("c10::BFloat16", "BFloat16"),
    "float32": ("float", "Float"),
    "float64": ("double", "Double"),
    "complex32": ("c10::complex<c10::Half>", "ComplexHalf"),
    "complex64": ("c10::complex<float>", "ComplexFloat"),
    "complex128": ("c10::complex<double>", "ComplexDouble"),
    "bool": ("bool", "Bool"),
    "uint8": ("unsigned char", "Byte"),
    "int8": ("signed char", "char", "Char"),
    "int16": ("short int", "short", "Short"),
    "int32": ("int", "Int"),
    "int64": ("long int", "long", "long long", "long long int", "Long"),
    "uint16": ("unsigned short", "short unsigned int", "UInt16"),
    "uint32": ("unsigned int", "unsigned", "UInt32"),
    "uint64": (
        *("unsigned long", "long unsigned int", "unsigned long long"),
        *("long long unsigned int", "UInt64"),
    ),
    "float8_e4m3fn": ("c10::Float8_e4m3fn", "Float8_e4m3fn"),
    "float8_e4m3fnuz": ("c10::Float8_e4m3fnuz", "Float8_e4m3fnuz"),
    "float8_e5m2": ("c10::Float8_e5m2", "Float8_e5m2"),
    "float8_e5m2fnuz": ("c10::Float8_e5m2fnuz", "Float8_e5m2fnuz"),
    "float8_e8m0fnu": ("c10::Float8_e8m0fnu", "Float8_e8m0fnu"),
    "float4_e2m1fn_x2": ("c10::Float4_e2m1fn_x2", "Float4_e2m1fn_x2"),
    "qint8": ("c10::qint8", "QInt8"),
    "quint8": ("c10::quint8", "QUInt8"),
    "qint32": ("c10::qint32", "QInt32"),
    "quint4x2": ("c10::quint4x2", "QUInt4x2"),
    "quint2x4": ("c10::quint2x4", "QUInt2x4"),
}

_BY_NAME: dict[str, torch.dtype] = {
    name: dtype
    for dtype_name, names in _NAMES.items()
    for name in names
    if (dtype := getattr(torch, dtype_name, None)) is not None
}

PYTHON_NUMBER_DTYPES = frozenset({torch.float64, torch.int64, torch.bool, torch.complex128})
"""What the profiler records for a Python number that stands where the schema wants a tensor."""


def dtype_of_name(name: str) -> torch.dtype | None:
    """Returns the dtype that a profiler's type name stands for; None if it names no dtype."""
    return _BY_NAME.get(name)


def profiler_name(dtype: torch.dtype) -> str:
    """Returns the name that the profiler records for a dtype.

    Raises:
        KeyError: The profiler has no name for it.
    """
    return _NAMES[str(dtype).removeprefix("torch.")][0]
