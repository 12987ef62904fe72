"""One row of a report: a recorded call comes in with what became of it, JSON fields go out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from opreplay.stat import Timing
from opreplay.trace.call import Reason, RecordedTimes
from opreplay.trace.steps import Step

__all__ = ["STATUSES", "Row", "Status", "status_of"]

Status = Literal["ok", "failed", "skipped"]

STATUSES: tuple[Status, ...] = ("ok", "failed", "skipped")

_FAILURES: frozenset[Reason] = frozenset({"failed", "crashed", "timed_out", "recipe_failed"})


def status_of(reason: Reason | None) -> Status:
    """Returns the status that goes with a reason."""
    if reason is None:
        return "ok"
    return "failed" if reason in _FAILURES else "skipped"


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
    kernels_us: dict[str, float] | None = None
    """Time of the kernels of one profiled replay, by name [microseconds]; None on the CPU."""

    def __post_init__(self) -> None:
        """Checks that a row has a timing or a reason."""
        if (self.reason is None) != (self.timing is not None):
            raise ValueError(
                f"a row has either a reason or a timing, got {self.reason = }, {self.timing = }"
            )

    @property
    def status(self) -> Status:
        """Whether the call was timed, failed or was left out."""
        return status_of(self.reason)

    def to_json(self) -> dict[str, Any]:
        """The row in the form that stands in a results file."""
        host, device = self.host, self.device
        return {
            "op": self.op,
            "overload": self.overload,
            "resolved_op": self.resolved_op,
            "signature": self.signature,
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
            "kernels_us": self.kernels_us,
            "bytes": self.bytes,
            "schemas_rejected": [
                {"schema": schema, "why": why} for schema, why in self.schemas_rejected
            ],
            "status": self.status,
            "reason": self.reason,
            "detail": self.detail,
            "assumptions": list(self.assumptions),
            "recipe": self.recipe,
            "schema": self.schema,
            "timing": None if self.timing is None else self.timing.to_json(),
        }
