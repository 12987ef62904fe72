"""Kernels of a user: some are slow, some wrong, some refuse."""

from __future__ import annotations

import time

import torch

_LIBRARY = torch.library.Library("slow", "DEF")


def _define(schema, function):
    _LIBRARY.define(schema)
    _LIBRARY.impl(schema.partition("(")[0], function, "CPU")


def mm_late(a, b):
    time.sleep(0.005)
    return torch.mm(a, b)


def mm_wrong(a, b):
    return torch.mm(a, b) + 1


def mm_raises(a, b):
    raise RuntimeError("no kernel for this shape\nmore that nobody reads")


def gelu(x, *, approximate="none"):
    return torch.nn.functional.gelu(x, approximate=approximate)


def add_inplace(x, other, *, alpha=1):
    return x.add_(other, alpha=alpha)


def add_elsewhere(x, other, *, alpha=1):
    return torch.add(x, other, alpha=alpha)


_define("mm_late(Tensor a, Tensor b) -> Tensor", mm_late)
_define("mm_short(Tensor a) -> Tensor", lambda a: a)
