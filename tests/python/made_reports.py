"""Builders of reports: rows with chosen times, on a machine that does not exist."""

from __future__ import annotations

from dataclasses import replace

from opreplay.environment import Environment
from opreplay.report.results import Report
from opreplay.report.row import Row
from opreplay.stat import Stat, Timing
from opreplay.trace import RecordedTimes

ENVIRONMENT = Environment(
    opreplay="0.1.0", python="3.12.1", torch="2.13.0", built_for_torch="2.13.0", cuda=None,
    hip=None, libraries={"numpy": "2.0"}, system="Linux", cpu="a CPU", cpu_capability="AVX2",
    cpus=2, threads=2, governor=None, last_level_cache=1 << 20, memory=1 << 30, timer_ns=20.0,
    device="cpu", device_name=None, device_capability=None, device_memory=None, variables={},
    time="2026-01-01T00:00:00+00:00",
)  # fmt: skip


def stat(*, median=1000.0, iqr=10.0, samples=20, raw=None):
    return Stat(
        median=median, mean=median, min=median, p5=median, p95=median, iqr=iqr, samples=samples,
        discarded=0, stop_reason="relative_error", floor=1.0, at_floor=False, route="loop", raw=raw,
    )  # fmt: skip


def timing(host=None, *, hot=None):
    """A timing with a host time of 1 us unless a stat is given."""
    return Timing(host or stat(), hot, None, None, None, None, None)


def row(op="aten::mm", *, signature=None, **fields):
    """A row of one call that was timed, unless a field says otherwise."""
    made = Row(
        op=op, overload="", resolved_op=op, signature=signature or op, step=None, count=1,
        host=RecordedTimes(10.0, 10.0, 10.0), device=None, in_graph=False, kernels_recorded=(),
        bytes=None, schemas_rejected=(), reason=None, detail="", assumptions=(), recipe=None,
        schema=None, timing=timing(),
    )  # fmt: skip
    return replace(made, **fields)


def lost(op="aten::index", **fields):
    return row(op, reason="argument_lost", detail="indices are gone", timing=None, **fields)


def report(*rows, **environment):
    return Report(tuple(rows), replace(ENVIRONMENT, **environment), ("opreplay", "run"))
