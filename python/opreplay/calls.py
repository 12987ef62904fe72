"""Single calls from Python: a recorded call comes in, its meaning or a call to time goes out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from opreplay.options import ReplayOptions
from opreplay.resolve.call import ResolvedCall
from opreplay.resolve.namespaces import register_namespace
from opreplay.trace.call import RecordedCall, Skipped

if TYPE_CHECKING:
    from opreplay import _C
    from opreplay.resolve.resolver import Resolver

__all__ = ["prepare", "resolve"]


def resolve(call: RecordedCall, *, options: ReplayOptions | None = None) -> ResolvedCall | Skipped:
    """Finds the operator that a recorded call called and types its arguments.

    Args:
        call: One call of a trace.
        options: Which modules to import, and the device that it shall run on.

    Returns:
        The operator with typed arguments, or why it cannot run here.
    """
    return _resolver(options or ReplayOptions()).resolve(call)


def prepare(
    call: RecordedCall | ResolvedCall, *, options: ReplayOptions | None = None
) -> _C.Call | Callable[[], object] | Skipped:
    """Gives a call its inputs.

    Args:
        call: One call of a trace, resolved or not.
        options: Seed, device and memory budget of the inputs.

    Returns:
        What `time_call` times; a function without parameters, for `time_callable`, where the
        operator has no schema; or why the call cannot be made here.
    """
    from opreplay.attempt import Attempt

    options = options or ReplayOptions()
    resolver = _resolver(options)
    found = resolver.resolve(call) if isinstance(call, RecordedCall) else call
    if isinstance(found, Skipped):
        return found
    prepared = Attempt(options, device=_device(options), resolver=resolver).prepare(found)
    return prepared if isinstance(prepared, Skipped) else prepared.call


def _device(options: ReplayOptions) -> str:
    from opreplay.environment import default_device

    return options.device or default_device()


def _resolver(options: ReplayOptions) -> Resolver:
    for namespace, modules in options.namespaces.items():
        register_namespace(namespace, *modules)
    return _kept_resolver(options.imports, options.allow_mismatch, _device(options))


@functools.lru_cache(maxsize=8)
def _kept_resolver(imports: tuple[str, ...], allow_mismatch: bool, device: str) -> Resolver:
    """Reading the dispatcher takes milliseconds, which many single calls shall not each pay."""
    from opreplay.resolve.resolver import Resolver

    return Resolver(imports=imports, allow_mismatch=allow_mismatch, device=device)
