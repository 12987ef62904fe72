"""Finds the overload that a recorded call called: a call comes in, typed arguments go out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch._ops import OpOverload

from opreplay import _C
from opreplay.resolve.call import Argument, ResolvedCall
from opreplay.resolve.match import Match, fit, positional_arguments
from opreplay.resolve.namespaces import Namespaces, import_operators, operator_table
from opreplay.resolve.strings import string_default
from opreplay.trace.call import RecordedArgument, RecordedCall, Skipped
from opreplay.trace.kinds import REASON_OF_KIND, classify

__all__ = ["Resolver"]

_log = logging.getLogger(__name__)

_KIND_DETAILS = {
    "engine_context": "{name} looks up its layer in a running engine by a name that the profiler "
    "drops; replay the operators that it calls instead",
    "collective": "{name} needs a process group; collectives are not replayed",
    "triton": "{name} is the launch of a generated Triton kernel, not an operator",
    "compiled_region": "{name} is a region of compiled code; the operators inside it are rows of "
    "their own",
    "autograd": "{name} is a node of the autograd engine; the operators inside it are rows of "
    "their own",
    "range": "{name} is a Python range or function, not an operator of the dispatcher",
}
_DISPATCH_KEYS = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta", "xpu": "XPU", "mps": "MPS"}
_BACKEND_KEYS = ("CPU", "CUDA", "XPU", "MPS", "PrivateUse1")


class Resolver:
    """Resolves recorded calls against the operators that this process knows."""

    def __init__(
        self,
        *,
        imports: Sequence[str] = (),
        allow_mismatch: bool = False,
        device: str | None = "cpu",
    ) -> None:
        """Reads the dispatcher.

        Args:
            imports: Modules to import first, or shared libraries (.so): they register operators.
            allow_mismatch: Take a call whose operator is registered, but with other arguments, as
                a call of the Python operator with all arguments positional.
            device: Where the calls will run; an operator without a kernel there is skipped. None
                leaves that open, for a plan that runs elsewhere (`check` asks it there).

        Raises:
            ImportError: A module or library of `imports` cannot be loaded.
        """
        for name in imports:
            import_operators(name)
        self._table = operator_table()
        self._namespaces = Namespaces(self._table["imports"])
        self._index = _C.OperatorIndex()
        self._allow_mismatch = allow_mismatch
        self._key = (
            None if device is None else _DISPATCH_KEYS.get(torch.device(device).type, "PrivateUse1")
        )
        self._parameters: dict[str, list[tuple[_C.Operator, list[_C.Parameter]]]] = {}

    def resolve(self, call: RecordedCall) -> ResolvedCall | Skipped:
        """Finds the operator and types the arguments of a recorded call."""
        kind = classify(call.name)
        reason = REASON_OF_KIND[kind]
        if reason is not None:
            return Skipped(reason, _KIND_DETAILS[kind].format(name=call.name))
        if call.arguments is None:
            return Skipped(
                "metadata_missing",
                f"the trace records no types or shapes for {call.name}; record with "
                "torch.profiler.profile(record_shapes=True)",
            )
        services = self._table["accelerator_services"]
        if self._key is not None and call.name in services and not _has_accelerator():
            return Skipped("backend_missing", f"{call.name} needs an accelerator, there is none")
        name, overloads, failure = self._find(call.name)
        if not overloads:
            return self._without_schema(call, call.arguments, failure)
        typed = self._choose(call, call.arguments, name, overloads)
        return typed if isinstance(typed, Skipped) else self.check(typed)

    def refresh(self) -> None:
        """Reads the dispatcher again, for libraries that were loaded since."""
        self._index.refresh()

    def check(self, resolved: ResolvedCall) -> ResolvedCall | Skipped:
        """Says whether a typed call, perhaps of a plan made elsewhere, can run here.

        The dispatcher is asked whether the device has a kernel; autograd may hold the only one.
        """
        if self._key is None:
            return resolved
        try:
            if resolved.schema is None:
                self.python_callable(resolved)
                return resolved
            operator = self.operator(resolved)
        except LookupError as error:
            failure = self._namespaces.load(resolved.resolved_op.partition("::")[0])
            return Skipped(
                "operator_unresolved", f"{error}{': ' if failure else ''}{failure or ''}"
            )
        pinned = any(a.name == "pin_memory" and a.value is True for a in resolved.arguments)
        if pinned and not _has_accelerator():
            return Skipped(
                "backend_missing",
                f"{resolved.op} asks for pinned memory, which needs an accelerator",
            )
        if operator.has_kernel(self._key):
            return resolved
        # torch's own operators have derivatives at autograd, which call the backend's kernel; only
        # a library's operator without a kernel for any backend does its work there.
        elsewhere = any(operator.has_kernel(key) for key in _BACKEND_KEYS)
        at_autograd = any(operator.registers(k) for k in ("Autograd", f"Autograd{self._key}"))
        if at_autograd and not elsewhere and not resolved.resolved_op.startswith("aten::"):
            note = "the operator's only kernel sits at autograd, it runs under no-grad mode"
            return replace(resolved, needs_autograd=True, assumptions=(*resolved.assumptions, note))
        return Skipped(
            "backend_missing",
            f"{resolved.resolved_op} has no kernel for {self._key} in this process",
        )

    def modules_of(self, op: str) -> tuple[str, ...]:
        """Imports what registers an operator's namespace; returns the names of those modules."""
        namespace = op.partition("::")[0]
        self._namespaces.load(namespace)
        return self._namespaces.loaded(namespace)

    def operator(self, resolved: ResolvedCall) -> _C.Operator:
        """The dispatcher's handle for a resolved call.

        Raises:
            LookupError: No library here registers the operator.
        """
        for operator, _ in self._overloads(resolved.resolved_op):
            if operator.overload == resolved.overload:
                return operator
        raise LookupError(
            f"no library here registers {resolved.resolved_op} with overload "
            f"{resolved.overload or 'default'!r}"
        )

    def python_callable(self, resolved: ResolvedCall) -> Callable[..., object]:
        """The Python function for a resolved call that has no schema.

        Raises:
            LookupError: There is none under this name.
        """
        namespace, _, function = resolved.resolved_op.partition("::")
        if self._overloads(resolved.resolved_op):
            return getattr(getattr(torch.ops, namespace), function)  # type: ignore[no-any-return]
        found = self._namespaces.callable_of(resolved.resolved_op)
        if found is None:
            raise LookupError(f"no module here has a function {resolved.resolved_op}")
        return found

    def from_python(self, resolved: ResolvedCall) -> tuple[OpOverload, dict[str, object]]:
        """What calls an operator from Python; the defaults of what it takes by name only.

        Raises:
            LookupError: No library here registers the operator.
        """
        self.operator(resolved)
        namespace, _, name = resolved.resolved_op.partition("::")
        overloads = getattr(getattr(torch.ops, namespace), name)
        function: OpOverload = getattr(overloads, resolved.overload or "default")
        named = [one for one in function._schema.arguments if one.kwarg_only]
        return function, {one.name: one.default_value for one in named}

    def replacement(self, name: str, arguments: int) -> _C.Operator:
        """The operator ``ns::name`` or ``ns::name.overload`` that takes so many arguments.

        Raises:
            LookupError: No library here registers one.
        """
        base, _, overload = name.partition(".")
        found = [
            (operator, parameters)
            for operator, parameters in self._overloads(base)
            if overload in ("", operator.overload)
        ]
        for operator, parameters in found:
            if len(parameters) == arguments:
                return operator
        schemas = "; ".join(operator.schema for operator, _ in found)
        raise LookupError(
            f"no overload of {name} takes the {arguments} arguments of the recorded call"
            + (f": {schemas}" if schemas else ", for no library here registers it")
        )

    def _overloads(self, name: str) -> list[tuple[_C.Operator, list[_C.Parameter]]]:
        """Overloads with their parameters, read from the dispatcher once."""
        if name not in self._parameters:
            found = self._index.overloads(name)
            if not found and self._namespaces.load(name.partition("::")[0]) is None:
                self._index.refresh()
                found = self._index.overloads(name)
            if not found:
                return []
            self._parameters[name] = [(operator, operator.parameters) for operator in found]
        return self._parameters[name]

    def _find(
        self, name: str
    ) -> tuple[str, list[tuple[_C.Operator, list[_C.Parameter]]], str | None]:
        """The name under which an operator is registered here, and its overloads."""
        names = [name, *self._table["renames"].get(name, ())]
        for candidate in names:
            overloads = self._overloads(candidate)
            if overloads:
                return candidate, overloads, None
        return name, [], self._namespaces.load(name.partition("::")[0])

    def _choose(
        self,
        call: RecordedCall,
        recorded: Sequence[RecordedArgument],
        name: str,
        overloads: Sequence[tuple[_C.Operator, list[_C.Parameter]]],
    ) -> ResolvedCall | Skipped:
        text_of = functools.partial(string_default, self._table, name)
        matches: list[Match] = []
        rejected: list[tuple[str, str]] = []
        named = [entry for entry in overloads if entry[0].overload == call.overload]
        for operator, parameters in named or overloads:
            given, added = self._complete(name, recorded, parameters)
            found = fit(operator, parameters, given, text_of)
            if isinstance(found, str):
                rejected.append((operator.schema, found))
            else:
                matches.append(replace(found, assumptions=(*found.assumptions, *added)))
        if not matches:
            return self._mismatch(call, recorded, name, rejected)
        matches.sort(key=lambda match: match.cost)
        best = matches[0]
        if best.lost:
            return best.lost[0]
        assumptions = list(best.assumptions)
        if name != call.name:
            assumptions.insert(0, f"{call.name} is called {name} here")
        if call.overload is not None and not named:
            assumptions.append(
                f"overload {call.overload or 'default'!r}, which the trace names, is not "
                f"registered here: {best.operator.overload or 'default'!r} was taken"
            )
        equal = [m.operator.overload or "default" for m in matches[1:] if m.cost == best.cost]
        if equal:
            assumptions.append(
                f"overloads {', '.join([best.operator.overload or 'default', *equal])} fit "
                "equally, the first was taken"
            )
        return ResolvedCall(
            op=call.name,
            resolved_op=name,
            overload=best.operator.overload,
            schema=best.operator.schema,
            arguments=best.arguments,
            assumptions=tuple(assumptions),
            rejected=tuple(rejected),
        )

    def _complete(
        self,
        name: str,
        recorded: Sequence[RecordedArgument],
        parameters: Sequence[_C.Parameter],
    ) -> tuple[Sequence[RecordedArgument], list[str]]:
        """Leaves room for arguments that the operator got after the trace was recorded.

        Returns:
            The recorded arguments, and a sentence for each one that was put between them.
        """
        younger: dict[str, str] = self._table["added_arguments"].get(name, {})
        absent = len(parameters) - len(recorded)
        if not 0 < absent <= len(younger):
            return recorded, []
        latest = dict(list(younger.items())[-absent:])
        given = list(recorded)
        for index, parameter in enumerate(parameters):
            if (value := latest.get(parameter.name)) is not None:
                given.insert(index, RecordedArgument("Scalar" if value else "", (), (), value))
        return given, [
            f"{added}: the recorded form has no such argument, {value or None} was taken"
            for added, value in latest.items()
        ]

    def _mismatch(
        self,
        call: RecordedCall,
        recorded: Sequence[RecordedArgument],
        name: str,
        rejected: list[tuple[str, str]],
    ) -> ResolvedCall | Skipped:
        reasons = "; ".join(f"{schema}: {why}" for schema, why in rejected)
        if self._allow_mismatch:
            return self._positional(call, recorded, name, tuple(rejected))
        return Skipped(
            "schema_mismatch",
            f"{name} is registered, but none of its {len(rejected)} schemas fits: {reasons}",
        )

    def _without_schema(
        self, call: RecordedCall, recorded: Sequence[RecordedArgument], failure: str | None
    ) -> ResolvedCall | Skipped:
        if self._namespaces.callable_of(call.name) is not None:
            return self._positional(call, recorded, call.name, ())
        why = failure or f"torch {torch.__version__} and what is loaded here do not have it"
        return Skipped("operator_unresolved", f"no library here registers {call.name}: {why}")

    def _positional(
        self,
        call: RecordedCall,
        recorded: Sequence[RecordedArgument],
        name: str,
        rejected: tuple[tuple[str, str], ...],
    ) -> ResolvedCall | Skipped:
        """A call of a Python function with every argument in its place, timed by a Python loop."""
        typed = positional_arguments(recorded)
        if isinstance(typed, Skipped):
            return typed
        arguments: tuple[Argument, ...]
        arguments, guesses = typed
        refused = "".join(f"; {schema}: {why}" for schema, why in rejected)
        sentence = (
            f"{name} is called as a Python function with all arguments positional: "
            f"{len(rejected)} schemas were searched{refused}"
        )
        _log.warning("%s", sentence)
        return ResolvedCall(
            op=call.name,
            resolved_op=name,
            overload="",
            schema=None,
            arguments=arguments,
            assumptions=(sentence, *guesses),
            rejected=rejected,
        )


def _has_accelerator() -> bool:
    return torch.accelerator.is_available()
