"""Worker processes: jobs go in; answers, or how the process died, come out in the same order.

A worker is a fresh interpreter (no fork after OpenMP has started threads). It loads its libraries
once and works on one job at a time, so that a job that kills or hangs it costs only itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, Literal, NamedTuple, TypeVar

__all__ = [
    "Answer",
    "Died",
    "Factory",
    "InProcess",
    "Interpreter",
    "Isolated",
    "TimedOut",
    "WorkerError",
]

logger = logging.getLogger(__name__)

J = TypeVar("J")
A = TypeVar("A")
G = TypeVar("G")

Handle = Callable[[J, Callable[[], None]], A]
"""Works on one job; calls its second parameter when the time limit shall start to count."""

Factory = Callable[[], tuple[G, Handle[J, A]]]
"""Runs once in each new worker and loads what the jobs need; must be picklable.

Returns what the worker tells the caller once, and the function that works on a job.
"""

_BOOT = (
    "import sys; sys.path[:] = sys.argv[2].split('\\n') if sys.argv[2] else sys.path;"
    "from opreplay.isolation import _main; _main(int(sys.argv[1]))"
)
_LOADING_LIMIT_S = 600.0
"""Limit for what runs before a job's own limit counts: loading libraries may compile code."""

_EXIT_LIMIT_S = 10.0

_LAST_WORDS_BYTES = 4096
_PR_SET_PDEATHSIG = 1


def _told(error: Exception) -> str:
    """What kept a worker from starting; a ValueError is a sentence for the user already."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


class WorkerError(RuntimeError):
    """A worker could not start, or its code raised outside of any operator."""


@dataclass(frozen=True, slots=True)
class Died:
    """A worker ended in the middle of a job."""

    cause: str
    """Name of the signal, for instance ``"SIGSEGV"``, or the exit code in words."""
    last_words: str
    """Last line that the process wrote; empty if it wrote none."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A job took longer than its limit; its worker was ended."""

    limit_s: float
    """The limit [seconds]."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[A]):
    """What became of one job."""

    place: int
    """Number of the job, in the order taken."""
    content: A | Died | TimedOut
    """The answer, or how the worker ended."""
    certain: bool
    """False while the next job may still show that this one had damaged the worker; a certain
    answer to the same job follows."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that a worker runs in."""

    executable: str | None = None
    """Path of another Python, which must have this package; None means the one that runs now."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables besides those of this process."""


class _Message(NamedTuple):
    kind: Literal["ready", "started", "answer", "broken"]
    content: Any


class _Worker(Generic[G, J, A]):
    """One process with a pipe to it."""

    def __init__(self, factory: Factory[G, J, A], interpreter: Interpreter) -> None:
        ours, theirs = Pipe()
        # Another Python finds its packages in its own places.
        path = "" if interpreter.executable else "\n".join(sys.path)
        executable = interpreter.executable or sys.executable
        self._connection: Connection = ours
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
        with theirs:
            # A session of its own: a Ctrl-C on the terminal reaches only the parent, which decides,
            # and whatever an operator started can be ended together with the worker.
            self._process = subprocess.Popen(
                [executable, "-c", _BOOT, str(theirs.fileno()), path],
                env={**os.environ, **interpreter.variables},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        self._greeting: list[G] = []  # empty until the worker is ready
        self.answered = 0
        """Number of jobs that this process has survived."""
        with contextlib.suppress(BrokenPipeError):  # it died at once: `run` finds out how
            self._connection.send((factory, os.getpid()))

    def greeting(self) -> G:
        """Waits until the worker has loaded and returns what it has to tell.

        Raises:
            WorkerError: It could not load.
        """
        if not self._greeting:
            try:
                self._greeting.append(self._receive(_LOADING_LIMIT_S).content)
            except TimeoutError:
                raise WorkerError(
                    f"the worker did not start within {_LOADING_LIMIT_S:g} s"
                ) from None
            except (EOFError, ConnectionError):
                died = self._autopsy()
                raise WorkerError(
                    f"the worker ended with {died.cause} while it started: {died.last_words}"
                ) from None
        return self._greeting[0]

    def run(self, job: J, *, limit_s: float) -> A | Died | TimedOut:
        """Hands over a job and sleeps until it is answered, the process dies or time is up."""
        self.greeting()
        limit = _LOADING_LIMIT_S
        try:
            self._connection.send(job)
            message = self._receive(limit)
            if message.kind == "started":
                limit = limit_s
                message = self._receive(limit)
        except TimeoutError:
            self.end()
            return TimedOut(limit)
        except (EOFError, ConnectionError):
            died = self._autopsy()
            self.end()
            return died
        self.answered += 1
        answer: A = message.content
        return answer

    def _receive(self, limit_s: float) -> _Message:
        if not self._connection.poll(limit_s):
            raise TimeoutError
        message: _Message = self._connection.recv()
        if message.kind == "broken":
            raise WorkerError(message.content)
        return message

    def _autopsy(self) -> Died:
        try:
            code = self._process.wait(timeout=_EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:  # it lost its pipe but lives on
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Died(cause, self._last_words())

    def _last_words(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _LAST_WORDS_BYTES))
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def end(self) -> None:
        """Ends the process and everything it started; may be called again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        self._output.close()


class Isolated(Generic[G, J, A]):
    """Works on jobs in a worker process that is replaced when it dies."""

    def __init__(
        self,
        factory: Factory[G, J, A],
        *,
        limit_s: float,
        spoils: Callable[[A], bool],
        interpreter: Interpreter | None = None,
    ) -> None:
        """Starts the first worker at once, so that it loads while the caller prepares the jobs.

        Args:
            factory: Makes, in the worker, the function that works on a job.
            limit_s: Time for one job, counted from when the job says that it starts [seconds].
            spoils: Says of an answer that the worker is of no use after it.
            interpreter: The Python that it runs in; the default is the one that runs now.
        """
        self._interpreter = interpreter or Interpreter()
        self._closed = False
        self._factory = factory
        self._limit_s = limit_s
        self._spoils = spoils
        self._worker: _Worker[G, J, A] | None = self._start()

    def greeting(self) -> G:
        """Waits until a worker has loaded and returns what it has to tell.

        Raises:
            WorkerError: It could not load.
        """
        if self._worker is None:
            self._worker = self._start()
        return self._worker.greeting()

    def _start(self) -> _Worker[G, J, A]:
        if self._closed:  # by another thread, in the middle of a job
            raise WorkerError("the worker was ended")
        return _Worker(self._factory, self._interpreter)

    def map(self, jobs: Iterable[J]) -> Iterator[A | Died | TimedOut]:
        """Yields one answer for each job, in order, once it is certain."""
        return (answer.content for answer in self.watch(jobs) if answer.certain)

    def watch(self, jobs: Iterable[J]) -> Iterator[Answer[A]]:
        """Yields every answer twice: at once, and when it is certain.

        A job is held to have died only if it dies again, alone in a fresh worker: damage that the
        job before did to the heap can kill it. If it survives alone, the job before is tried again
        alone too, which is why an answer is certain only after the next job has ended.
        """
        before: tuple[J, Answer[A]] | None = None
        for place, job in enumerate(jobs):
            shared = self._worker is not None and self._worker.answered > 0
            try:
                answer = self._run(job)
                if isinstance(answer, Died):
                    logger.debug("worker died (%s); trying the job again alone", answer.cause)
                    answer = self._run(job)
                    if before is not None and shared and not isinstance(answer, Died):
                        again = self._retry_suspect(before[0], before[1].content)
                        before = (before[0], Answer(before[1].place, again, certain=True))
            except (KeyboardInterrupt, WorkerError):  # the job before has ended: it is kept
                if before is not None:
                    yield replace(before[1], certain=True)
                raise
            if before is not None:
                yield replace(before[1], certain=True)
            before = (job, Answer(place, answer, certain=False))
            yield before[1]
        if before is not None:
            yield replace(before[1], certain=True)

    def close(self) -> None:
        """Ends the worker and everything it started, for good; may be called again."""
        self._closed = True
        self._end_worker()

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _retry_suspect(self, job: J, answer: A | Died | TimedOut) -> A | Died | TimedOut:
        self._end_worker()
        again = self._run(job)
        self._end_worker()
        return again if isinstance(again, Died) else answer

    def _run(self, job: J) -> A | Died | TimedOut:
        if self._worker is None:
            self._worker = self._start()
        answer = self._worker.run(job, limit_s=self._limit_s)
        if isinstance(answer, Died | TimedOut) or self._spoils(answer):
            self._end_worker()
        return answer


class InProcess(Generic[G, J, A]):
    """Works on jobs in this process: for debuggers and profilers; a crash ends everything."""

    def __init__(self, factory: Factory[G, J, A]) -> None:
        """Loads what the jobs need.

        Raises:
            WorkerError: It could not load.
        """
        try:
            self._greeting, self._handle = factory()
        except Exception as error:
            raise WorkerError(_told(error)) from error

    def greeting(self) -> G:
        """Returns what the loaded libraries have to tell."""
        return self._greeting

    def map(self, jobs: Iterable[J]) -> Iterator[A]:
        """Yields one answer for each job, in order."""
        for job in jobs:
            yield self._handle(job, lambda: None)

    def watch(self, jobs: Iterable[J]) -> Iterator[Answer[A]]:
        """Yields one answer for each job; it is certain, for there is no other process."""
        for place, answer in enumerate(self.map(jobs)):
            yield Answer(place, answer, certain=True)

    def close(self) -> None:
        """Does nothing: there is no process to end."""


def _main(descriptor: int) -> None:
    """Runs in the worker: serves the pipe until the parent closes it."""
    os.set_inheritable(descriptor, False)
    with Connection(descriptor) as connection:
        factory, parent = connection.recv()
        _die_with(parent)
        _serve(connection, factory)


def _serve(connection: Connection, factory: Factory[Any, Any, Any]) -> None:
    try:
        greeting, handle = factory()
    except Exception as error:
        traceback.print_exc()
        connection.send(_Message("broken", _told(error)))
        return
    try:
        connection.send(_Message("ready", greeting))
        while True:
            try:
                job = connection.recv()
            except EOFError:
                return
            answer = handle(job, lambda: connection.send(_Message("started", None)))
            connection.send(_Message("answer", answer))
    except Exception as error:
        traceback.print_exc()
        connection.send(_Message("broken", f"{type(error).__name__}: {error}"))


def _die_with(parent: int) -> None:
    """Has the kernel end this process when its parent ends, also in the middle of a job."""
    if sys.platform != "linux":  # elsewhere the closed pipe ends it, after the job at hand
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
