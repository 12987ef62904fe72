"""A recorded call against a user's kernel: a call comes in; both sides' times, in turn, go out."""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace

from opreplay import _C
from opreplay.attempt import Attempt, PreparedCall
from opreplay.options import ReplayOptions
from opreplay.outcome import Outcome
from opreplay.outputs import compare_outputs, compute
from opreplay.plan import PlannedCall
from opreplay.report.comparison import OutputCheck
from opreplay.resolve.resolver import Resolver
from opreplay.rounds import Round, take_in_turn
from opreplay.trace.call import RecordedCall, Skipped

__all__ = ["Contest", "Turn"]

Turn = tuple[RecordedCall | PlannedCall, int]
"""A call, and the number of the round."""


class Contest:
    """Runs the recorded operator and what replaces it on equal inputs, in turn, in one process."""

    def __init__(
        self,
        options: ReplayOptions,
        *,
        device: str,
        replacements: dict[str, str],
        tolerance: tuple[float, float] | None,
    ) -> None:
        """Reads the dispatcher and finds the functions that replace operators.

        Args:
            options: How calls are run.
            device: Where they run.
            replacements: ``"ns::name"`` or ``"package.module:function"`` by recorded operator.
            tolerance: Relative and absolute, of the outputs; None takes those of the dtypes.

        Raises:
            ImportError: A function cannot be imported.
        """
        self._resolver = Resolver(
            imports=options.imports, allow_mismatch=options.allow_mismatch, device=device
        )
        self._attempt = Attempt(options, device=device, resolver=self._resolver)
        self._seed = options.seed
        self._tolerance = tolerance
        self._operators = {op: name for op, name in replacements.items() if "::" in name}
        self._functions = {
            op: _function(name) for op, name in replacements.items() if "::" not in name
        }

    def __call__(self, job: Turn, started: Callable[[], None]) -> Round:
        """Plays one round; the first one also checks that both sides compute the same."""
        call, number = job
        found = self._attempt.resolve(call)
        if isinstance(found, Skipped):
            return Round(Outcome(reason=found.reason, detail=found.detail), None)
        started()
        sides = []
        for _ in "ab":  # inputs of their own, equal bit for bit
            prepared = self._attempt.prepare(found)
            if isinstance(prepared, Skipped):
                return Round(Outcome(reason=prepared.reason, detail=prepared.detail), None)
            sides.append(prepared)
        known = Outcome(
            resolved_op=found.resolved_op, overload=found.overload, schema=found.schema,
            bytes=sides[0].inputs.bytes, assumptions=found.assumptions,
        )  # fmt: skip
        try:
            recorded, replaced = self._both(sides[0], sides[1])
            outputs = self._check(recorded, replaced) if number == 0 else None
        except Exception as error:  # A user's kernel is foreign code; what it raises fails the row.
            sentence = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            failed = replace(known, reason="failed", detail=sentence)
            return Round(self._attempt.measure(sides[0], known), failed)
        played = take_in_turn(
            lambda: self._attempt.measure(recorded, known),
            lambda: self._attempt.measure(replaced, known),
            number=number,
        )
        return replace(played, outputs=outputs)

    def _both(
        self, recorded: PreparedCall, replaced: PreparedCall
    ) -> tuple[PreparedCall, PreparedCall]:
        """Gives each side its call; both are made from Python if one of them has to be."""
        resolved = recorded.resolved
        function = self._functions.get(resolved.op)
        if function is None:
            arguments = replaced.inputs.arguments
            handle = self._resolver.replacement(self._operators[resolved.op], len(arguments))
            return recorded, replace(replaced, call=_C.Call(handle, arguments))
        if resolved.schema is None:  # the recorded side is a Python call already
            return recorded, replace(replaced, call=_bound(function, replaced, {}))
        own, defaults = self._resolver.from_python(resolved)
        return (
            replace(recorded, call=_bound(own, recorded, defaults)),
            replace(replaced, call=_bound(function, replaced, defaults)),
        )

    def _check(self, recorded: PreparedCall, replaced: PreparedCall) -> OutputCheck:
        right, found = (
            compute(one.resolved, one.inputs, one.call, mode=one.mode, seed=self._seed)
            for one in (recorded, replaced)
        )
        return compare_outputs(right, found, self._tolerance)


def _function(name: str) -> Callable[..., object]:
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., object] = operator.attrgetter(attribute)(
            importlib.import_module(module)
        )
    except AttributeError as error:
        raise ImportError(f"{name}: {error}") from error
    return found


def _bound(
    function: Callable[..., object], prepared: PreparedCall, defaults: Mapping[str, object]
) -> Callable[[], object]:
    """A call as Python makes it: what goes by name only is left out where it is the default."""
    names = (argument.name for argument in prepared.resolved.arguments)
    values = dict(zip(names, prepared.inputs.arguments, strict=True))
    named = {name: values.pop(name) for name in defaults}
    told = {name: value for name, value in named.items() if value != defaults[name]}
    return functools.partial(function, *values.values(), **told)
