"""Workers on many machines: jobs come in and run as Ray tasks; answers go out as they finish.

Each task takes one GPU, or a whole machine without GPUs, for one call. Calls travel to the
machines, as a plan holds them; the trace does not. Ray runs the task of a lost machine elsewhere.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opreplay.isolation import Answer, Died, Isolated, TimedOut, WorkerError
from opreplay.options import ReplayOptions
from opreplay.outcome import Outcome
from opreplay.plan import PlannedCall
from opreplay.replay import Greeting, start_attempt
from opreplay.trace import CallSequence, RecordedCall

if TYPE_CHECKING:
    from opreplay.environment import Environment

__all__ = ["Cluster"]

_GPU_TYPE = "accelerator_type:"

Job = RecordedCall | PlannedCall | CallSequence


class _Report(NamedTuple):
    """What a task sends back."""

    machine: str
    greeting: Greeting
    content: Outcome | Died | TimedOut | None


class Cluster:
    """Workers that are tasks of a Ray cluster."""

    def __init__(
        self, options: ReplayOptions, *, address: str | None = None, gpu_type: str | None = None
    ) -> None:
        """Joins a cluster, or starts one on this machine.

        Args:
            options: How calls are run.
            address: Of the cluster; None takes the one that runs here, or starts one.
            gpu_type: Ray's name of a type of GPU, as ``"H100"``; needed where there are several.

        Raises:
            ImportError: Ray is not installed.
            ValueError: The cluster has GPUs of several types, or not the one asked for.
            ConnectionError: There is no cluster at the address.
        """
        if not options.isolation:
            raise ValueError("a cluster's workers are processes: leave isolation on")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a measurement phones nobody
        try:
            import ray
        except ImportError as error:
            raise ImportError("--ray needs Ray: pip install 'opreplay[ray]'") from error
        self._ray: Any = ray
        self._options = options
        self._joined = not ray.is_initialized()
        if self._joined:
            self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        try:
            task = self._ray.remote(_run).options(
                max_retries=-1, scheduling_strategy="SPREAD", **self._resources(gpu_type)
            )
        except BaseException:
            self.close()
            raise
        self._task = task
        self._first: Environment | None = None

    def greetings(self) -> list[Greeting]:
        """Waits until one worker has loaded and returns what it has to tell.

        Raises:
            WorkerError: It could not load.
        """
        greeting = self._get(self._task.remote(self._options, None)).greeting
        self._first = greeting.environment
        return [greeting]

    def answers(
        self, jobs: Sequence[Job], seconds: Sequence[float]
    ) -> Iterator[tuple[Answer[Outcome], str | None]]:
        """Yields the answers to all jobs with the name of the machine, as they come.

        Args:
            jobs: What is to be done.
            seconds: What each job is expected to take; the longest are begun first.

        Raises:
            WorkerError: A machine cannot load what is needed.
            ValueError: A machine differs from the first one in what times depend on.
        """
        order = sorted(range(len(jobs)), key=lambda place: -seconds[place])
        running = {self._task.remote(self._options, jobs[place]): place for place in order}
        while running:
            (done, *_), _ = self._ray.wait(list(running), num_returns=1)
            report = self._get(done)
            if report.content is not None:
                self._check(report)
                answer = Answer(running[done], report.content, certain=True)
                yield answer, f"{report.machine} {report.greeting.environment.device}"
            del running[done]

    def close(self) -> None:
        """Leaves the cluster, which ends what still runs; may be called again."""
        if self._joined:
            self._ray.shutdown()

    def _resources(self, gpu_type: str | None) -> dict[str, Any]:
        """What a task holds for itself: a GPU, or the processors of a machine."""
        resources = self._ray.cluster_resources()
        types = sorted(
            name.removeprefix(_GPU_TYPE) for name in resources if name.startswith(_GPU_TYPE)
        )
        if gpu_type is not None and gpu_type not in types:
            there = ", ".join(types) or "none"
            raise ValueError(f"the cluster has no GPU {gpu_type}, it has {there}")
        if self._options.device == "cpu" or not resources.get("GPU"):
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            return {"num_cpus": min(node["CPU"] for node in nodes if node.get("CPU"))}
        if gpu_type is None and len(types) > 1:
            raise ValueError(
                f"the cluster has GPUs of several types ({', '.join(types)}), whose times do not "
                "compare: choose one with --gpu-type"
            )
        chosen = gpu_type or (types[0] if types else None)
        return {"num_gpus": 1} | ({"accelerator_type": chosen} if chosen else {})

    def _check(self, report: _Report) -> None:
        here = report.greeting.environment
        first = self._first or here
        self._first = first
        for name in ("device_name", "torch", "opreplay"):
            if getattr(here, name) != getattr(first, name):
                raise ValueError(
                    f"{report.machine} has {name} {getattr(here, name)}, the first machine has "
                    f"{getattr(first, name)}: times of both do not compare"
                )

    def _get(self, future: Any) -> _Report:
        try:
            report: _Report = self._ray.get(future)
        except self._ray.exceptions.RayTaskError as error:
            raise WorkerError(str(error.cause or error)) from error
        return report


_runners: dict[str, Isolated[Greeting, Job, Outcome]] = {}
"""Kept in a process of Ray between its tasks: loading the libraries takes seconds."""


def _run(options: ReplayOptions, job: Job | None) -> _Report:
    """Runs on a machine of the cluster."""
    key = repr(options)
    if key not in _runners:
        for runner in _runners.values():
            runner.close()
        _runners.clear()
        # With isolation, which a cluster has on, it is never the runner of this process.
        _runners[key] = start_attempt(options)  # type: ignore[assignment]
    runner = _runners[key]
    content = None
    if job is not None:
        (content,) = runner.map([job])
    return _Report(socket.gethostname(), runner.greeting(), content)
