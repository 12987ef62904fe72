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
    from opreplay.attempt import Attempt
    from opreplay.resolve.resolver import Resolver

__all__ = ["attempt_for", "prepare", "resolve", "resolve_with"]


def resolve(call: RecordedCall, *, options: ReplayOptions | None = None) -> ResolvedCall | Skipped:
    """Finds the operator that a recorded call called and types its arguments.

    Args:
        call: One call of a trace.
        options: Which modules to import, and the device that it shall run on.

    Returns:
        The operator with typed arguments, or why it cannot run here.
    """
    return resolve_with(attempt_for(options or ReplayOptions()), call)


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
    attempt = attempt_for(options or ReplayOptions())
    found = resolve_with(attempt, call) if isinstance(call, RecordedCall) else call
    if isinstance(found, Skipped):
        return found
    prepared = attempt.prepare(found)
    return prepared if isinstance(prepared, Skipped) else prepared.call


def resolve_with(attempt: Attempt, call: RecordedCall) -> ResolvedCall | Skipped:
    """Resolves a call, and again if a library may have registered its operator meanwhile."""
    found = attempt.resolve(call)
    if isinstance(found, Skipped) and found.reason == "operator_unresolved":
        attempt.refresh()
        found = attempt.resolve(call)
    return found


def attempt_for(options: ReplayOptions) -> Attempt:
    """Returns what takes single calls through the rooms with these options."""
    from opreplay.attempt import Attempt
    from opreplay.environment import default_device

    for namespace, modules in options.namespaces.items():
        register_namespace(namespace, *modules)
    device = options.device or default_device()
    resolver = _kept_resolver(options.imports, options.allow_mismatch, device)
    return Attempt(options, device=device, resolver=resolver)


@functools.lru_cache(maxsize=8)
def _kept_resolver(imports: tuple[str, ...], allow_mismatch: bool, device: str) -> Resolver:
    """Reading the dispatcher takes milliseconds, which many single calls shall not each pay."""
    from opreplay.resolve.resolver import Resolver

    return Resolver(imports=imports, allow_mismatch=allow_mismatch, device=device)
