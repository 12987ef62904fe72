"""Resolves recorded calls: a call comes in, an operator with typed arguments goes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opreplay.resolve.call import Argument, ResolvedCall, TensorSpec, TorchValue, Value
from opreplay.resolve.namespaces import register_namespace, registered_namespaces

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """Imports the resolver, and torch with it, only where one is asked for."""
    if name == "Resolver":
        from opreplay.resolve.resolver import Resolver

        return Resolver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
