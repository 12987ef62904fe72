"""A Ray cluster: two machines that are processes here, one of which is lost in the middle."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kineto_events import op, write
from made_reports import ENVIRONMENT

from opreplay import cluster
from opreplay.cluster import Cluster
from opreplay.isolation import WorkerError
from opreplay.options import ReplayOptions
from opreplay.outcome import Outcome
from opreplay.replay import Greeting, Replay
from opreplay.report.results_file import read_results
from opreplay.report.row_log import RowLog
from opreplay.stat import TimingOptions

OPTIONS = ReplayOptions(device="cpu", timing=TimingOptions(time_s=0.05), threads=1)
NAMES = ["relu", "abs", "neg", "exp", "sin", "cos", "tan", "ceil", "floor", "sign", "erf", "log"]


@pytest.fixture
def machines(monkeypatch):
    """A cluster of two machines with one processor each."""
    ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
    utils = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    room = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = utils.Cluster(initialize_head=True, head_node_args=room)
    second = cluster.add_node(**room)
    yield SimpleNamespace(cluster=cluster, second=second, address=cluster.address)
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_a_lost_machine_costs_no_row_and_no_row_comes_twice(machines, tmp_path):
    events = [
        op(f"aten::{name}", types=["float"], dims=[[4]], strides=[[1]], values=[""], ts=20 * place)
        for place, name in enumerate(NAMES)
    ]
    trace = write(tmp_path / "trace.json", {"traceEvents": events})
    out = tmp_path / "out.jsonl"

    def start(options):
        return Cluster(options, address=machines.address)

    run = Replay(str(trace), options=OPTIONS, start=start)
    with RowLog(out) as log:
        log.begin(run.environment, ("test",), run.settings)
        for number, _ in enumerate(run.rows(keep=log.append)):
            if number == 2:
                machines.cluster.remove_node(machines.second, allow_graceful=False)
    run.close()

    rows = read_results(out).rows
    assert sorted(row.op for row in rows) == sorted(f"aten::{name}" for name in NAMES)
    assert out.read_text().count("\n") == 1 + len(NAMES)
    assert {row.status for row in rows} == {"ok"}
    assert all(row.ran_on.endswith(" cpu") for row in rows)


class FakeRay:
    """Stands in for Ray where what counts is what it is asked for."""

    class exceptions:
        class RayTaskError(Exception):
            cause = None

    def __init__(self, resources, nodes=(), answers=()):
        self._resources = resources
        self._nodes = nodes
        self._answers = dict(answers)
        self.asked = {}
        self.started = []

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return self._resources

    def nodes(self):
        return [{"Alive": True, "Resources": node} for node in self._nodes]

    def remote(self, function):
        return self

    def options(self, **asked):
        self.asked = asked

        def submit(options, job):
            self.started.append(job)
            return job

        return SimpleNamespace(remote=submit)

    def wait(self, futures, num_returns):
        return futures[:1], futures[1:]

    def get(self, future):
        answer = self._answers[future]
        if isinstance(answer, Exception):
            raise answer
        return answer


def on(ray, monkeypatch, **choices):
    monkeypatch.setitem(sys.modules, "ray", ray)
    return Cluster(choices.pop("options", ReplayOptions()), **choices)


def report(machine, content=None, **environment):

    greeting = Greeting(replace(ENVIRONMENT, **environment), frozenset())
    return SimpleNamespace(machine=machine, greeting=greeting, content=content)


H100 = {"GPU": 8.0, "accelerator_type:H100": 1.0}


def test_a_task_takes_one_gpu_of_one_type(monkeypatch):
    ray = FakeRay(H100)
    on(ray, monkeypatch)
    assert (ray.asked["num_gpus"], ray.asked["accelerator_type"]) == (1, "H100")
    assert ray.asked["max_retries"] == -1

    both = FakeRay({**H100, "accelerator_type:A100": 1.0})
    on(both, monkeypatch, gpu_type="A100")
    assert both.asked["accelerator_type"] == "A100"


def test_a_task_takes_a_machine_where_there_is_no_gpu(monkeypatch):
    ray = FakeRay({"CPU": 96.0}, nodes=[{"CPU": 64.0}, {"CPU": 32.0}, {}])
    on(ray, monkeypatch)

    assert ray.asked["num_cpus"] == 32.0


@pytest.mark.parametrize(
    ("resources", "choices", "message"),
    [
        ({**H100, "accelerator_type:A100": 1.0}, {}, r"several types \(A100, H100\)"),
        (H100, {"gpu_type": "B200"}, "has no GPU B200, it has H100"),
        (H100, {"options": ReplayOptions(isolation=False)}, "leave isolation on"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(monkeypatch, resources, choices, message):
    with pytest.raises(ValueError, match=message):
        on(FakeRay(resources), monkeypatch, **choices)


def test_the_longest_calls_are_begun_first_and_rows_say_where_they_ran(monkeypatch):
    answers = {name: report("node1", Outcome(reason="failed")) for name in "abc"}
    ray = FakeRay(H100, answers={None: report("node0"), **answers})
    cluster = on(ray, monkeypatch)

    cluster.greetings()
    found = [(answer.place, where) for answer, where in cluster.answers("abc", [1, 3, 2])]

    assert ray.started == [None, "b", "c", "a"]
    assert found == [(1, "node1 cpu"), (2, "node1 cpu"), (0, "node1 cpu")]


def test_a_machine_of_another_kind_is_an_error(monkeypatch):
    other = report("node1", Outcome(reason="failed"), torch="2.14.0")
    ray = FakeRay(H100, answers={None: report("node0"), "a": other})
    cluster = on(ray, monkeypatch)
    cluster.greetings()

    with pytest.raises(ValueError, match=r"node1 has torch 2\.14\.0, the first machine has 2\.13"):
        list(cluster.answers(["a"], [1]))


def test_a_machine_that_cannot_load_is_an_error(monkeypatch):
    ray = FakeRay(H100, answers={None: FakeRay.exceptions.RayTaskError("no such library")})

    with pytest.raises(WorkerError, match="no such library"):
        on(ray, monkeypatch).greetings()


def test_ray_is_an_extra(monkeypatch):
    with pytest.raises(ImportError, match=r"pip install 'opreplay\[ray\]'"):
        on(None, monkeypatch)


def test_a_task_keeps_its_worker(monkeypatch):

    started = []

    class Runner:
        def __init__(self, options):
            started.append(self)
            self.closed = False

        def greeting(self):
            return Greeting(ENVIRONMENT, frozenset())

        def map(self, jobs):
            return [f"did {job}" for job in jobs]

        def close(self):
            self.closed = True

    monkeypatch.setattr(cluster, "start_attempt", Runner)
    monkeypatch.setattr(cluster, "_runners", {})

    assert cluster._run(OPTIONS, None).content is None
    assert cluster._run(OPTIONS, "job").content == "did job"
    assert len(started) == 1
    cluster._run(ReplayOptions(), None)
    assert [runner.closed for runner in started] == [True, False]
