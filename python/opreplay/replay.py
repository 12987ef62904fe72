"""The corridor: a trace or plan goes through every room; rows, and a report, come out.

This side reads the trace, hands calls out and waits. It loads no torch: the worker does, at the
same time.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from opreplay.environment import Environment
from opreplay.isolation import Answer, Died, Factory, InProcess, Interpreter, Isolated, TimedOut
from opreplay.options import ReplayOptions
from opreplay.outcome import Outcome
from opreplay.plan import Plan, PlannedCall, PlannedOperator, PlannedRecipe, planned
from opreplay.plan_file import is_plan, read_plan
from opreplay.report.inputs_text import planned_inputs, recorded_inputs
from opreplay.report.results import Report
from opreplay.report.row import Row, RowKey
from opreplay.resolve.namespaces import (
    operator_table,
    register_namespace,
    registered_namespaces,
)
from opreplay.sharing import Workers, expected_seconds, shard_of
from opreplay.trace import (
    CallGroup,
    CallSequence,
    RecordedCall,
    Selection,
    Skipped,
    Trace,
    read_trace,
)

if TYPE_CHECKING:
    from opreplay.attempt import Attempt

__all__ = [
    "Pool",
    "Replay",
    "choose_calls",
    "key_of",
    "load_attempt",
    "make_plan",
    "outcome_of",
    "prepare_process",
    "replay",
    "row_of",
    "start_attempt",
    "start_on_devices",
    "start_runner",
    "start_worker",
]

logger = logging.getLogger(__name__)

Source = str | Path | Trace | Plan

_OF_NO_EFFECT = ("isolation", "stop_on_error", "timeout_s")
"""Options that a run may be resumed with others of."""

A = TypeVar("A")
G = TypeVar("G")
J = TypeVar("J")


def replay(
    source: Source,
    selection: Selection | None = None,
    *,
    options: ReplayOptions | None = None,
) -> Report:
    """Replays the calls of a trace or plan and times them.

    Args:
        source: A trace, a plan, or the path of either.
        selection: Which calls; the default is all of them.
        options: How they are run; the default is in a worker process, on the accelerator if there
            is one.

    Raises:
        TraceError: The file is no trace that can be read.
        PlanError: The file is a plan, but a malformed one.
        ValueError: The selection is malformed.
        WorkerError: The worker process cannot load what it needs.
    """
    with closing(Replay(source, selection, options=options)) as run:
        command = ("opreplay.replay", str(run.name))
        return Report(tuple(run.rows()), run.environment, command, run.recorded_on)


class Greeting(NamedTuple):
    """What a worker has to tell once it has loaded."""

    environment: Environment
    """The machine and the software that the calls run on."""
    step_ops: frozenset[str]
    """Recorded names of the operators whose recipes read the step."""


class Pool(Protocol):
    """What works on the calls of a run: see `Workers` and `Cluster`."""

    def greetings(self) -> list[Greeting]:
        """Waits until the workers have loaded and returns what they have to tell."""

    def answers(
        self, jobs: Sequence[RecordedCall | PlannedCall | CallSequence], seconds: Sequence[float]
    ) -> Iterator[tuple[Answer[Outcome], str | None]]:
        """Yields the answers to all jobs, and where each one ran."""

    def close(self) -> None:
        """Ends the workers; may be called again."""


class Replay:
    """One run, row by row; to be closed, which ends its workers."""

    def __init__(
        self,
        source: Source,
        selection: Selection | None = None,
        *,
        options: ReplayOptions | None = None,
        shard: tuple[int, int] | None = None,
        read: Callable[[str], Trace] = read_trace,
        start: Callable[[ReplayOptions], Pool] | None = None,
    ) -> None:
        """Starts the workers, then reads the source while they load their libraries.

        Args:
            source: A trace, a plan, or the path of either.
            selection: Which calls; the default is all of them.
            options: How they are run.
            shard: Which part of the chosen calls, from 1, and of how many; the default is all.
            read: Reads a trace file.
            start: Starts the workers; the default is one, where the options say.
        """
        options = options or ReplayOptions()
        self._options = replace(
            options, namespaces={**registered_namespaces(), **options.namespaces}
        )
        self._workers = (start or start_worker)(self._options)
        calls: Sequence[CallGroup | CallSequence | PlannedCall]
        try:
            if self._options.sequence:
                origin, calls = _choose_sequence(source, selection, read)
            else:
                origin, calls = choose_calls(
                    source, selection, read, lambda: self._workers.greetings()[0].step_ops
                )
            self.name, self.notes, self.recorded_on = origin
            self.calls = list(calls) if shard is None else shard_of(calls, *shard)
        except BaseException:
            self._workers.close()
            raise

    @property
    def environment(self) -> Environment:
        """The machine and the software that the calls run on; waits until the workers have loaded.

        Raises:
            WorkerError: A worker cannot load what it needs.
            ValueError: The workers' devices are of several types.
        """
        first, *others = (one.environment for one in self._workers.greetings())
        for other in others:
            if other.device_name != first.device_name:
                raise ValueError(
                    f"{first.device} is {first.device_name}, {other.device} is "
                    f"{other.device_name}: times of both do not compare, name devices of one type"
                )
        return first

    @property
    def settings(self) -> dict[str, Any]:
        """The options that the times depend on, in the form that stands in a file of rows."""
        fields = asdict(self._options)
        kept = {name: value for name, value in fields.items() if name not in _OF_NO_EFFECT}
        return {**kept, "recorded_on": list(self.recorded_on)}

    def rows(
        self,
        *,
        done: Set[RowKey] = frozenset(),
        keep: Callable[[Row], None] = lambda row: None,
    ) -> Iterator[Row]:
        """Yields one row for each chosen call as soon as it is certain.

        One worker gives them in the order of the calls, several as they finish.

        Args:
            done: Keys of the calls that need no run.
            keep: Called with each row as soon as there is one, and again should the next call show
                that it was wrong.
        """
        calls = [call for call in self.calls if key_of(call) not in done]
        jobs = [call.call if isinstance(call, CallGroup) else call for call in calls]
        kept: dict[int, Row] = {}
        for answer, ran_on in self._workers.answers(jobs, [expected_seconds(c) for c in calls]):
            row = row_of(calls[answer.place], answer.content, ran_on=ran_on)
            if kept.get(answer.place) != row:
                kept[answer.place] = row
                keep(row)
            if not answer.certain:
                continue
            for sentence in row.assumptions:
                logger.warning("%s: %s", row.op, sentence)
            yield row
            if self._options.stop_on_error and row.status == "failed":
                return

    def close(self) -> None:
        """Ends the workers; may be called again."""
        self._workers.close()


def make_plan(
    source: str | Path | Trace,
    selection: Selection | None = None,
    *,
    options: ReplayOptions | None = None,
    read: Callable[[str], Trace] = read_trace,
) -> Plan:
    """Resolves the calls of a trace into a plan that runs without it, on any device.

    Args:
        source: A trace or its path.
        selection: Which calls; the default is all of them.
        options: Which modules to import, what recipes shall choose, and whether to isolate.
        read: Reads a trace file.

    Raises:
        TraceError: The file is no trace that can be read.
        ValueError: The selection is malformed.
        WorkerError: The worker process cannot load what it needs.
    """
    options = options or ReplayOptions()
    options = replace(options, namespaces={**registered_namespaces(), **options.namespaces})
    runner = start_runner(
        functools.partial(_load_planner, options), options, spoils=lambda outcome: False
    )
    with closing(runner):
        trace = source if isinstance(source, Trace) else read(str(source))
        groups = trace.groups(selection, step_ops=runner.greeting())
        answers = runner.map([group.call for group in groups])
        return Plan(
            tuple(
                _planned_call(group, answer) for group, answer in zip(groups, answers, strict=True)
            ),
            trace.devices,
        )


class Origin(NamedTuple):
    """What is to be said of the source of a run."""

    name: str
    """Its name."""
    notes: tuple[str, ...]
    """What is to be said of it."""
    recorded_on: tuple[str, ...]
    """Names of the accelerators that it was recorded on, as far as it tells them."""


def choose_calls(
    source: Source,
    selection: Selection | None,
    read: Callable[[str], Trace],
    step_ops: Callable[[], frozenset[str]],
) -> tuple[Origin, Sequence[CallGroup | PlannedCall]]:
    """Chooses the calls of a trace or plan.

    Args:
        source: A trace, a plan, or the path of either.
        selection: Which calls; the default is all of them.
        read: Reads a trace file.
        step_ops: Tells which operators' recipes read the step; asked once a trace is read.
    """
    name, source = _opened(source, read)
    if isinstance(source, Plan):
        return Origin(name, (), source.recorded_on), source.select(selection or Selection())
    joined = source.graph_join.sentences if source.graph_join else ()
    groups = source.groups(selection, step_ops=step_ops())
    return Origin(name, (*source.missing, *joined), source.devices), groups


def _choose_sequence(
    source: Source, selection: Selection | None, read: Callable[[str], Trace]
) -> tuple[Origin, Sequence[CallSequence]]:
    """The same, with the chosen calls of a trace as one."""
    name, source = _opened(source, read)
    if isinstance(source, Plan):
        raise ValueError(f"{name}: a plan keeps no order of calls: pass the trace")
    sequence = source.sequence(selection or Selection())
    return Origin(name, source.missing, source.devices), [sequence]


def _opened(source: Source, read: Callable[[str], Trace]) -> tuple[str, Trace | Plan]:
    """Returns the name of a source, and what it holds."""
    if isinstance(source, Trace | Plan):
        return (source.path if isinstance(source, Trace) else "plan"), source
    name = str(source)
    return name, read_plan(name) if is_plan(name) else read(name)


def start_runner(
    factory: Factory[G, J, A],
    options: ReplayOptions,
    *,
    spoils: Callable[[A], bool],
    interpreter: Interpreter | None = None,
) -> Isolated[G, J, A] | InProcess[G, J, A]:
    """Starts what works on jobs: a worker process, or this one where the options say so."""
    if not options.isolation:
        return InProcess(factory)
    return Isolated(factory, limit_s=options.timeout_s, spoils=spoils, interpreter=interpreter)


def start_worker(options: ReplayOptions) -> Pool:
    """Starts one worker, in a process of its own unless the options say otherwise."""
    return Workers([start_attempt(options)], [None])


def start_on_devices(options: ReplayOptions, devices: Sequence[str]) -> Pool:
    """Starts a worker for each device, or for every accelerator where `devices` is ``["all"]``.

    Raises:
        ValueError: There is no accelerator, or the options want no processes.
    """
    if list(devices) == ["all"]:
        devices = _all_devices()
    if not options.isolation:
        raise ValueError("several devices need a worker process each: leave isolation on")
    names = [f"{device} ({place})" for place, device in enumerate(devices)]
    return Workers(
        [start_attempt(replace(options, device=device)) for device in devices],
        devices if len(set(devices)) == len(devices) else names,
    )


def _all_devices() -> list[str]:
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        raise ValueError("there is no accelerator here: name the devices, as --devices cpu")
    return [f"{accelerator.type}:{place}" for place in range(torch.accelerator.device_count())]


def start_attempt(
    options: ReplayOptions,
) -> (
    Isolated[Greeting, RecordedCall | PlannedCall | CallSequence, Outcome]
    | InProcess[Greeting, RecordedCall | PlannedCall | CallSequence, Outcome]
):
    """Starts what takes calls through the rooms."""
    return start_runner(
        functools.partial(load_attempt, options),
        options,
        spoils=lambda outcome: outcome.device_broken,
    )


def load_attempt(options: ReplayOptions) -> tuple[Greeting, Attempt]:
    """Runs in the worker: loads torch and the dispatcher's operators."""
    from opreplay.attempt import Attempt

    greeting, device = prepare_process(options)
    return greeting, Attempt(options, device=device)


def prepare_process(options: ReplayOptions) -> tuple[Greeting, str]:
    """Gives a worker the namespaces and threads of the options; returns its greeting and device."""
    import torch

    from opreplay.environment import describe_environment, usable_device

    for namespace, modules in options.namespaces.items():
        register_namespace(namespace, *modules)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = usable_device(options.device)
    environment = describe_environment(device, threads=options.threads)
    return Greeting(environment, _step_ops()), device


def _load_planner(
    options: ReplayOptions,
) -> tuple[frozenset[str], Callable[[RecordedCall, Callable[[], None]], PlannedOperator | Skipped]]:
    """Runs in the worker: loads torch, the dispatcher's operators and the recipes."""
    from opreplay.recipes import find_recipe, list_recipes
    from opreplay.recipes.parameters import own_parameters, read_parameters
    from opreplay.resolve.resolver import Resolver

    for namespace, modules in options.namespaces.items():
        register_namespace(namespace, *modules)
    resolver = Resolver(imports=options.imports, allow_mismatch=options.allow_mismatch, device=None)
    known = [parameter for one in list_recipes() for parameter in one.parameters]
    read_parameters(known, options.recipe_parameters)  # refuses names that no recipe has

    def plan(job: RecordedCall, started: Callable[[], None]) -> PlannedOperator | Skipped:
        started()
        found = resolver.resolve(job)
        if isinstance(found, Skipped):
            return found
        recipe = find_recipe(found.resolved_op)
        if recipe is None:
            return planned(found)
        values = own_parameters(recipe.parameters, options.recipe_parameters)
        chosen = PlannedRecipe(recipe.name, tuple(values.items()))
        return planned(found, chosen, recipe.produced)

    return _step_ops(), plan


def _step_ops() -> frozenset[str]:
    """Runs in the worker: names of the operators whose recipes read the step, older names too."""
    from opreplay.recipes import find_recipe, list_recipes

    names = {op for one in list_recipes() for op in one.ops}
    reading = {op for op in names if (best := find_recipe(op)) is not None and best.reads_step}
    renames = operator_table()["renames"]
    older = {old for old, candidates in renames.items() if not reading.isdisjoint(candidates)}
    return frozenset(reading | older)


def step_of(call: CallGroup | CallSequence | PlannedCall) -> str | None:
    """The annotation of the step that a call stands for, where its inputs depend on the step."""
    return (call.batch.annotation or None) if call.batch else None


def key_of(call: CallGroup | CallSequence | PlannedCall) -> RowKey:
    """Returns the key of the row that a call will have."""
    return call.signature, step_of(call), call.batch


def row_of(
    call: CallGroup | CallSequence | PlannedCall,
    answer: Outcome | Died | TimedOut,
    *,
    ran_on: str | None = None,
) -> Row:
    """Puts together what was recorded of a call, what became of it, and where it ran."""
    if isinstance(call, PlannedCall):
        op = call.op
    else:
        op = call.call.name if isinstance(call, CallGroup) else call.name
    outcome = outcome_of(answer)
    detail = outcome.detail
    if outcome.reason == "metadata_missing" and isinstance(call, CallGroup) and call.unrecorded:
        detail = call.unrecorded  # the trace knows which flag was off
    return Row(
        op=op,
        overload=outcome.overload,
        resolved_op=outcome.resolved_op or op,
        signature=call.signature,
        step=step_of(call),
        batch=call.batch,
        count=call.count,
        host=call.host,
        device=call.device,
        in_graph=call.in_graph,
        kernels_recorded=call.kernels,
        bytes=outcome.bytes,
        flops=outcome.flops,
        schemas_rejected=outcome.rejected,
        reason=outcome.reason,
        detail=detail,
        assumptions=outcome.assumptions,
        recipe=outcome.recipe,
        schema=outcome.schema,
        timing=outcome.timing,
        inputs=_inputs_of(call),
        kernels_replayed=outcome.kernels_replayed,
        kernels_us=outcome.kernels_us,
        outputs=outcome.outputs,
        ran_on=ran_on,
        point=call.point if isinstance(call, PlannedCall) else None,
    )


def _inputs_of(call: CallGroup | CallSequence | PlannedCall) -> str:
    if isinstance(call, CallGroup):
        return recorded_inputs(call.call.arguments)
    if isinstance(call, PlannedCall) and isinstance(call.outcome, PlannedOperator):
        return planned_inputs(call.outcome.arguments)
    return ""


def outcome_of(answer: Outcome | Died | TimedOut) -> Outcome:
    """Takes the end of a worker for an outcome."""
    if isinstance(answer, TimedOut):
        return Outcome(reason="timed_out", detail=f"it took longer than {answer.limit_s:g} s")
    if isinstance(answer, Died):
        return Outcome(reason="crashed", detail=_sentence_of_end(answer))
    return answer


def _sentence_of_end(end: Died) -> str:
    words = f" (last words: {end.last_words})" if end.last_words else ""
    return f"it ended its process with {end.cause}, also alone in a fresh one{words}"


def _planned_call(
    group: CallGroup, answer: PlannedOperator | Skipped | Died | TimedOut
) -> PlannedCall:
    if isinstance(answer, Died):
        answer = Skipped("crashed", f"resolving: {_sentence_of_end(answer)}")
    elif isinstance(answer, TimedOut):
        answer = Skipped("timed_out", f"resolving took longer than {answer.limit_s:g} s")
    elif isinstance(answer, Skipped) and answer.reason == "metadata_missing" and group.unrecorded:
        answer = Skipped(answer.reason, group.unrecorded)
    return PlannedCall(
        op=group.call.name,
        signature=group.signature,
        step=group.call.step,
        parent=group.call.parent,
        leaf=group.call.leaf,
        count=group.count,
        host=group.host,
        device=group.device,
        kernels=group.kernels,
        in_graph=group.in_graph,
        batch=group.batch,
        outcome=answer,
    )
