"""Holds a plain function that a trace may name as if it were an operator."""

from __future__ import annotations


def double(x):
    return x + x


def refuse_dtype(x):
    raise RuntimeError("\"plain_kernel\" not implemented for 'Float'")
