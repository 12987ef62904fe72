"""Resolves recorded calls: a call comes in, an operator with typed arguments goes out."""

from __future__ import annotations

from opreplay.resolve.call import Argument, ResolvedCall, TensorSpec, TorchValue, Value
from opreplay.resolve.namespaces import register_namespace, registered_namespaces
from opreplay.resolve.resolver import Resolver

__all__ = [
    "Argument",
    "ResolvedCall",
    "Resolver",
    "TensorSpec",
    "TorchValue",
    "Value",
    "register_namespace",
    "registered_namespaces",
]
