"""Which modules register the operators of a namespace: a namespace comes in, imports happen."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import operator
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from types import ModuleType
from typing import Any

__all__ = [
    "Namespaces",
    "import_operators",
    "operator_table",
    "register_namespace",
    "registered_namespaces",
]

_log = logging.getLogger(__name__)
_ENTRY_POINTS = "opreplay.namespaces"
_OF_TORCH = frozenset(
    {"aten", "prim", "prims", "quantized", "onednn", "mkldnn", "sparse", "profiler", "opreplay"}
)

_registered: dict[str, tuple[str, ...]] = {}


def register_namespace(namespace: str, *modules: str) -> None:
    """Says which modules register the operators of a namespace when they are imported.

    A registration beats the built-in table and plug-ins, and clears an earlier failure.

    Args:
        namespace: What stands before ``::`` in the operators' names.
        modules: Module names, tried in order; ``"module:attribute.call"`` calls a function of one.

    Raises:
        ValueError: No module is named, or the namespace is not an identifier.
    """
    if not namespace.isidentifier():
        raise ValueError(f"a namespace is an identifier, got {namespace!r}")
    if not modules:
        raise ValueError(f"name at least one module that registers {namespace}::")
    _registered[namespace] = modules


def registered_namespaces() -> dict[str, tuple[str, ...]]:
    """The registrations of this process, to be handed to a worker."""
    return dict(_registered)


def operator_table() -> Mapping[str, Any]:
    """The data file of imports, renamed operators and string defaults."""
    text = resources.files("opreplay.resolve").joinpath("operators.json").read_text()
    table: Mapping[str, Any] = json.loads(text)
    return table


class Namespaces:
    """Imports what registers a namespace, once; only success is remembered."""

    def __init__(self, table: Mapping[str, Iterable[str]]) -> None:
        """Takes the built-in table; plug-ins come from entry points, the user's from the registry.

        Args:
            table: Modules by namespace.
        """
        self._table = {namespace: tuple(modules) for namespace, modules in table.items()}
        for entry in importlib.metadata.entry_points(group=_ENTRY_POINTS):
            self._table[entry.name] = (entry.value,)
        self._loaded: dict[str, dict[str, ModuleType]] = {}
        self._failed: dict[str, tuple[tuple[str, ...], str]] = {}

    def modules_of(self, namespace: str) -> tuple[str, ...]:
        """Names of the modules that register a namespace; empty where none is known."""
        return _registered.get(namespace, self._table.get(namespace, ()))

    def load(self, namespace: str) -> str | None:
        """Imports what registers a namespace. Returns why that failed, or None.

        A namespace that neither the table nor the user names is never imported: a trace is foreign
        input, and importing runs code.
        """
        modules = self.modules_of(namespace)
        if namespace in self._loaded or (not modules and namespace in _OF_TORCH):
            return None
        if not modules:
            return (
                f"nothing says which module registers {namespace}::; name it with --import MODULE "
                "or opreplay.register_namespace"
            )
        if namespace in self._failed and self._failed[namespace][0] is modules:
            return self._failed[namespace][1]  # a new registration is another tuple
        importlib.invalidate_caches()  # the modules may have been written since
        imported: dict[str, ModuleType] = {}
        failures = []
        for name in modules:
            try:
                imported[name] = _import(name)
            except Exception as error:
                failures.append(f"{name}: {type(error).__name__}: {error}")
        if imported:
            self._loaded[namespace] = imported
            self._failed.pop(namespace, None)
            return None
        reason = f"importing {' and '.join(failures)}"
        self._failed[namespace] = (modules, reason)
        _log.debug("namespace %s: %s", namespace, reason)
        return reason

    def loaded(self, namespace: str) -> tuple[str, ...]:
        """Those of `modules_of` a namespace that were imported, with the function to call."""
        return tuple(self._loaded.get(namespace, ()))

    def callable_of(self, name: str) -> Callable[..., object] | None:
        """The plain Python function that an imported module has under an operator's name."""
        namespace, _, function = name.partition("::")
        for module in self._loaded.get(namespace, {}).values():
            found = getattr(module, function, None)
            if callable(found):
                return found  # type: ignore[no-any-return]
        return None


def import_operators(name: str) -> None:
    """Imports a module that registers operators, or loads a shared library that does.

    Raises:
        ImportError: There is no such module, or the library cannot be loaded.
    """
    if not name.endswith(".so"):
        importlib.import_module(name)
        return
    import torch

    try:
        torch.ops.load_library(name)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ImportError(f"{name}: {error}") from error


def _import(name: str) -> ModuleType:
    module_name, _, call = name.partition(":")
    module = importlib.import_module(module_name)
    if call:
        operator.attrgetter(call)(module)()
    return module
