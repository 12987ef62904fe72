"""Rows on a terminal or in a pipe: a row comes in, a line goes out; the totals come last."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from opreplay.report.results import Report, Share, share_of
from opreplay.report.row import Row

__all__ = ["RowPrinter", "make_console", "print_launch_bound", "print_totals"]

_PIPE_WIDTH = 160
_LEAST_OP_WIDTH = 24
_MOST_OP_WIDTH = 44
_COLUMNS = (
    f"{'count':>7}  {'recorded us':>11}  {'replayed us':>11}  {'cold us':>10}  "
    f"{'rec/rep':>7}  {'cold/rep':>8}   "
)


def make_console(*, stderr: bool = False) -> Console:
    """Returns a console for plain text; a pipe is given lines wide enough for tables."""
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(
            stderr=stderr, markup=False, highlight=False, emoji=False, width=_PIPE_WIDTH
        )
    return console


class RowPrinter:
    """Prints rows as they come, in columns."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        """Takes the measure of the console.

        Args:
            console: Where to print.
            verbose: Whether to print all of each reason and every assumption.
        """
        self._console = console
        self._verbose = verbose
        self._op_width = min(_MOST_OP_WIDTH, max(_LEAST_OP_WIDTH, console.width - 92))

    def print_header(self) -> None:
        """Prints the names of the columns."""
        self._print(f"{'op':<{self._op_width}}{_COLUMNS}status")

    def print_row(self, row: Row) -> None:
        """Prints one row in one line, or several if verbose."""
        status = "ok" if row.reason is None else f"{row.status}: {row.reason}"
        if row.step is not None:
            status += f"  {row.step}"
        if row.point is not None:
            status += f"  {row.point}"
        if row.detail and not self._verbose:
            status += f": {row.detail}"
        self._print(
            f"{_shortened(row.op, self._op_width - 1):<{self._op_width}}{row.count:>7}  "
            f"{_times(row)}   {status}"
        )
        if self._verbose:
            for sentence in (row.detail, *(f"assumed: {text}" for text in row.assumptions)):
                if sentence:
                    self._console.print(f"    {sentence}", soft_wrap=True)

    def _print(self, line: str) -> None:
        # A narrow terminal cuts the reason off; a pipe has room for all of it.
        cut = self._console.is_terminal
        self._console.print(
            line.rstrip(), no_wrap=cut, overflow="ellipsis" if cut else "ignore", crop=cut
        )


def print_totals(report: Report, console: Console) -> None:
    """Prints what the rows stand for, by status and reason, and what to keep in mind."""
    whole = share_of(report.rows)
    if not whole.signatures:
        return
    on_device = whole.device_us > 0
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("")
    for heading in ("signatures", "calls", "host self ms", "host %"):
        table.add_column(heading, justify="right")
    if on_device:
        table.add_column("GPU ms", justify="right")
        table.add_column("GPU %", justify="right")
    shares = {"all": whole, **{s: x for s, x in report.by_status().items() if s == "ok"}}
    for name, share in {**shares, **report.by_reason()}.items():
        table.add_row(name, *_cells(share, whole, on_device=on_device))
    console.print()
    console.print(table)
    _print_notes(report, console)


def print_launch_bound(report: Report, console: Console) -> None:
    """Prints the calls that cost the host more than the device, those that a graph saves most on.

    What it saves is the host's time above the device's, once for each recorded call.
    """
    bound = [
        (row, host_us, row.timing.hot_us.median, row.timing.graph_gain)
        for row in report.rows
        if row.timing is not None and row.timing.hot_us is not None and row.timing.launch_bound
        if (host_us := row.timing.host_ns.median / 1000)
    ]
    console.print()
    if not bound:
        measured = any(row.timing is not None and row.timing.hot_us for row in report.rows)
        console.print(
            "No call is launch-bound." if measured else "Nothing was timed on an accelerator."
        )
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("launch-bound")
    for heading in ("count", "host us", "hot us", "graph gain", "saves ms"):
        table.add_column(heading, justify="right")
    saved = {id(row): row.count * (host_us - hot_us) for row, host_us, hot_us, _ in bound}
    for row, host_us, hot_us, gain in sorted(bound, key=lambda entry: -saved[id(entry[0])]):
        table.add_row(
            _shortened(row.op, _MOST_OP_WIDTH),
            f"{row.count:,}",
            f"{host_us:.2f}",
            f"{hot_us:.2f}",
            f"{gain:.2f}x",
            f"{saved[id(row)] / 1000:.3f}",
        )
    console.print(table)


def _print_notes(report: Report, console: Console) -> None:
    timed = [row for row in report.rows if row.timing is not None]
    at_floor = sum(row.timing.host_ns.at_floor for row in timed if row.timing is not None)
    if at_floor:
        console.print(
            f"~ marks {at_floor} of {len(timed)} times that are less than three times what an "
            "empty operator takes."
        )
    for row in report.rows:
        if row.outputs is not None and not row.outputs.passed:
            console.print(f"{row.op} {row.signature}: {row.outputs.detail}", soft_wrap=True)
    checked = sum(row.outputs is not None for row in report.rows)
    if checked:
        passed = sum(row.outputs is not None and row.outputs.passed for row in report.rows)
        console.print(f"The outputs of {passed} of {checked} rows that were checked are as asked.")
    for sentence in _validation(report):
        console.print(sentence, soft_wrap=True)
    guessed = sum(bool(row.assumptions) for row in report.rows)
    if guessed:
        console.print(f"{guessed} rows rest on assumptions: -v lists them, --strict refuses them.")


def _validation(report: Report) -> list[str]:
    """Says whether the replay stands for the trace, where kernels were recorded."""
    with_kernels = [row for row in report.rows if row.kernels_recorded and row.timing is not None]
    if not with_kernels:
        return []
    kernels = Counter(row.kernel_check.state for row in with_kernels)
    checks = [report.time_check(row) for row in with_kernels]
    times = Counter(check.state for check in checks)
    sentences = []
    if kernels["UNKNOWN"] < len(with_kernels):
        counts = ", ".join(f"{count} {state}" for state, count in kernels.most_common())
        sentences.append(f"Kernels, recorded against replayed: {counts}.")
    if times["UNKNOWN"] < len(with_kernels):
        judged = times["WITHIN"] + times["OUTSIDE"]
        sentences.append(
            f"{times['WITHIN']} of {judged} recorded device times lie between hot / 1.25 and "
            "cold x 1.25."
        )
    else:
        why, _ = Counter(check.why for check in checks).most_common(1)[0]
        sentences.append(f"Recorded device times are not judged: {why}.")
    return sentences


def _cells(share: Share, whole: Share, *, on_device: bool) -> list[str]:
    cells = [
        f"{share.signatures:,}",
        f"{share.calls:,}",
        f"{share.host_us / 1000:,.3f}",
        _percent(share.host_us, whole.host_us),
    ]
    if on_device:
        cells += [f"{share.device_us / 1000:,.3f}", _percent(share.device_us, whole.device_us)]
    return cells


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else ""


def _times(row: Row) -> str:
    """Recorded, replayed and cold time [microseconds], and the ratios to the replayed one."""
    found = row.fidelity
    if found is None:
        return f"{row.host.median:>11.2f}  {'':>11}  {'':>10}  {'':>7}  {'':>8}"
    near_floor = found.of == "host" and row.timing is not None and row.timing.host_ns.at_floor
    replayed = f"{'~' if near_floor else ''}{found.hot_us:.2f}"
    return (
        f"{found.recorded_us:>11.2f}  {replayed:>11}  {_number(found.cold_us):>10}  "
        f"{_number(found.recorded_over_hot):>7}  {_number(found.cold_over_hot):>8}"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _shortened(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 3]}..."
