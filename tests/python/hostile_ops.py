"""Registers operators that do what real ones have done: die, hang, raise, break the device."""

from __future__ import annotations

import ctypes
import os
import time

import torch

_LIBRARY = torch.library.Library("hostile", "DEF")


def _define(name, function):
    _LIBRARY.define(f"{name}(Tensor x) -> Tensor")
    _LIBRARY.impl(name, function, "CPU")


def _segfault(x):
    ctypes.string_at(0)


def _abort(x):
    os.abort()


def _hang(x):
    time.sleep(60)


def _refuse(x):
    raise RuntimeError("the shapes do not fit\nand more that nobody reads")


def _break_device(x):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def _run_out_of_memory(x):
    raise MemoryError("no room")


def _use_missing_kernel(x):
    raise NotImplementedError("Could not run 'aten::inner' with arguments from the 'CPU' backend.")


for _name, _function in {
    "segfault": _segfault,
    "abort": _abort,
    "hang": _hang,
    "refuse": _refuse,
    "break_device": _break_device,
    "run_out_of_memory": _run_out_of_memory,
    "use_missing_kernel": _use_missing_kernel,
}.items():
    _define(_name, _function)
