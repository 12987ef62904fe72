"""The outcome of a run: rows come in; totals, a results file or a table of values go out."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from opreplay.environment import Environment
from opreplay.report.row import STATUSES, Row
from opreplay.trace.call import REASONS
from opreplay.validation import TimeCheck, check_time

if TYPE_CHECKING:
    import pandas

__all__ = ["FORMAT", "Report", "Share", "share_of"]

FORMAT = "opreplay-results/1"

_CSV_COLUMNS: dict[str, Callable[[Row], object]] = {
    "op": lambda row: row.op,
    "overload": lambda row: row.overload,
    "resolved_op": lambda row: row.resolved_op,
    "signature": lambda row: row.signature,
    "inputs": lambda row: row.inputs,
    "step": lambda row: row.step,
    "point": lambda row: row.point and str(row.point),
    "count": lambda row: row.count,
    "recorded_host_us": lambda row: row.host.median,
    "recorded_host_self_total_us": lambda row: row.host.self_total,
    "recorded_device_us": lambda row: row.device and row.device.median,
    "recorded_device_self_total_us": lambda row: row.device and row.device.self_total,
    "status": lambda row: row.status,
    "reason": lambda row: row.reason,
    "host_ns": lambda row: row.timing and row.timing.host_ns.median,
    "hot_us": lambda row: row.timing and row.timing.hot_us and row.timing.hot_us.median,
    "cold_us": lambda row: row.timing and row.timing.cold_us and row.timing.cold_us.median,
    "kernel_check": lambda row: row.kernel_check.state,
    "recorded_over_hot": lambda row: row.fidelity and row.fidelity.recorded_over_hot,
    "cold_over_hot": lambda row: row.fidelity and row.fidelity.cold_over_hot,
    "at_floor": lambda row: row.timing and row.timing.host_ns.at_floor,
    "bytes": lambda row: row.bytes,
    "gbps": lambda row: row.timing and row.timing.gbps,
    "flops": lambda row: row.flops,
    "tflops": lambda row: row.tflops,
    "schema": lambda row: row.schema,
    "detail": lambda row: row.detail,
    "assumptions": lambda row: " ".join(row.assumptions),
}


@dataclass(frozen=True, slots=True)
class Share:
    """What a part of the rows stands for."""

    signatures: int
    """Number of signatures; rows of one signature in several steps count as one."""
    calls: int
    """Number of recorded calls."""
    host_us: float
    """Recorded host time of the operators themselves, their children's left out [microseconds]."""
    device_us: float
    """Recorded device time of the operators themselves [microseconds]."""

    @property
    def time_and_calls(self) -> tuple[float, float, int]:
        """What shares are ranked by: device time, host time where there is none, calls at last."""
        return self.device_us, self.host_us, self.calls

    def to_json(self) -> dict[str, int | float]:
        """The share in the form that stands in a results file."""
        return {
            "count": self.signatures,
            "calls": self.calls,
            "host_us": self.host_us,
            "device_us": self.device_us,
        }


def share_of(rows: Iterable[Row]) -> Share:
    """Adds rows up, with self times, so that nested operators don't count twice."""
    kept = list(rows)
    return Share(
        signatures=len({row.signature for row in kept}),
        calls=sum(row.count for row in kept),
        host_us=sum(row.host.self_total for row in kept),
        device_us=sum(row.device.self_total for row in kept if row.device is not None),
    )


@dataclass(frozen=True, slots=True)
class Report:
    """The rows of one run, with where and how it ran."""

    rows: tuple[Row, ...]
    """One row for each signature, in the order run."""
    environment: Environment
    """The machine and its software."""
    command: tuple[str, ...]
    """What asked for the run: a command line, or the Python function."""
    recorded_on: tuple[str, ...] = ()
    """Names of the accelerators of the trace, as far as it tells them."""

    def time_check(self, row: Row) -> TimeCheck:
        """Judges the recorded device time of a row, where it is of the same kind of machine."""
        timing = row.timing
        return check_time(
            None if row.device is None else row.device.median,
            timing.hot_us.median if timing and timing.hot_us else None,
            timing.cold_us.median if timing and timing.cold_us else None,
            recorded_on=self.recorded_on,
            device_name=self.environment.device_name,
        )

    def by_status(self) -> dict[str, Share]:
        """Adds the rows up by status; statuses without rows are left out."""
        shares = {s: share_of(row for row in self.rows if row.status == s) for s in STATUSES}
        return {status: share for status, share in shares.items() if share.signatures}

    def by_reason(self) -> dict[str, Share]:
        """Adds the rows that are not ok up by reason, that with most recorded time first."""
        shares = {r: share_of(row for row in self.rows if row.reason == r) for r in REASONS}
        there = [(reason, share) for reason, share in shares.items() if share.signatures]
        return dict(sorted(there, key=lambda entry: entry[1].time_and_calls, reverse=True))

    def to_json(self) -> dict[str, Any]:
        """The run in the form of a results file."""
        whole = share_of(self.rows)
        return {
            "format": FORMAT,
            "environment": self.environment.to_json(),
            "command": list(self.command),
            "recorded_on": list(self.recorded_on),
            "rows": [
                {**row.to_json(), "time_check": asdict(self.time_check(row))} for row in self.rows
            ],
            "totals": {
                "signatures": whole.signatures,
                "calls": whole.calls,
                "host_us": whole.host_us,
                "device_us": whole.device_us,
                "by_status": {key: share.to_json() for key, share in self.by_status().items()},
                "by_reason": {key: share.to_json() for key, share in self.by_reason().items()},
            },
        }

    def write_json(self, path: str | Path) -> None:
        """Writes a results file."""
        Path(path).write_bytes(orjson.dumps(self.to_json(), option=orjson.OPT_INDENT_2) + b"\n")

    def to_pandas(self) -> pandas.DataFrame:
        """Returns one line for each row, with the columns of `write_csv`; None is missing.

        Raises:
            ImportError: pandas is missing.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install 'opreplay[report]'") from error
        return pandas.DataFrame(
            [[value(row) for value in _CSV_COLUMNS.values()] for row in self.rows],
            columns=list(_CSV_COLUMNS),
        )

    def write_csv(self, path: str | Path) -> None:
        """Writes one line for each row, with the medians; a missing value is an empty field."""
        with Path(path).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(_CSV_COLUMNS)
            writer.writerows([value(row) for value in _CSV_COLUMNS.values()] for row in self.rows)
