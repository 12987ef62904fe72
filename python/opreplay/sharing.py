"""Who works on which call: calls and workers come in; answers go out as soon as there are any."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from opreplay.isolation import Answer, InProcess, Isolated
from opreplay.plan import PlannedCall
from opreplay.trace import CallGroup, CallSequence

__all__ = ["Workers", "expected_seconds", "read_shard", "shard_of"]

J = TypeVar("J")
A = TypeVar("A")
G = TypeVar("G")
C = TypeVar("C", bound=CallGroup | CallSequence | PlannedCall)

_SECONDS_EACH = 0.3
"""What a call costs besides its own time: inputs, warm-up and samples have a limit."""
_CALLS_EACH = 50
"""Calls that a long operator is given, roughly: warm, cold, and the first one."""
_JOIN_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Ended:
    """A worker has no more to do, or cannot go on."""

    error: BaseException | None


class Workers(Generic[G, J, A]):
    """Workers that share the calls of a run: one, or one for each device."""

    def __init__(
        self, runners: Sequence[Isolated[G, J, A] | InProcess[G, J, A]], names: Sequence[str | None]
    ) -> None:
        """Takes the workers.

        Args:
            runners: At least one; several must run in processes of their own.
            names: What the rows shall say of where each one runs.
        """
        self._runners = runners
        self._names = names

    def greetings(self) -> list[G]:
        """Waits until all workers have loaded and returns what they have to tell.

        Raises:
            WorkerError: One could not load.
        """
        return [runner.greeting() for runner in self._runners]

    def answers(
        self, jobs: Sequence[J], seconds: Sequence[float]
    ) -> Iterator[tuple[Answer[A], str | None]]:
        """Yields the answers to all jobs with the name of the worker, as they come.

        One worker takes the jobs in order. Several take the longest that is left, each when it is
        free, so that they end at about the same time.

        Args:
            jobs: What is to be done.
            seconds: What each job is expected to take.
        """
        if len(self._runners) == 1:
            for answer in self._runners[0].watch(jobs):
                yield answer, self._names[0]
            return
        waiting = deque(sorted(range(len(jobs)), key=lambda place: -seconds[place]))
        done: queue.Queue[tuple[Answer[A], str | None] | _Ended] = queue.Queue()
        threads = [
            threading.Thread(target=_work, args=(runner, name, jobs, waiting, done), daemon=True)
            for runner, name in zip(self._runners, self._names, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            yield from _until_ended(done, len(threads))
        except GeneratorExit:  # nobody wants the rest
            self.close()
            raise
        except BaseException:
            self.close()
            for thread in threads:
                thread.join(_JOIN_LIMIT_S)
            while not done.empty():  # what had ended before is kept
                item = done.get()
                if not isinstance(item, _Ended):
                    yield item
            raise

    def close(self) -> None:
        """Ends all workers; may be called again."""
        for runner in self._runners:
            runner.close()


def _work(
    runner: Isolated[G, J, A] | InProcess[G, J, A],
    name: str | None,
    jobs: Sequence[J],
    waiting: deque[int],
    done: queue.Queue[tuple[Answer[A], str | None] | _Ended],
) -> None:
    taken: list[int] = []

    def own_jobs() -> Iterator[J]:
        while waiting:
            try:
                taken.append(waiting.popleft())
            except IndexError:  # another worker was quicker
                return
            yield jobs[taken[-1]]

    error = None
    try:
        for answer in runner.watch(own_jobs()):
            place = taken[answer.place]
            done.put((Answer(place, answer.content, certain=answer.certain), name))
    except BaseException as raised:  # it is for the thread that waits
        error = raised
    done.put(_Ended(error))


def _until_ended(
    done: queue.Queue[tuple[Answer[A], str | None] | _Ended], workers: int
) -> Iterator[tuple[Answer[A], str | None]]:
    while workers:
        item = done.get()
        if not isinstance(item, _Ended):
            yield item
            continue
        if item.error is not None:
            raise item.error
        workers -= 1


def expected_seconds(call: CallGroup | CallSequence | PlannedCall) -> float:
    """Guesses from its recorded time what the replay of a call takes [seconds]."""
    times = call.host if call.device is None else call.device
    return _SECONDS_EACH + _CALLS_EACH * times.median / 1e6


def shard_of(calls: Sequence[C], number: int, count: int) -> list[C]:
    """Returns the part of the calls that is the share of one of several runs.

    The longest calls are dealt out first, each to the part with the least to do, so that all parts
    take about as long. The same calls give the same parts on every machine.

    Args:
        calls: All calls of the run.
        number: Which part, from 1.
        count: How many parts.
    """
    loads = [0.0] * count
    mine = set()
    order = sorted(range(len(calls)), key=lambda place: (-expected_seconds(calls[place]), place))
    for place in order:
        least = loads.index(min(loads))
        loads[least] += expected_seconds(calls[place])
        if least == number - 1:
            mine.add(place)
    return [call for place, call in enumerate(calls) if place in mine]


def read_shard(text: str) -> tuple[int, int]:
    """Reads ``2/8``, the second of eight parts.

    Raises:
        ValueError: The text is something else.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"a shard is I/N with I from 1 to N, as 2/8, got {text}")
    return int(number), int(count)
