"""TraceLens' replayer on opreplay's engine: an event comes in, calls of its operator go out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from opreplay import _C
from opreplay.calls import attempt_for, resolve_with
from opreplay.environment import default_device
from opreplay.options import ReplayOptions
from opreplay.recipes import Recipe, RecipeCall
from opreplay.resolve.namespaces import register_namespace as _register_namespace
from opreplay.timing import time_block
from opreplay.trace.call import Skipped
from opreplay.trace.event_dicts import batch_of_event, trace_of_events
from opreplay.tracelens import custom_inits
from opreplay.tracelens.replay_ir import kwarg_only_names, replay_ir, repro_info, schema_of

__all__ = ["EventReplayer", "benchmark_func", "register_namespace"]

logger = logging.getLogger(__name__)


def register_namespace(namespace: str, modules: Sequence[str]) -> None:
    """Says which modules register the operators of a namespace when they are imported."""
    _register_namespace(namespace, *modules)


def benchmark_func(
    func: Callable[[], object], device: str, warmup: int = 50, avg_steps: int = 100
) -> float:
    """Times a function as TraceLens does: the mean of calls from Python in a row [microseconds].

    On an accelerator the device is waited for after the last call. What Python costs is in the
    figure: ``opreplay.time_call(replayer.call)`` leaves it out.

    Args:
        func: What to time.
        device: Where it works.
        warmup: Calls before the clock starts.
        avg_steps: Calls that are timed.
    """
    wait = torch.accelerator.synchronize if torch.device(device).type != "cpu" else None
    return time_block(func, warmup=warmup, steps=avg_steps, wait=wait) / 1000


class EventReplayer:
    """Replays one event of a trace."""

    register_custom_init = staticmethod(custom_inits.register_custom_init)
    remove_custom_init = staticmethod(custom_inits.remove_custom_init)
    list_custom_inits = staticmethod(custom_inits.list_custom_inits)
    register_namespace = staticmethod(register_namespace)

    args: list[Any]
    """Arguments passed by place; what is changed here is replayed. Lazy: there after a replay."""
    kwargs: dict[str, Any]
    """Arguments that the schema takes by keyword alone."""

    def __init__(
        self,
        event: Mapping[str, Any],
        device: str | None = None,
        lazy: bool = False,
        verbose: bool = False,
        auto_init: bool = True,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Resolves the event, and makes its arguments unless lazy.

        Args:
            event: One element of a trace's ``traceEvents``, or of `read_replay_ir` or
                `read_unique_args`.
            device: Where it runs; the default is the accelerator if there is one, else the CPU.
            lazy: Make the arguments anew for each replay, instead of once and now.
            verbose: Log the schema and what was chosen as warnings, so that they show.
            auto_init: Have the recipe or initializer of the operator fill its tensors; without,
                integers are zero.
            init_kwargs: What the initializer is called with; for opreplay's own, its parameters,
                by TraceLens' names or by those that ``opreplay recipes`` lists.

        Raises:
            RuntimeError: The operator cannot run here, or its arguments cannot be made.
            ValueError: The event is none, or no recipe has a parameter of `init_kwargs`.
        """
        self.event = event
        self.device = device or default_device()
        self.lazy = lazy
        self._level = logging.WARNING if verbose else logging.DEBUG
        options = ReplayOptions(device=self.device, allow_mismatch=True)
        self._attempt = attempt_for(options)
        call = next(trace_of_events([event]).calls())
        found = resolve_with(self._attempt, replace(call, batch=batch_of_event(event)))
        if isinstance(found, Skipped):
            raise _error(self.event, found)
        self._resolved = found
        self._log_assumptions(found.assumptions)
        self._keywords = kwarg_only_names(found.resolved_op, found.overload)
        known = found.schema is not None
        self.matched_schema = schema_of(found.resolved_op, found.overload) if known else None
        """The ``torch._C.FunctionSchema``; None for a plain Python function."""
        self.event_replay_IR = replay_ir(
            [(a.name, a.type, a.value) for a in found.arguments], self._keywords
        )
        """Name, schema type and description of each argument."""
        logger.log(self._level, "%s: %s", event["name"], found.schema)
        self._recipe = self._choose_recipe(auto_init, init_kwargs or {}, options)
        if not lazy:
            self._make_arguments()

    @property
    def call(self) -> _C.Call | Callable[[], object]:
        """The call with the arguments as they are, for ``opreplay.time_call``.

        A function without parameters, for ``opreplay.time_callable``, where there is no schema.
        """
        if not hasattr(self, "args"):
            self._make_arguments()
        by_keyword = [
            self.kwargs[a.name] for a in self._resolved.arguments if a.name in self.kwargs
        ]
        return self._attempt.with_arguments(self._resolved, [*self.args, *by_keyword])

    def replay(self) -> Any:
        """Runs the operator once and returns its result; several outputs are a tuple."""
        if self.lazy:
            self._make_arguments()
        call = self.call
        if not isinstance(call, _C.Call):
            return call()
        outputs = call.run("no_grad")
        return outputs[0] if len(outputs) == 1 else tuple(outputs) if outputs else None

    def get_repro_info(self) -> dict[str, Any]:
        """Returns the name and the replay IR of the call, ready for JSON."""
        return repro_info(self.event["name"], self.event_replay_IR)

    def take(self, call: RecipeCall) -> None:
        """Takes over the arguments of a materialised call, for an initializer to work on."""
        self.recipe_call = call
        self._take([call.value(name) for name in call.names])

    def _take(self, values: Sequence[Any]) -> None:
        named = list(zip((a.name for a in self._resolved.arguments), values, strict=True))
        self.args = [value for name, value in named if name not in self._keywords]
        self.kwargs = {name: value for name, value in named if name in self._keywords}

    def _choose_recipe(
        self, auto_init: bool, init_kwargs: Mapping[str, Any], options: ReplayOptions
    ) -> Recipe | None:
        op = self._resolved.resolved_op
        self._init = custom_inits.custom_init_of(op) if auto_init else None
        if not auto_init:
            return custom_inits.zeros_recipe(op)
        if self._init is not None:
            return custom_inits.init_recipe(self._init, op, self, init_kwargs)
        if init_kwargs:
            parameters = custom_inits.recipe_parameters(init_kwargs)
            self._attempt = attempt_for(replace(options, recipe_parameters=parameters))
        return None

    def _make_arguments(self) -> None:
        prepared = self._attempt.prepare(self._resolved, recipe=self._recipe)
        if isinstance(prepared, Skipped):
            raise _error(self.event, prepared)
        if self._init is None:
            self._take(prepared.inputs.arguments)
        self._log_assumptions(prepared.inputs.assumptions)
        if prepared.inputs.recipe is not None:
            logger.log(self._level, "%s: %s", self.event["name"], prepared.inputs.recipe)

    def _log_assumptions(self, assumptions: Sequence[str]) -> None:
        for sentence in assumptions:
            logger.warning("%s: %s", self.event["name"], sentence)


def _error(event: Mapping[str, Any], skipped: Skipped) -> RuntimeError:
    return RuntimeError(f"{event['name']}: {skipped.reason}: {skipped.detail}")
