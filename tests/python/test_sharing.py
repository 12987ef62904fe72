"""Sharing calls out: between workers, and between runs."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from synthetic_clock import planned

from opreplay.isolation import InProcess, Isolated, WorkerError
from opreplay.sharing import Workers, expected_seconds, read_shard, shard_of
from opreplay.trace import RecordedTimes


def call(op, recorded_us):
    return replace(planned(op), host=RecordedTimes(recorded_us, recorded_us, recorded_us))


def pool(*handles):
    runners = [InProcess(lambda handle=handle: ("hello", handle)) for handle in handles]
    return Workers(runners, [f"worker{place}" for place in range(len(handles))])


def echo(job, started):
    return f"did {job}"


def test_one_worker_takes_the_jobs_in_order():
    answers = list(pool(echo).answers(["a", "b", "c"], [1, 3, 2]))

    assert [(answer.content, name) for answer, name in answers] == [
        ("did a", "worker0"), ("did b", "worker0"), ("did c", "worker0"),
    ]  # fmt: skip


def test_several_workers_take_the_longest_that_is_left():
    taken = []
    first = threading.Event()

    def slow(job, started):
        taken.append(job)
        first.wait(5)
        return job

    def quick(job, started):
        while not taken:
            time.sleep(0.001)
        taken.append(job)
        if len(taken) == 4:
            first.set()
        return job

    answers = list(pool(slow, quick).answers(["a", "b", "c", "d"], [1, 4, 2, 3]))

    assert set(taken[:2]) == {"b", "d"}
    assert taken[2:] == ["c", "a"]
    assert sorted(answer.place for answer, _ in answers) == [0, 1, 2, 3]
    assert all("abcd"[answer.place] == answer.content for answer, _ in answers)


def test_an_error_of_one_worker_ends_all_and_keeps_what_was_done():
    closed = []
    finished = threading.Event()

    def handle(job, started):
        if job == "z":
            finished.set()
        return f"did {job}"

    class Broken:
        def watch(self, jobs):
            finished.wait(5)
            raise WorkerError("no more")
            yield from jobs

        def close(self):
            closed.append(True)

    good = InProcess(lambda: ("hello", handle))
    seen = []
    with pytest.raises(WorkerError, match="no more"):
        for answer, _ in Workers([good, Broken()], ["a", "b"]).answers(["x", "y", "z"], [1, 1, 1]):
            seen.append(answer.content)

    assert closed
    assert seen == ["did x", "did y", "did z"]


def test_whoever_stops_early_ends_all_workers():
    answers = pool(echo, echo).answers(["x", "y", "z"], [1, 1, 1])

    next(answers)
    answers.close()  # raises if the generator goes on


def test_a_worker_that_was_closed_starts_no_other():
    runner = Isolated(slow_start, limit_s=1.0, spoils=lambda answer: False)
    runner.close()

    with pytest.raises(WorkerError, match="was ended"):
        list(runner.map(["job"]))


def slow_start():
    return "hello", echo


def test_parts_take_about_as_long_and_hold_every_call_once():
    calls = [call(f"aten::op{i}", 10.0 ** (i % 7)) for i in range(100)]

    parts = [shard_of(calls, number, 3) for number in (1, 2, 3)]

    assert sorted(one.op for part in parts for one in part) == sorted(one.op for one in calls)
    loads = [sum(map(expected_seconds, part)) for part in parts]
    assert max(loads) - min(loads) <= max(map(expected_seconds, calls))
    assert [one.op for one in parts[0]] == [one.op for one in calls if one in parts[0]]


def test_parts_are_the_same_on_every_machine():
    calls = [call(f"aten::op{i}", 5.0) for i in range(10)]

    assert shard_of(calls, 2, 4) == shard_of(list(calls), 2, 4)
    assert shard_of(calls, 1, 1) == calls


def test_a_shard_is_read():
    assert read_shard("2/8") == (2, 8)


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/2/3", ""])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="I/N"):
        read_shard(text)
