"""One row of a report: a recorded call comes in with what became of it, JSON fields go out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from opreplay.outcome import ResultCheck
from opreplay.stat import Timing
from opreplay.trace.call import Point, Reason, RecordedTimes
from opreplay.trace.steps import Step
from opreplay.validation import KernelCheck, check_kernels

__all__ = ["STATUSES", "Fidelity", "Row", "RowKey", "Status", "status_of"]

Status = Literal["ok", "failed", "skipped"]

STATUSES: tuple[Status, ...] = ("ok", "failed", "skipped")

_FAILURES: frozenset[Reason] = frozenset({"failed", "crashed", "timed_out", "recipe_failed"})


def status_of(reason: Reason | None) -> Status:
    """Returns the status that goes with a reason."""
    if reason is None:
        return "ok"
    return "failed" if reason in _FAILURES else "skipped"


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The recorded and the replayed time that stand for the same thing, side by side."""

    of: Literal["host", "device"]
    """What the times are of: the CPU's call, or the kernels inside."""
    recorded_us: float
    """Median of the recorded calls [microseconds]."""
    hot_us: float
    """Median of the replayed calls, inputs in cache [microseconds]."""
    cold_us: float | None
    """Median with inputs out of cache [microseconds]; None where it was not taken."""
    recorded_over_hot: float | None
    """Ratio of the two; None for a trace that records no times."""
    cold_over_hot: float | None
    """Ratio of the two; None where there is no cold time."""


RowKey = tuple[str, str | None, Step | None]
"""Signature, step and batch of the step: what no two rows of a run share."""


@dataclass(frozen=True, slots=True)
class Row:
    """Calls of one signature, in one step or phase, and what became of their replay."""

    op: str
    """Operator name as recorded."""
    overload: str
    """Overload that ran; empty for the default overload or where none was found."""
    resolved_op: str
    """Operator that ran; differs from `op` where the operator was renamed."""
    signature: str
    """Stable hash of the call, equal in every run and on every machine."""
    step: str | None
    """Annotation of the step that was run, where the inputs depend on the step."""
    count: int
    """Number of recorded calls."""
    host: RecordedTimes
    """Recorded times of the CPU events."""
    device: RecordedTimes | None
    """Recorded spans of the kernels launched inside; None where none were."""
    in_graph: bool
    """True if any of the calls ran under graph capture."""
    kernels_recorded: tuple[tuple[str, int], ...]
    """Name and number of the kernels that one recorded call launched."""
    bytes: int | None
    """Bytes of all storages of the inputs; None where no inputs were made."""
    schemas_rejected: tuple[tuple[str, str], ...]
    """Other schemas of the name, each with the reason why it does not fit."""
    reason: Reason | None
    """Why there is no timing; None if there is one."""
    detail: str
    """One sentence on the reason; empty if there is none."""
    assumptions: tuple[str, ...]
    """Each guess that was made, one sentence each."""
    recipe: str | None
    """What chose the values of data-dependent arguments."""
    schema: str | None
    """Schema of the operator that ran; None for a plain callable or where none was found."""
    timing: Timing | None
    """What was measured; None unless the status is ok."""
    batch: Step | None = None
    """Batch of that step, as far as the trace tells it."""
    flops: int | None = None
    """Floating point operations of one call; None where torch has no formula for them."""
    inputs: str = ""
    """Types and dims of the tensors and values of the scalars, in one line."""
    kernels_replayed: tuple[tuple[str, int], ...] | None = None
    """Name and number of the kernels of one profiled replay; None on the CPU."""
    kernels_us: dict[str, float] | None = None
    """Time of the kernels of one profiled replay, by name [microseconds]; None on the CPU."""
    outputs: ResultCheck | None = None
    """What was found of the outputs; None where nobody looked."""
    ran_on: str | None = None
    """Device, and machine where there are several; None where one worker ran all rows."""
    point: Point | None = None
    """Where it stands in a sweep; None for a call as recorded."""

    def __post_init__(self) -> None:
        """Checks that a row has a timing or a reason."""
        if (self.reason is None) != (self.timing is not None):
            raise ValueError(
                f"a row has either a reason or a timing, got {self.reason = }, {self.timing = }"
            )

    @property
    def key(self) -> RowKey:
        """What tells the row from the others of its run; steps of one name differ in batch."""
        return self.signature, self.step, self.batch

    @property
    def status(self) -> Status:
        """Whether the call was timed, failed or was left out."""
        return status_of(self.reason)

    @property
    def tflops(self) -> float | None:
        """Operations over the warm time, the device's if there is one [10^12 per second]."""
        if self.flops is None or self.timing is None:
            return None
        hot = self.timing.hot_us
        return self.flops / (self.timing.host_ns.median if hot is None else hot.median * 1e3) / 1e3

    @property
    def kernel_check(self) -> KernelCheck:
        """The kernels of the recorded call against those of the replayed one."""
        return check_kernels(self.kernels_recorded, self.kernels_replayed)

    @property
    def fidelity(self) -> Fidelity | None:
        """Recorded, hot and cold time: the kernels' where both sides have them, else the CPU's.

        None for a row without a timing.
        """
        timing = self.timing
        if timing is None:
            return None
        of: Literal["host", "device"] = "host"
        recorded, hot, cold = self.host.median, timing.host_ns.median / 1000, timing.cold_us
        if timing.hot_us is not None:
            cold = None  # it is the device's
            if self.device is not None:
                of, recorded, hot = "device", self.device.median, timing.hot_us.median
                cold = timing.cold_us
        return Fidelity(
            of=of,
            recorded_us=recorded,
            hot_us=hot,
            cold_us=None if cold is None else cold.median,
            recorded_over_hot=recorded / hot if recorded and hot else None,
            cold_over_hot=cold.median / hot if cold and hot else None,
        )

    def to_json(self) -> dict[str, Any]:
        """The row in the form that stands in a results file."""
        host, device = self.host, self.device
        return {
            "op": self.op,
            "overload": self.overload,
            "resolved_op": self.resolved_op,
            "signature": self.signature,
            "inputs": self.inputs,
            "step": self.step,
            "batch": None if self.batch is None else asdict(self.batch),
            "count": self.count,
            "recorded_us": {
                "host": {
                    "median": host.median,
                    "total": host.total,
                    "self_total": host.self_total,
                },
                "device": None
                if device is None
                else {
                    "median": device.median,
                    "total": device.total,
                    "self_total": device.self_total,
                },
            },
            "in_graph": self.in_graph,
            "kernels_recorded": [
                {"name": name, "count": count} for name, count in self.kernels_recorded
            ],
            "kernels_replayed": None
            if self.kernels_replayed is None
            else [{"name": name, "count": count} for name, count in self.kernels_replayed],
            "kernels_us": self.kernels_us,
            "kernel_check": asdict(self.kernel_check),
            "bytes": self.bytes,
            "flops": self.flops,
            "tflops": self.tflops,
            "schemas_rejected": [
                {"schema": schema, "why": why} for schema, why in self.schemas_rejected
            ],
            "status": self.status,
            "reason": self.reason,
            "detail": self.detail,
            "assumptions": list(self.assumptions),
            "recipe": self.recipe,
            "schema": self.schema,
            "outputs": None if self.outputs is None else asdict(self.outputs),
            "ran_on": self.ran_on,
            "point": None
            if self.point is None
            else {"call": self.point.call, "settings": dict(self.point.settings)},
            "timing": None if self.timing is None else self.timing.to_json(),
            "fidelity": None if self.fidelity is None else asdict(self.fidelity),
        }
