"""Shows what a trace holds: a trace comes in; tables or a JSON object go out."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from opreplay.report.inputs_text import recorded_inputs
from opreplay.report.reading import read_shown
from opreplay.trace import LEVELS, CallGroup, RecordedArgument, Selection, Trace
from opreplay.trace.breakdown import Breakdown, Cause, RankShare, break_down, rank_shares

__all__ = [
    "add_arguments",
    "add_selection",
    "inspect_command",
    "inspection",
    "print_inspection",
    "selection_of",
]

FORMAT = "opreplay-inspect/1"

TRACE_HELP = "trace file (.json, .json.gz, a pipe, or - for stdin), or a directory of ranks"

_DEFAULT_TOP = 20
_PIPE_WIDTH = 160

_CAUSE_LABELS: dict[Cause, str] = {
    "operators": "operator calls that can be replayed",
    "graph_launches": "graph launches",
    "triton": "Triton kernels of compiled code",
    "compiled_regions": "compiled regions",
    "engine_context": "operators bound to a running engine",
    "collectives": "collectives",
    "autograd": "autograd nodes",
    "ranges": "Python and user ranges",
    "outside_operators": "launches outside operators",
    "no_launch_record": "kernels without a launch record",
}


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose calls; `selection_of` reads them."""
    group = parser.add_argument_group("selection")
    group.add_argument(
        "--op", action="append", default=[], metavar="NAME", help="exact name; repeatable"
    )
    group.add_argument("--match", metavar="REGEX", help="regular expression in the name")
    group.add_argument(
        "--scope", metavar="ANNOTATION", help="annotation around the call: its name or a part of it"
    )
    group.add_argument(
        "--level", choices=LEVELS, default="all", help="place in the nest of operators"
    )
    group.add_argument(
        "--top", type=int, metavar="N", help="the N with the most device time, or host self time"
    )
    group.add_argument("--limit", type=int, metavar="N", help="at most N signatures")


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that names a second trace, of the graph launches."""
    parser.add_argument(
        "--graph-launches", metavar="TRACE",
        help="trace in which the graphs ran that TRACE saw captured: gives their kernels' times",
    )  # fmt: skip


def selection_of(options: argparse.Namespace) -> Selection:
    """Returns what the flags choose."""
    return Selection(
        ops=tuple(options.op),
        match=options.match,
        scope=options.scope,
        level=options.level,
        top=options.top,
        limit=options.limit,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``opreplay inspect``."""
    parser.add_argument("trace", help=TRACE_HELP)
    add_trace(parser)
    parser.add_argument("--json", metavar="FILE", help="write a JSON object (- for stdout)")
    add_selection(parser)


def inspect_command(args: argparse.Namespace) -> int:
    """Runs ``opreplay inspect``; returns the exit status: 2 for an unreadable file or bad use."""
    try:
        trace = read_shown(args.trace, graph_launches=args.graph_launches)
        chosen = selection_of(args)
        if args.top is None and args.json is None:
            chosen = replace(chosen, top=_DEFAULT_TOP)
        groups = trace.groups(chosen)
    except ValueError as error:
        print(f"opreplay inspect: {error}", file=sys.stderr)
        return 2
    if args.json is None:
        print_inspection(trace, groups)
        return 0
    text = json.dumps(inspection(trace, groups), indent=1) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
    else:
        Path(args.json).write_text(text)
    return 0


def inspection(trace: Trace, groups: list[CallGroup]) -> dict[str, Any]:
    """Returns the JSON form of what the trace holds."""
    breakdown = break_down(trace.timeline)
    return {
        "format": FORMAT,
        "trace": trace.path,
        "calls": len(trace),
        "gpu_events": len(trace.timeline.lanes.gpu),
        "threads": _thread_count(trace),
        "ranks": [asdict(share) for share in rank_shares(trace.timeline)],
        "graph_join": None if trace.graph_join is None else asdict(trace.graph_join),
        "host_us": breakdown.host_us,
        "device_us": breakdown.device_us,
        "breakdown": [asdict(share) for share in breakdown.shares],
        "captured_calls": breakdown.captured_calls,
        "missing": list(trace.missing),
        "advice": list(breakdown.advice),
        "groups": [_group_object(group) for group in groups],
    }


def _group_object(group: CallGroup) -> dict[str, Any]:
    call = group.call
    return {
        "op": call.name,
        "signature": group.signature,
        "count": group.count,
        "step": call.step,
        "arguments": None
        if call.arguments is None
        else [_argument_object(a) for a in call.arguments],
        "recorded_us": {
            "host": asdict(group.host),
            "device": None if group.device is None else asdict(group.device),
        },
        "in_graph": group.in_graph,
        "kernels_recorded": [{"name": name, "count": count} for name, count in group.kernels],
        "unrecorded": group.unrecorded,
    }


def _argument_object(argument: RecordedArgument) -> dict[str, Any]:
    """Returns the fields of an argument; those that few traces have, where they do."""
    fields = asdict(argument)
    for name in ("storage", "elements", "contents", "recovered", "true_elements"):
        if fields[name] is None or fields[name] is False:
            del fields[name]
    return fields


def _thread_count(trace: Trace) -> int:
    return len(set(trace.timeline.lanes.op.thread.tolist()))


def print_inspection(
    trace: Trace, groups: list[CallGroup], *, console: Console | None = None
) -> None:
    """Prints where the time went, what is missing, and the chosen groups.

    Args:
        trace: The trace.
        groups: Groups to list.
        console: Where to print; standard output by default.
    """
    console = console or _console()
    breakdown = break_down(trace.timeline)
    console.print(
        f"{trace.path}: {len(trace):,} operator events, "
        f"{len(trace.timeline.lanes.gpu):,} GPU events, threads: {_thread_count(trace)}"
    )
    console.print(_breakdown_table(breakdown))
    if ranks := rank_shares(trace.timeline):
        console.print(_rank_table(ranks))
    for sentence in trace.graph_join.sentences if trace.graph_join else ():
        console.print(sentence)
    if breakdown.captured_calls and not trace.graph_join:
        console.print(
            f"{breakdown.captured_calls:,} of the calls were recorded while a graph was captured: "
            "their kernels ran later, in graph launches."
        )
    for sentence in (*trace.missing, *breakdown.advice):
        console.print(f"Note: {sentence}")
    if groups:
        console.print(_group_table(groups))


def _console() -> Console:
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_PIPE_WIDTH)
    return console


def _breakdown_table(breakdown: Breakdown) -> Table:
    table = Table(title="Where the time went", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for heading in ("count", "host self ms", "host %", "GPU ms", "GPU %", "GPU events"):
        table.add_column(heading, justify="right")
    for share in breakdown.shares:
        table.add_row(
            _CAUSE_LABELS[share.cause],
            f"{share.count:,}",
            _milliseconds(share.host_self_us),
            _percent(share.host_self_us, breakdown.host_us),
            _milliseconds(share.device_us),
            _percent(share.device_us, breakdown.device_us),
            f"{share.kernels:,}",
        )
    return table


def _rank_table(ranks: tuple[RankShare, ...]) -> Table:
    table = Table(title="By rank", title_justify="left", box=None, pad_edge=False)
    table.add_column("rank")
    for heading in ("operator events", "host self ms", "GPU events", "GPU ms"):
        table.add_column(heading, justify="right")
    for share in ranks:
        table.add_row(
            share.rank,
            f"{share.calls:,}",
            _milliseconds(share.host_self_us),
            f"{share.gpu_events:,}",
            _milliseconds(share.device_us),
        )
    return table


def _group_table(groups: list[CallGroup]) -> Table:
    table = Table(title="Recorded calls", title_justify="left", box=None, pad_edge=False)
    table.add_column("operator", overflow="fold")
    for heading in ("count", "host self ms", "GPU ms", "median us"):
        table.add_column(heading, justify="right")
    table.add_column("inputs", overflow="ellipsis", no_wrap=True, max_width=60)
    table.add_column("signature")
    for group in groups:
        times = group.device or group.host
        table.add_row(
            group.call.name,
            f"{group.count:,}",
            _milliseconds(group.host.self_total),
            "" if group.device is None else _milliseconds(group.device.self_total),
            f"{times.median:.1f}",
            recorded_inputs(group.call.arguments),
            group.signature,
        )
    return table


def _milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1000:,.3f}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else ""
