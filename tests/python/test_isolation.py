"""Workers: what a crash, a hang and a broken start cost."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path

import pytest

from opreplay.isolation import (
    Died,
    InProcess,
    Isolated,
    TimedOut,
    WorkerError,
    _main,
    _serve,
)


def obey(job: str, started: Callable[[], None], *, state: dict[str, bool]) -> str:
    """Stands in for replaying a call."""
    verb, _, text = job.partition(" ")
    if verb == "hang-before-start":
        time.sleep(60)
    started()
    if verb == "segfault":
        ctypes.string_at(0)
    if verb == "abort":
        os.write(2, b"free(): invalid pointer\n")
        os.abort()
    if verb == "hang":
        time.sleep(60)
    if verb == "exit":
        os._exit(3)
    if verb == "raise":
        raise ValueError(text)
    if verb == "damage":
        state["damaged"] = True
    if verb == "damage-and-die-alone":
        if not state.get("used"):
            os.abort()
        state["damaged"] = True
    if verb == "fragile" and state.get("damaged"):
        os.abort()
    if verb == "count":
        path = Path(text)
        path.write_text(path.read_text() + "x")
        os.kill(os.getpid(), signal.SIGKILL)
    if verb == "child":
        Path(text).write_text(str(subprocess.Popen(["sleep", "60"]).pid))
    state["used"] = True
    return f"{verb} {os.getpid()}" if verb == "pid" else verb


Made = tuple[str, Callable[[str, Callable[[], None]], str]]


def make() -> Made:
    return "hello", functools.partial(obey, state={})


def make_broken() -> Made:
    raise ImportError("no such library")


def make_dead() -> Made:
    os._exit(7)


def isolated(
    limit_s: float = 30.0, spoils: str = ""
) -> contextlib.closing[Isolated[str, str, str]]:
    return contextlib.closing(
        Isolated(make, limit_s=limit_s, spoils=lambda answer: answer == spoils)
    )


def answers(*jobs: str, limit_s: float = 30.0) -> list[str | Died | TimedOut]:
    with isolated(limit_s) as runner:
        return list(runner.map(jobs))


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_for_end(pid: int) -> bool:
    for _ in range(100):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_jobs_are_answered_in_order_by_one_process() -> None:
    first, second = answers("pid", "pid")

    assert first == second
    assert first != f"pid {os.getpid()}"


@pytest.mark.parametrize(
    ("job", "cause"),
    [("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("exit", "exit code 3")],
)
def test_a_job_that_kills_its_process_is_reported_with_the_signal(job: str, cause: str) -> None:
    before, died, after = answers("one", job, "two")

    assert (before, after) == ("one", "two")
    assert isinstance(died, Died)
    assert died.cause == cause


def test_the_last_words_of_a_dead_process_are_kept() -> None:
    (died,) = answers("abort")

    assert isinstance(died, Died)
    assert died.last_words == "free(): invalid pointer"


def test_a_job_died_only_after_it_died_again_alone(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.write_text("")

    (died,) = answers(f"count {runs}")

    assert died == Died("SIGKILL", "")
    assert runs.read_text() == "xx"


def test_a_job_killed_by_the_damage_of_another_is_answered_from_a_fresh_process() -> None:
    assert answers("damage", "fragile", "after") == ["damage", "fragile", "after"]


def test_the_job_before_is_tried_again_alone_and_blamed_if_it_dies() -> None:
    first, suspect, victim, after = answers("one", "damage-and-die-alone", "fragile", "after")

    assert (first, victim, after) == ("one", "fragile", "after")
    assert isinstance(suspect, Died)


def test_a_job_that_hangs_is_ended_and_the_next_one_runs() -> None:
    before, late, after = answers("one", "hang", "two", limit_s=0.2)

    assert (before, late, after) == ("one", TimedOut(0.2), "two")


def test_time_counts_from_when_the_job_says_that_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opreplay.isolation._LOADING_LIMIT_S", 5.0)

    assert answers("hang-before-start", limit_s=0.1) == [TimedOut(5.0)]


def test_a_worker_that_an_answer_spoils_is_replaced() -> None:
    with isolated(spoils="spoiled") as runner:
        first, _, second = runner.map(["pid", "spoiled", "pid"])

    assert first != second


def test_an_exception_outside_of_any_operator_is_an_error() -> None:
    with isolated() as runner, pytest.raises(WorkerError, match="ValueError: some text"):
        list(runner.map(["raise some text"]))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (make_broken, "ImportError: no such library"),
        (make_dead, "ended with exit code 7 while it started"),
    ],
)
def test_a_worker_that_cannot_start_is_an_error(factory: Callable[[], Made], message: str) -> None:
    with (
        contextlib.closing(Isolated(factory, limit_s=1.0, spoils=lambda _: False)) as runner,
        pytest.raises(WorkerError, match=message),
    ):
        list(runner.map(["one"]))


def test_a_worker_that_does_not_start_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opreplay.isolation._LOADING_LIMIT_S", 0.0)

    with isolated() as runner, pytest.raises(WorkerError, match="did not start within 0 s"):
        list(runner.map(["one"]))


def test_leaving_ends_the_worker_and_what_it_started(tmp_path: Path) -> None:
    child = tmp_path / "pid"
    with isolated() as runner:
        answer, _ = runner.map(["pid", f"child {child}"])
        worker = int(str(answer).split()[1])
        assert alive(worker)

    assert wait_for_end(worker)
    assert wait_for_end(int(child.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_worker_dies_with_its_parent_in_the_middle_of_a_job(tmp_path: Path) -> None:
    program = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from test_isolation import isolated
with isolated() as runner:
    answers = runner.map(["pid", "one", "hang"])
    print(next(answers), flush=True)
    next(answers)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline().split()[1])
        assert alive(worker)
        parent.kill()

    assert wait_for_end(worker)


def test_the_loop_of_a_worker_ends_when_the_pipe_closes() -> None:
    ours, theirs = Pipe()
    loop = threading.Thread(target=_serve, args=(theirs, make))
    loop.start()
    ours.send("one")
    messages = [ours.recv() for _ in range(3)]
    ours.close()
    loop.join(timeout=10)

    assert messages == [("ready", "hello"), ("started", None), ("answer", "one")]
    assert not loop.is_alive()


def test_a_worker_tells_what_it_loaded_before_any_job() -> None:
    with isolated() as runner:
        assert runner.greeting() == "hello"


def test_in_process_jobs_run_here() -> None:
    with contextlib.closing(InProcess(make)) as runner:
        assert runner.greeting() == "hello"
        assert list(runner.map(["pid"])) == [f"pid {os.getpid()}"]


def test_a_worker_reads_factory_and_parent_and_then_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Pipe()
    parents: list[int] = []
    monkeypatch.setattr("opreplay.isolation._die_with", parents.append)
    ours.send((make, 42))
    ours.send("one")
    loop = threading.Thread(target=_main, args=(os.dup(theirs.fileno()),))
    loop.start()
    messages = [ours.recv() for _ in range(3)]
    ours.close()
    theirs.close()
    loop.join(timeout=10)

    assert parents == [42]
    assert messages[-1] == ("answer", "one")


def test_the_loop_of_a_worker_says_what_broke_it(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = Pipe()
    ours.send("raise some text")
    _serve(theirs, make)
    messages = [ours.recv() for _ in range(3)]

    assert messages[-1] == ("broken", "ValueError: some text")
    assert "Traceback" in capsys.readouterr().err


def test_a_factory_that_fails_here_is_an_error() -> None:
    with pytest.raises(WorkerError, match="ImportError: no such library"):
        InProcess(make_broken)
