"""Two sides in turn: calls and two environments, or a user's kernel, come in; a comparison out."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from opreplay.environment import Environment
from opreplay.isolation import InProcess, Interpreter, Isolated, WorkerError
from opreplay.options import ReplayOptions
from opreplay.outcome import Outcome
from opreplay.plan import PlannedCall
from opreplay.replay import (
    Greeting,
    Source,
    choose_calls,
    load_attempt,
    outcome_of,
    prepare_process,
    row_of,
    start_runner,
)
from opreplay.report.comparison import (
    Basis,
    Comparison,
    Number,
    compared_rows,
    number_of,
)
from opreplay.report.row import Row
from opreplay.resolve.namespaces import registered_namespaces
from opreplay.rounds import Round, run_rounds, summary, take_in_turn
from opreplay.statistics import Estimate, compare_paired
from opreplay.trace import CallGroup, RecordedCall, Selection, Trace, read_trace

if TYPE_CHECKING:
    from opreplay.replacement import Contest

__all__ = ["Side", "ab", "conclude", "read_replacement", "read_side"]

_LEAST_ROUNDS = 6
"""Fewer pairs cannot tell anything at the level of 95 %."""

Job = RecordedCall | PlannedCall
Runner = Isolated[Greeting, Job, Outcome] | InProcess[Greeting, Job, Outcome]
Progress = Callable[[int, int], None]

_MEMORY_STAYS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Environment variables with which glibc keeps what was freed, up to 1 GiB, for the next call.

Otherwise the history of a process decides whether it does: of two alike, one may pay a page fault
for every 4 KiB of each output, which takes several times as long as many operators.
"""


@dataclass(frozen=True, slots=True)
class Side:
    """The environment of one side, where it differs from this one."""

    python: str | None = None
    """Another Python, or None for the one that runs now."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""
    libraries: tuple[str, ...] = ()
    """Shared libraries that register operators."""


def read_side(texts: Sequence[str]) -> Side:
    """Reads a side: a virtual environment or Python, ``NAME=VALUE``, ``.so`` files, in any order.

    Raises:
        ValueError: A text is none of these, or the file is not there.
    """
    side = Side()
    for text in texts:
        name, separator, value = text.partition("=")
        if separator and name.isidentifier():
            side = replace(side, variables={**side.variables, name: value})
        elif re.search(r"\.so(?:\.\d+)*$", text):
            if not Path(text).is_file():
                raise ValueError(f"{text}: there is no such library")
            side = replace(side, libraries=(*side.libraries, str(Path(text).resolve())))
        else:
            side = replace(side, python=_python_of(Path(text)))
    return side


def _python_of(path: Path) -> str:
    found = path / "bin" / "python" if path.is_dir() else path
    if not found.is_file():
        raise ValueError(
            f"{path} is no environment: pass a virtual environment, a Python, NAME=VALUE or a .so"
        )
    return str(found.absolute())  # resolving the link would leave the virtual environment


def read_replacement(text: str) -> tuple[str, str]:
    """Reads ``aten::x=my::y`` or ``aten::x=package.module:function``.

    Raises:
        ValueError: The text is neither.
    """
    op, _, name = text.partition("=")
    if "::" not in op or ":" not in name:
        raise ValueError(
            f"{text!r} is no replacement: write aten::x=my::y or aten::x=package.module:function"
        )
    return op, name


def ab(
    source: Source,
    selection: Selection | None = None,
    *,
    a: Side | None = None,
    b: Side | None = None,
    replacements: Mapping[str, str] | None = None,
    options: ReplayOptions | None = None,
    rounds: int = 20,
    tolerance: float = 0.02,
    number: Number | None = None,
    check: tuple[float, float] | None = None,
    read: Callable[[str], Trace] = read_trace,
    progress: Progress = lambda done, total: None,
) -> Comparison:
    """Times each call on two sides in turn, and compares round with round.

    Args:
        source: A trace, a plan, or the path of either.
        selection: Which calls; with `replacements`, those of the replaced operators are left.
        a: Environment of side A; the default is this one.
        b: Environment of side B; not together with `replacements`.
        replacements: ``"ns::name"`` or ``"package.module:function"`` by recorded operator: B calls
            these in place of what was recorded, in the process of A.
        options: How calls are run; the time limit holds for each round of a side.
        rounds: How often each side is timed; from 6.
        tolerance: Ratios within 1 + tolerance and its inverse count as same.
        number: Which time to compare; the default is the device's, or else the host's.
        check: Relative and absolute tolerance of outputs; the default is that of each dtype.
        read: Reads a trace file.
        progress: Called with the number of rounds played and of all.

    Raises:
        ValueError: The choices make no sense, or the sides have other versions of this package.
        TraceError, PlanError: The source cannot be read.
        WorkerError: A side's process cannot load what it needs.
    """
    if rounds < _LEAST_ROUNDS:
        raise ValueError(f"rounds must be at least {_LEAST_ROUNDS}, got {rounds}")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be more than 0, got {tolerance}")
    if replacements and b is not None:
        raise ValueError("either another environment or replacements are side B, not both")
    options = options or ReplayOptions()
    options = replace(options, namespaces={**registered_namespaces(), **options.namespaces})
    options = replace(options, timing=replace(options.timing, cold=number == "cold_us"))
    with ExitStack() as stack:
        if replacements:
            contest: _OneProcess | _TwoProcesses = _OneProcess(
                options, dict(replacements), a or Side(), check=check
            )
        else:
            contest = _TwoProcesses(options, a or Side(), b or Side())
        stack.enter_context(closing(contest))
        origin, calls = choose_calls(source, selection, read, contest.step_ops)
        if replacements:
            calls = [call for call in calls if _op(call) in replacements]
            if missing := replacements.keys() - {_op(call) for call in calls}:
                raise ValueError(f"{origin.name}: no chosen call of {', '.join(sorted(missing))}")
        environments = contest.environments()
        jobs = [call.call if isinstance(call, CallGroup) else call for call in calls]
        played = run_rounds(jobs, contest.play, rounds=rounds, progress=progress)
    return conclude(calls, played, environments, tolerance=tolerance, number=number)


def conclude(
    calls: Sequence[CallGroup | PlannedCall],
    played: Sequence[Sequence[Round]],
    environments: tuple[Environment, Environment],
    *,
    tolerance: float,
    number: Number | None = None,
) -> Comparison:
    """Compares the rounds of each call.

    Args:
        calls: What was played.
        played: The rounds of each call.
        environments: Of side A and side B.
        tolerance: Ratios within 1 + tolerance and its inverse count as same.
        number: Which time to compare; the default is the device's, or else the host's.
    """
    pairs = [_rows(call, rounds) for call, rounds in zip(calls, played, strict=True)]
    return Comparison(
        rows=compared_rows(
            pairs,
            [_estimated(*pair, number=number, tolerance=tolerance) for pair in pairs],
            wanted=number,
            outputs=[rounds[0].outputs for rounds in played],
        ),
        a=environments[0],
        b=environments[1],
        command=("opreplay.ab",),
        tolerance=tolerance,
    )


class _TwoProcesses:
    """A worker for each side; each round of a call is a job of its own."""

    def __init__(self, options: ReplayOptions, a: Side, b: Side) -> None:
        if not options.isolation:
            raise ValueError("two environments need a worker process each: leave isolation on")
        self._runners = [_start(options, side) for side in (a, b)]

    def environments(self) -> tuple[Environment, Environment]:
        """Waits until both sides have loaded."""
        found = []
        for name, runner in zip("AB", self._runners, strict=True):
            try:
                found.append(runner.greeting().environment)
            except WorkerError as error:
                raise WorkerError(f"side {name}: {error}") from error
        a, b = found
        if a.opreplay != b.opreplay:
            raise ValueError(
                f"side A has opreplay {a.opreplay}, B has {b.opreplay}: install the same version"
            )
        return a, b

    def step_ops(self) -> frozenset[str]:
        """Recorded names of the operators whose recipes read the step."""
        return self._runners[0].greeting().step_ops

    def play(self, job: Job, number: int) -> Round:
        """Runs one call on both sides."""

        def take(runner: Runner) -> Outcome:
            (answer,) = runner.map([job])
            return outcome_of(answer)

        ours, theirs = (functools.partial(take, runner) for runner in self._runners)
        return take_in_turn(ours, theirs, number=number)

    def close(self) -> None:
        """Ends both workers."""
        for runner in self._runners:
            runner.close()


class _OneProcess:
    """One worker that runs the recorded operator and its replacement."""

    def __init__(
        self,
        options: ReplayOptions,
        replacements: dict[str, str],
        side: Side,
        *,
        check: tuple[float, float] | None,
    ) -> None:
        options = replace(options, imports=(*options.imports, *side.libraries))
        self._runner = start_runner(
            functools.partial(_load_contest, options, replacements, check),
            options,
            spoils=_device_broken,
            interpreter=_interpreter(side),
        )

    def environments(self) -> tuple[Environment, Environment]:
        """Waits until the worker has loaded."""
        environment = self._runner.greeting().environment
        return environment, environment

    def step_ops(self) -> frozenset[str]:
        """Recorded names of the operators whose recipes read the step."""
        return self._runner.greeting().step_ops

    def play(self, job: Job, number: int) -> Round:
        """Runs one call and its replacement."""
        (answer,) = self._runner.map([(job, number)])
        return answer if isinstance(answer, Round) else Round(outcome_of(answer), None)

    def close(self) -> None:
        """Ends the worker."""
        self._runner.close()


def _start(options: ReplayOptions, side: Side) -> Runner:
    options = replace(options, imports=(*options.imports, *side.libraries))
    return start_runner(
        functools.partial(load_attempt, options),
        options,
        spoils=lambda outcome: outcome.device_broken,
        interpreter=_interpreter(side),
    )


def _interpreter(side: Side) -> Interpreter:
    ours = {name: value for name, value in _MEMORY_STAYS.items() if name not in os.environ}
    return Interpreter(side.python, {**ours, **side.variables})


def _load_contest(
    options: ReplayOptions,
    replacements: dict[str, str],
    check: tuple[float, float] | None,
) -> tuple[Greeting, Contest]:
    """Runs in the worker: loads torch, the dispatcher's operators and the user's functions."""
    from opreplay.replacement import Contest

    greeting, device = prepare_process(options)
    contest = Contest(options, device=device, replacements=replacements, tolerance=check)
    return greeting, contest


def _device_broken(played: Round) -> bool:
    return any(side is not None and side.device_broken for side in (played.a, played.b))


def _op(call: CallGroup | PlannedCall) -> str:
    return call.call.name if isinstance(call, CallGroup) else call.op


def _rows(call: CallGroup | PlannedCall, played: Sequence[Round]) -> tuple[Row, Row]:
    ours = [one.a for one in played if one.a is not None]
    theirs = [one.b for one in played if one.b is not None]
    # A side that never had its turn shares the fate of the other.
    return row_of(call, summary(ours or theirs)), row_of(call, summary(theirs or ours))


def _estimated(
    a: Row, b: Row, *, number: Number | None, tolerance: float
) -> tuple[Number, Basis, Estimate] | None:
    chosen = number_of(a, b, number)
    if chosen is None:
        return None
    ours, theirs = getattr(a.timing, chosen).raw, getattr(b.timing, chosen).raw
    return chosen, "pairs", compare_paired(ours, theirs, tolerance=tolerance)
