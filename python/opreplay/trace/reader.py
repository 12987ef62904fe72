"""Reads a trace: a file comes in, its recorded calls and their groups go out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from opreplay.trace.arguments import overload_of, unrecorded_sentence
from opreplay.trace.call import (
    CallGroup,
    CallSequence,
    RecordedCall,
    text_of,
)
from opreplay.trace.captures import GraphJoin, join_graphs
from opreplay.trace.collector import collector_paused
from opreplay.trace.columns import from_columns
from opreplay.trace.events import NO_ID, IdArray
from opreplay.trace.grouping import times_by_group
from opreplay.trace.kernels import pick
from opreplay.trace.missing import missing_sentences
from opreplay.trace.ranks import merge_ranks, rank_files
from opreplay.trace.scanning import scan_lanes
from opreplay.trace.selection import Level, Selection, Steps, select_rows
from opreplay.trace.source import Progress, read_pieces
from opreplay.trace.steps import Step, carry_on, parse_step
from opreplay.trace.timeline import Timeline, build_timeline

__all__ = ["Trace", "read_trace"]

_CALLS_AT_ONCE = 1 << 13


def read_trace(path: str | Path, *, progress: Progress | None = None) -> Trace:
    """Reads a Kineto or Execution Trace: JSON, plain or gzip, a pipe, or ``"-"`` for stdin.

    Args:
        path: The file, or a directory with one for each rank, which are read as one trace.
        progress: Called with the bytes read so far and the file's size (None for a pipe).

    Raises:
        TraceError: A file is unreadable, cut off, foreign or empty.
    """
    with collector_paused():
        if not Path(path).is_dir():
            lanes = scan_lanes(path, read_pieces(path, progress=progress))
        else:
            lanes = merge_ranks(
                {
                    rank: scan_lanes(file, read_pieces(file, progress=progress))
                    for rank, file in rank_files(Path(path)).items()
                }
            )
        return Trace(str(path), build_timeline(lanes))


class Trace:
    """The operator calls of a trace. Its times are columns; calls are made when asked for."""

    def __init__(self, path: str, timeline: Timeline, graph_join: GraphJoin | None = None) -> None:
        """Wraps what `read_trace` has read.

        Args:
            path: The file's name, for messages.
            timeline: Its events.
            graph_join: What `with_graph_launches` could name.
        """
        self.path = path
        self.timeline = timeline
        self.graph_join = graph_join

    def __len__(self) -> int:
        """Number of recorded calls."""
        return len(self.timeline.lanes.op)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the accelerators that it was recorded on, as far as it tells them."""
        return self.timeline.lanes.devices

    def with_graph_launches(self, execution: Trace) -> Trace:
        """Returns this trace, its captured calls with the kernels that ran under graph launches.

        Args:
            execution: A trace in which the graphs were launched that this trace saw captured.
        """
        lanes, graph_join = join_graphs(self.timeline, execution.timeline)
        return Trace(self.path, build_timeline(lanes), graph_join)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """What the trace doesn't record, each a sentence with the flag or version that does."""
        operators = [
            arguments
            for arguments, kind in zip(
                self.timeline.lanes.op.examples.arguments, self.timeline.kinds, strict=True
            )
            if kind == "operator"
        ]
        return missing_sentences(self.timeline.lanes, operators)

    @cached_property
    def _batches(self) -> dict[int, Step | None]:
        """The batch by the row of an annotation; one inside a step is part of that step.

        Engines nest further scopes in a step, and some name the same step twice, in two forms.
        """
        events = self.timeline.annotations
        ranks = np.array(self.timeline.lanes.rank or [""] * len(self.timeline.lanes.threads))
        batches: dict[int, Step | None] = {}
        for rank in np.unique(ranks):
            own = np.flatnonzero(ranks[events.thread] == rank)
            steps: list[Step | None] = []
            step_of: dict[int, int] = {}
            end = -np.inf
            for row in own[np.lexsort((-events.duration[own], events.start[own]))].tolist():
                if events.end[row] > end:
                    step = parse_step(events.name(row))
                    if step is None:
                        continue
                    steps.append(step)
                    end = events.end[row]
                step_of[row] = len(steps) - 1
            filled = carry_on(steps)
            batches.update({row: filled[index] for row, index in step_of.items()})
        return batches

    def calls(self, op: str | None = None) -> Iterator[RecordedCall]:
        """Yields the calls of `op`, or of every operator, by start time."""
        yield from self._calls(select_rows(self.timeline, Selection(() if op is None else (op,))))

    def groups(
        self, selection: Selection | None = None, *, step_ops: Collection[str] = ()
    ) -> list[CallGroup]:
        """Groups identical calls, by first start time, or by falling time where `top` is given.

        Args:
            selection: Which calls; the default is all of them.
            step_ops: Exact names of the operators whose values depend on the step; their calls
                are grouped by step, or by phase, as well.

        Raises:
            ValueError: No annotation fits the scope.
        """
        selection = selection or Selection()
        rows = select_rows(self.timeline, selection)
        with collector_paused():
            groups = self._group(rows, step_ops, selection.steps)
        if selection.top is not None:
            groups = _sorted_by_time(groups, selection.level)[: selection.top]
        return groups[: selection.limit]

    def sequence(self, selection: Selection) -> CallSequence:
        """Returns the chosen calls in recorded order, repetitions included.

        Raises:
            ValueError: No annotation fits the scope, no call is left, or `top` is given.
        """
        if selection.top is not None:
            raise ValueError("a sequence is in recorded order: choose with limit instead of top")
        calls = tuple(self._calls(select_rows(self.timeline, selection)[: selection.limit]))
        if not calls:
            raise ValueError(f"{self.path}: no operator call is left to choose")
        return CallSequence(calls)

    def _group(self, rows: IdArray, step_ops: Collection[str], steps: Steps) -> list[CallGroup]:
        line = self.timeline
        group, count = self._number_by_step(rows, self._number_by_call(rows), step_ops, steps)
        host, median = times_by_group(
            group, count, line.lanes.op.duration[rows], line.host_self[rows]
        )
        middle = rows[median]
        # Where some calls of a group launched kernels, one of these stands for all.
        launching = np.flatnonzero(~np.isnan(line.device[rows]))
        ran = rows[launching]
        device, median = times_by_group(
            group[launching], count, line.device[ran], line.device_self[ran]
        )
        middle[list(device)] = ran[median]
        calls = list(self._calls(middle))
        return from_columns(
            CallGroup,
            count,
            call=calls,
            count=np.bincount(group, minlength=count).tolist(),
            host=map(host.get, range(count)),
            device=map(device.get, range(count)),
            kernels=(_counted(call.kernels) for call in calls),
            in_graph=(np.bincount(group, line.in_graph[rows], count) > 0).tolist(),
            batch=(call.batch if call.name in step_ops else None for call in calls),
            unrecorded=map(self._unrecorded, middle.tolist(), calls),
        )

    def _number_by_call(self, rows: IdArray) -> IdArray:
        """Returns a number for each row, the same for identical calls, by first occurrence."""
        kinds = self.timeline.lanes.op.examples
        distinct = self.timeline.lanes.op.distinct[rows]
        first = np.full(len(kinds), len(rows))
        first[distinct[::-1]] = np.arange(len(rows))[::-1]  # of equal places the last one counts
        used = np.flatnonzero(first < len(rows))
        present = used[np.argsort(first[used])].tolist()
        arguments = [kinds.arguments[kind] for kind in present]
        # Most calls share their argument objects, so each of these is looked at once.
        objects = {id(one): one for one in chain.from_iterable(each or () for each in arguments)}
        texts: dict[bytes, int] = {}
        text = {key: texts.setdefault(text_of(one), len(texts)) for key, one in objects.items()}
        numbers: dict[object, int] = {}
        number_of = np.zeros(len(kinds), np.int64)
        for kind, each in zip(present, arguments, strict=True):
            inputs = None if each is None else tuple([text[id(one)] for one in each])
            number_of[kind] = numbers.setdefault((kinds.names[kind], inputs), len(numbers))
        return number_of[distinct]

    def _number_by_step(
        self, rows: IdArray, group: IdArray, step_ops: Collection[str], steps: Steps
    ) -> tuple[IdArray, int]:
        """Numbers anew, by first occurrence, what `step_ops` did in other steps or phases.

        Returns each row's number, and how many there are.
        """
        ops = self.timeline.lanes.op
        reads = ops.where(name in step_ops for name in ops.examples.names)[rows]
        if not reads.any():
            return group, int(group.max(initial=-1)) + 1
        numbers: dict[object, int] = {}
        number_of = np.zeros(len(self.timeline.annotations) + 1, np.int64)  # the last: no step
        for row, step in self._batches.items():
            if step is not None:
                key = step if steps == "all" else step.phase
                number_of[row] = numbers.setdefault(key, len(numbers) + 1)
        base = len(numbers) + 1
        part = np.where(reads, number_of[self.timeline.step[rows]], 0)
        _, first, place = np.unique(group * base + part, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[place], len(first)

    def _unrecorded(self, row: int, call: RecordedCall) -> str | None:
        if call.arguments is not None:
            return None
        ops = self.timeline.lanes.op
        return unrecorded_sentence(ops.examples.fields.get(int(ops.distinct[row]), {}))

    def _calls(self, rows: IdArray) -> Iterator[RecordedCall]:
        """Yields the calls of `rows`, some thousands made at once."""
        for at in range(0, len(rows), _CALLS_AT_ONCE):
            yield from self._some_calls(rows[at : at + _CALLS_AT_ONCE])

    def _some_calls(self, rows: IdArray) -> list[RecordedCall]:
        line, lanes, ops = self.timeline, self.timeline.lanes, self.timeline.lanes.op
        kinds = ops.distinct[rows].tolist()
        names = (*ops.examples.names, None)  # the last stands for `NOTHING`
        steps = (*line.annotations.examples.names, None)
        ranks = lanes.rank or (None,) * len(lanes.threads)
        step_rows, threads = line.step[rows], ops.thread[rows].tolist()
        fields = ops.examples.fields
        kernels = self._kernel_names(rows)
        return from_columns(
            RecordedCall,
            len(rows),
            name=map(names.__getitem__, kinds),
            arguments=map(ops.examples.arguments.__getitem__, kinds),
            start_us=ops.start[rows].tolist(),
            duration_us=ops.duration[rows].tolist(),
            self_us=line.host_self[rows].tolist(),
            thread=map(lanes.threads.__getitem__, threads),
            external_id=(None if i == NO_ID else i for i in ops.external_id[rows].tolist()),
            step=map(steps.__getitem__, pick(line.annotations.distinct, step_rows).tolist()),
            parent=map(names.__getitem__, pick(ops.distinct, line.parent[rows]).tolist()),
            leaf=line.leaf[rows].tolist(),
            kernels=kernels,
            device_us=_of_launching(kernels, line.device[rows].tolist()),
            device_self_us=_of_launching(kernels, line.device_self[rows].tolist()),
            in_graph=line.in_graph[rows].tolist(),
            batch=map(self._batches.get, step_rows.tolist()),
            rank=map(ranks.__getitem__, threads),
            overload=(overload_of(fields[i]) if i in fields else None for i in kinds),
        )

    def _kernel_names(self, rows: IdArray) -> list[tuple[str, ...]]:
        """Returns for each row the kernels launched inside, by start time."""
        gpu = self.timeline.lanes.gpu
        events, counts = self.timeline.launches.of_subtrees(rows, self.timeline.tree.size[rows])
        order = np.lexsort((gpu.start[events], np.repeat(np.arange(len(rows)), counts)))
        kinds = gpu.distinct[events[order]].tolist()
        names = list(map(gpu.examples.names.__getitem__, kinds))
        return [tuple(names[a:b]) for a, b in pairwise(chain([0], np.cumsum(counts).tolist()))]


def _of_launching(kernels: list[tuple[str, ...]], times: list[float]) -> list[float | None]:
    """Returns the times of calls that launched kernels, None for the others."""
    return [time if names else None for names, time in zip(kernels, times, strict=True)]


def _counted(kernels: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Returns each name with the number of its kernels; most calls launch one at most."""
    return tuple(Counter(kernels).items()) if len(kernels) > 1 else tuple((k, 1) for k in kernels)


def _sorted_by_time(groups: list[CallGroup], level: Level) -> list[CallGroup]:
    """Sorts by falling device time, or host time where no group has any.

    Self time counts, so that no kernel ranks its enclosing operators as well; where those are
    all that is shown, they answer for what runs inside.
    """
    on_device = any(group.device for group in groups)

    def time(group: CallGroup) -> float:
        times = group.device if on_device else group.host
        if times is None:
            return 0.0
        return times.total if level == "outermost" else times.self_total

    return sorted(groups, key=time, reverse=True)
