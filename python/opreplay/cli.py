"""The command line: arguments come in, an exit status goes out; the work is done elsewhere."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from opreplay import comparison_command, table_command
from opreplay.arguments import share, tolerances, writable
from opreplay.isolation import WorkerError
from opreplay.options import OutputChecks, ReplayOptions
from opreplay.plan import Plan, PlannedCall, PlannedOperator
from opreplay.plan_file import is_plan, read_plan, write_plan
from opreplay.replay import Pool, Replay, key_of, make_plan, start_on_devices, start_worker
from opreplay.report import inspect as inspecting
from opreplay.report.html import write_html
from opreplay.report.reading import read_shown
from opreplay.report.results import Report
from opreplay.report.results_file import read_results
from opreplay.report.row import Row, RowKey
from opreplay.report.row_log import RowLog
from opreplay.report.show import show_calls
from opreplay.report.terminal import RowPrinter, make_console, print_launch_bound, print_totals
from opreplay.sharing import read_shard
from opreplay.stat import TimingOptions
from opreplay.trace import STEPS, Selection, Trace

__all__ = ["main"]

_FAILED = 1
_BAD_USE = 2
_INTERRUPTED = 130
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0 when done, 1 for failures under --strict, 2 for bad use."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _configure_logging(verbose=getattr(options, "verbose", False))
    if getattr(options, "imports", None) or getattr(options, "replace", None):
        sys.path.append(str(Path.cwd()))  # last: what the user names may come from here
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (ValueError, ImportError, OSError, WorkerError) as error:
        print(f"opreplay {options.name}: {_one_line(error)}", file=sys.stderr)
        return _BAD_USE


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _configure_logging(*, verbose: bool) -> None:
    # Each assumption stands on its row; as log lines they would drown the rows.
    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR,
        format="%(levelname)s %(name)s: %(message)s",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="opreplay",
        description="Replays operator calls out of PyTorch profiler traces and times them.",
    )
    parser.add_argument(
        "--cmake-dir", action=_PrintCmakeDir, nargs=0,
        help="print the folder of the CMake package opreplay, and end",
    )  # fmt: skip
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.set_defaults(command=run, name=name)
        return command

    demo = add("demo", _demo, "record a small decode step here, replay it and print the table")
    demo.add_argument("-o", "--output", metavar="FILE", help="keep the trace (.json or .json.gz)")
    demo.add_argument("--device", metavar="DEV", help="default: the accelerator, else cpu")

    inspect = add("inspect", inspecting.inspect_command, "show where the time of a trace went")
    inspecting.add_arguments(inspect)

    show = add("show", _show, "show what recorded calls mean once resolved")
    show.add_argument("trace", help=inspecting.TRACE_HELP)
    inspecting.add_trace(show)
    inspecting.add_selection(show)
    _add_resolving(show)
    show.add_argument("--device", metavar="DEV", help="default: the accelerator, else cpu")

    plan = add("plan", _plan, "write the portable form of a trace's calls")
    plan.add_argument("trace", help=inspecting.TRACE_HELP)
    inspecting.add_trace(plan)
    plan.add_argument("-o", "--output", metavar="FILE", required=True, help="plan file to write")
    inspecting.add_selection(plan)
    _add_steps(plan)
    _add_recipe_parameters(plan)
    _add_resolving(plan)
    _add_running(plan)

    bundle = add("bundle", _bundle, "write calls of a plan for C++ programs without Python")
    bundle.add_argument("plan", metavar="PLAN", help="plan file, as 'opreplay plan' writes it")
    bundle.add_argument(
        *("-o", "--output"), type=writable, metavar="FILE", required=True, help="file to write"
    )
    inspecting.add_selection(bundle)
    _add_steps(bundle)
    _add_recipe_parameters(bundle)
    _add_importing(bundle)
    _add_inputs(bundle)
    bundle.add_argument("--grad", action="store_true", help="record autograd when it is run")
    bundle.add_argument("-v", "--verbose", action="store_true", help="print every call left out")

    script = add("script", _script, "write a file that runs one call of a plan by itself")
    script.add_argument("plan", metavar="PLAN", help="plan file, as 'opreplay plan' writes it")
    script.add_argument(
        "--call", type=_count, metavar="N", help="the N-th of the chosen calls, where they are many"
    )
    script.add_argument(
        "--lang", choices=("cpp", "python"), required=True, help="language of the file"
    )
    script.add_argument(
        *("-o", "--output"), type=writable, metavar="FILE", help="file to write (default: stdout)"
    )
    inspecting.add_selection(script)
    _add_recipe_parameters(script)
    _add_importing(script)
    _add_inputs(script)
    script.set_defaults(steps=None)

    run = add("run", _run, "replay and time the calls of a trace or plan")
    run.add_argument("source", metavar="TRACE|PLAN", help=f"{inspecting.TRACE_HELP}, or a plan")
    inspecting.add_trace(run)
    inspecting.add_selection(run)
    _add_steps(run)
    _add_recipe_parameters(run)
    _add_resolving(run)
    _add_running(run)
    _add_measuring(run)
    _add_results(run)
    _add_output_checks(run)
    _add_long_run(run)

    compare = add("compare", comparison_command.compare_command, "compare two results files")
    comparison_command.add_compare_arguments(compare)

    ab = add("ab", _ab, "time two environments, or a kernel of yours against the recorded, in turn")
    ab.add_argument("source", metavar="PLAN|TRACE", help="a plan file, or a trace")
    comparison_command.add_ab_arguments(ab)
    inspecting.add_selection(ab)
    _add_steps(ab)
    _add_recipe_parameters(ab)
    _add_resolving(ab)
    _add_running(ab)
    _add_measuring(ab)
    ab.set_defaults(time=0.02, relative_error=0.001, raw=False, strict=False, stop_on_error=False)

    sweep = add("sweep", _sweep, "run a call with other sizes, lengths or recipe parameters")
    sweep.add_argument("source", metavar="PLAN|TRACE", help="a plan file, or a trace")
    sweep.add_argument(
        "--set", dest="settings", type=_sweep_setting, action="append", required=True,
        metavar="NAME=VALUE,VALUE",
        help="symbol of the recipe (num_seqs=1,8), its parameter (moe.distribution=uniform,zipf), "
        "or dims (self.0=64,8k; self.1+mat2.0=64,128); repeatable, every combination is run",
    )  # fmt: skip
    sweep.add_argument(
        "--call", type=_count, metavar="N", help="the N-th of the chosen calls (default: all)"
    )
    inspecting.add_trace(sweep)
    inspecting.add_selection(sweep)
    _add_recipe_parameters(sweep)
    _add_resolving(sweep)
    _add_running(sweep)
    _add_measuring(sweep)
    _add_results(sweep)
    _add_long_run(sweep)
    sweep.set_defaults(steps=None)

    again = add("report", _report, "show a saved run again, or write it in another form")
    again.add_argument("results", help="file that --json or --jsonl has written")
    again.add_argument("--html", type=writable, metavar="FILE", help="page with table and charts")
    again.add_argument("--csv", type=writable, metavar="FILE", help="table of medians")
    again.add_argument("-v", "--verbose", action="store_true", help="print every assumption")

    tables = add("tables", table_command.main, "build a block table or a MoE routing table")
    table_command.add_arguments(tables)

    add("recipes", _recipes, "list the recipes, their operators and parameters")

    env = add("env", _env, "print the environment block that every result carries")
    env.add_argument("--device", metavar="DEV", help="default: the accelerator, else cpu")
    return parser


class _PrintCmakeDir(argparse.Action):
    """Prints where find_package(opreplay) looks: beside the extension, wherever that lies."""

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        specification = importlib.util.find_spec("opreplay._scan")
        assert specification is not None
        assert specification.origin is not None
        print(Path(specification.origin).parent / "lib" / "cmake" / "opreplay")
        parser.exit()


def _add_resolving(parser: argparse.ArgumentParser) -> None:
    group = _add_importing(parser)
    group.add_argument(
        "--allow-mismatch", action="store_true",
        help="call an operator of which no schema fits from Python, all arguments positional",
    )  # fmt: skip


def _add_importing(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("resolving")
    group.add_argument(
        *("--import", "-i"), dest="imports", action="append", default=[], metavar="MODULE",
        help="import it first, because it registers operators; repeatable",
    )  # fmt: skip
    return group


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inputs")
    group.add_argument("--seed", type=int, default=0, help="of all inputs (default: 0)")
    group.add_argument(
        "--memory-budget", type=_bytes, metavar="SIZE",
        help="for the tensors of one call, e.g. 8GiB (default: 80 %% of what is free)",
    )  # fmt: skip


def _add_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument(
        "--timeout", type=_positive, default=60.0, metavar="SECONDS",
        help="limit for one call (default: 60)",
    )  # fmt: skip
    group.add_argument(
        "--no-isolation", action="store_true", help="run in this process: a crash ends everything"
    )
    group.add_argument("-v", "--verbose", action="store_true", help="print every assumption")


def _add_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", choices=STEPS,
        help="where inputs depend on the engine's step: the step of median time for each phase, or "
        "every one (default: median)",
    )  # fmt: skip


def _add_recipe_parameters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recipe", type=_setting, action="append", default=[], metavar="NAME=VALUE",
        help="parameter of a recipe, as 'opreplay recipes' lists them; repeatable",
    )  # fmt: skip


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    _add_inputs(parser)
    group = parser.add_argument_group("measuring")
    group.add_argument("--device", metavar="DEV", help="default: the accelerator, else cpu")
    group.add_argument(
        "--time", type=_positive, default=TimingOptions().time_s, metavar="SECONDS",
        help="limit for warm-up and samples of one call (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--relative-error", type=share, metavar="SHARE",
        default=TimingOptions().relative_error,
        help="stop once the 95 %% interval of the median is this narrow on either side, relative "
        "to it (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--threads", type=_count, metavar="N", help="threads that an operator may use"
    )
    group.add_argument("--grad", action="store_true", help="record autograd")
    group.add_argument(
        "--warmup-ms", type=_positive, metavar="MS",
        help="call it for this long before the first sample (default: 200 on an accelerator)",
    )  # fmt: skip
    group.add_argument(
        "--cold", choices=("all", "weights", "off"), default="all",
        help="which inputs are out of cache in the cold time (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--sequence", action="store_true",
        help="time the chosen calls together, in recorded order, in one graph: one row",
    )  # fmt: skip
    group.add_argument(
        "--profile-once", action="store_true",
        help="time nothing; make one warmed call inside a range, for ncu, nsys or rocprof",
    )  # fmt: skip


def _add_results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument("--json", type=writable, metavar="FILE", help="write the results")
    group.add_argument(
        "--html", type=writable, metavar="FILE", help="write a page with table and charts"
    )
    group.add_argument("--csv", type=writable, metavar="FILE", help="write a table of medians")
    group.add_argument(
        "--raw", action="store_true", help="keep the samples in the JSON, at most 1,000 each"
    )
    group.add_argument(
        "--strict", action="store_true", help="take assumptions for failures; exit 1 on failures"
    )
    group.add_argument(
        "--sort", choices=("launch-bound",),
        help="end with the calls that a graph would speed up, those that save most first",
    )  # fmt: skip
    group.add_argument("--stop-on-error", action="store_true", help="end after the first failure")


def _add_output_checks(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("outputs", "any of these looks at them; exit 1 if one fails")
    group.add_argument(
        "--check-outputs", action="store_true",
        help="ask that they are finite, and equal in a second run with the same seed",
    )  # fmt: skip
    group.add_argument("--save-outputs", metavar="DIR", help="write them, a file for each call")
    group.add_argument("--reference", metavar="DIR", help="compare with outputs that were saved")
    group.add_argument(
        "--check", type=tolerances, metavar="RTOL,ATOL",
        help="what they may differ by (default: torch.testing's for each dtype)",
    )  # fmt: skip


def _output_checks(options: argparse.Namespace) -> OutputChecks | None:
    if options.reference is not None and not Path(options.reference).is_dir():
        raise ValueError(f"{options.reference}: there is no directory of saved outputs")
    if options.save_outputs is not None:
        Path(options.save_outputs).mkdir(parents=True, exist_ok=True)
    if not (options.check_outputs or options.save_outputs or options.reference):
        return None
    return OutputChecks(
        save=options.save_outputs, reference=options.reference, tolerance=options.check
    )


def _add_long_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("long runs, many devices")
    group.add_argument(
        "--jsonl", type=writable, metavar="FILE", help="add each row to this file as it finishes"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on with the --jsonl file of a run that was ended"
    )
    group.add_argument(
        "--shard", type=_shard, metavar="I/N", help="run the I-th of N parts of the calls"
    )
    group.add_argument(
        "--devices", type=_listed, metavar="DEV,DEV|all",
        help="share the calls out among these devices, each with a worker of its own",
    )  # fmt: skip
    group.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS",
        help="share the calls out over a Ray cluster (default: the one that runs here)",
    )  # fmt: skip
    group.add_argument("--gpu-type", metavar="TYPE", help="GPUs of the cluster to use, as H100")


def _shard(text: str) -> tuple[int, int]:
    try:
        return read_shard(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _sweep_setting(text: str) -> tuple[str, tuple[str, ...]]:
    from opreplay.sweep import read_setting

    try:
        return read_setting(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"must be more than 0, got {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 800MB or 8GiB, got {text}")
    return int(float(match[1]) * (1 << _UNITS[match[2]]))


def _selection(options: argparse.Namespace) -> Selection:
    return replace(inspecting.selection_of(options), steps=options.steps or "median")


def _reader(options: argparse.Namespace) -> Callable[[str], Trace]:
    return functools.partial(read_shown, graph_launches=options.graph_launches)


def _replay_options(options: argparse.Namespace) -> ReplayOptions:
    return ReplayOptions(
        device=options.device,
        seed=options.seed,
        memory_budget=options.memory_budget,
        recipe_parameters=dict(options.recipe),
        timing=TimingOptions(
            time_s=options.time,
            relative_error=options.relative_error,
            grad=options.grad,
            raw=options.raw,
            cold=options.cold != "off",
            cold_arguments="weights" if options.cold == "weights" else "all",
            warmup_ms=options.warmup_ms,
            profile_once=options.profile_once,
        ),
        threads=options.threads,
        imports=tuple(options.imports),
        allow_mismatch=options.allow_mismatch,
        strict=options.strict,
        sequence=options.sequence,
        stop_on_error=options.stop_on_error,
        isolation=not options.no_isolation,
        timeout_s=options.timeout,
    )


def _recipes(options: argparse.Namespace) -> int:
    from opreplay.recipes import list_recipes

    for one in list_recipes():
        print(f"{one.name} ({one.origin}): {', '.join(one.ops)}")
        for parameter in one.parameters:
            choices = f"; one of {', '.join(parameter.choices)}" if parameter.choices else ""
            print(f"    {parameter.name}={parameter.default} [{parameter.unit}{choices}]")
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.steps is not None and is_plan(options.source):
        raise ValueError(
            f"{options.source}: --steps is chosen when a plan is written: "
            f"opreplay plan TRACE --steps {options.steps} -o {options.source}"
        )
    if options.graph_launches is not None and is_plan(options.source):
        raise ValueError(f"{options.source}: is a plan; --graph-launches goes with a trace")
    replay_options = replace(_replay_options(options), outputs=_output_checks(options))
    return _replay_all(options, options.source, _selection(options), replay_options)


def _replay_all(
    options: argparse.Namespace,
    source: str | Plan,
    selection: Selection | None,
    replay_options: ReplayOptions,
) -> int:
    """Replays the calls of a source where and as the flags say; returns the exit status."""
    if options.resume and options.jsonl is None:
        raise ValueError("--resume goes on with the rows of a file: name it with --jsonl FILE")
    if options.device is not None and options.devices:
        raise ValueError("--device and --devices are one too many: leave one of them out")
    if options.ray is not None and options.devices:
        raise ValueError("--ray chooses the devices: leave --devices out")
    with ExitStack() as stack:
        log = None
        if options.jsonl is not None:
            log = stack.enter_context(RowLog(options.jsonl, resume=options.resume))
        run = Replay(
            source,
            selection,
            options=replay_options,
            shard=options.shard,
            read=_reader(options),
            start=_starter(options),
        )
        stack.enter_context(closing(run))
        report, interrupted = _replay(run, log, verbose=options.verbose)
    return _conclude(report, options, interrupted=interrupted)


def _conclude(report: Report, options: argparse.Namespace, *, interrupted: bool) -> int:
    """Writes what the flags ask for; returns the exit status."""
    if options.sort:
        print_launch_bound(report, make_console())
    if options.json is not None:
        report.write_json(options.json)
    if options.csv is not None:
        report.write_csv(options.csv)
    if options.html is not None:
        write_html(report.to_json(), options.html)
    if interrupted:
        return _INTERRUPTED
    failed = options.strict and any(row.status == "failed" for row in report.rows)
    wrong = any(row.outputs is not None and not row.outputs.passed for row in report.rows)
    return _FAILED if failed or wrong else 0


def _starter(options: argparse.Namespace) -> Callable[[ReplayOptions], Pool]:
    if options.ray is not None:
        from opreplay.cluster import Cluster

        return functools.partial(Cluster, address=options.ray or None, gpu_type=options.gpu_type)
    if options.devices:
        return functools.partial(start_on_devices, devices=options.devices)
    return start_worker


def _sweep(options: argparse.Namespace) -> int:
    from opreplay.sweep import sweep

    replay_options, selection = _replay_options(options), _selection(options)
    for name, _ in options.settings:
        if name in replay_options.recipe_parameters:
            raise ValueError(f"{name} is set by --set and by --recipe: leave one of them out")
    if is_plan(options.source):
        if options.graph_launches is not None:
            raise ValueError(f"{options.source}: is a plan; --graph-launches goes with a trace")
        calls = read_plan(options.source).select(selection)
    else:
        plan = make_plan(options.source, selection, options=replay_options, read=_reader(options))
        calls = list(plan.calls)
    if options.call is not None:
        calls = _nth(calls, options.call)
    for module in options.imports:
        importlib.import_module(module)  # it may register recipes
    return _replay_all(options, sweep(calls, options.settings), None, replay_options)


def _report(options: argparse.Namespace) -> int:
    report = read_results(options.results)
    console = make_console()
    printer = RowPrinter(console, verbose=options.verbose)
    printer.print_header()
    for row in report.rows:
        printer.print_row(row)
    print_totals(report, console)
    if options.csv is not None:
        report.write_csv(options.csv)
    if options.html is not None:
        write_html(report.to_json(), options.html)
    return 0


def _ab(options: argparse.Namespace) -> int:
    return comparison_command.ab_command(options, _selection(options), _replay_options(options))


def _replay(run: Replay, log: RowLog | None, *, verbose: bool) -> tuple[Report, bool]:
    """Runs with rows printed as they come; returns the report and whether Ctrl-C ended the run."""
    console = make_console()
    interrupted = False
    for note in run.notes:
        console.print(f"Note: {note}", soft_wrap=True)
    if not run.calls:
        console.print(f"{run.name}: nothing to replay: no operator call is left to choose.")
    environment = run.environment
    command = ("opreplay", *sys.argv[1:])
    rows: dict[RowKey, Row] = {}
    if log is not None:
        log.begin(environment, command, run.settings)
        rows = {row.key: row for row in log.rows}
        if rows:
            console.print(f"{log.path}: {len(rows):,} rows are there already.")
    try:
        _print_rows(run, rows, log, console, verbose=verbose)
    except KeyboardInterrupt:
        interrupted = True
    report = Report(_in_order(rows, run), environment, command, run.recorded_on)
    print_totals(report, console)
    if interrupted:
        console.print(f"Interrupted after {len(rows):,} of {len(run.calls):,} signatures.")
    return report, interrupted


def _in_order(rows: dict[RowKey, Row], run: Replay) -> tuple[Row, ...]:
    """Rows in the order of the calls; those of other shards in the same file come last."""
    keys = [key for key in map(key_of, run.calls) if key in rows]
    return tuple(rows[key] for key in dict.fromkeys([*keys, *rows]))


def _print_rows(
    run: Replay,
    rows: dict[RowKey, Row],
    log: RowLog | None,
    console: Console,
    *,
    verbose: bool,
) -> None:
    printer = RowPrinter(console, verbose=verbose)
    if run.calls:
        printer.print_header()
    columns = (TextColumn("Replaying"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("replay", total=len(run.calls))
        progress.advance(task, sum(key_of(call) in rows for call in run.calls))
        keep = {} if log is None else {"keep": log.append}
        for row in run.rows(done=rows.keys(), **keep):
            rows[row.key] = row
            printer.print_row(row)
            progress.advance(task)


def _demo(options: argparse.Namespace) -> int:
    from opreplay.demo import recorded_step

    # What runs inside another operator is part of that one's row already.
    chosen = Selection(level="outermost")
    with recorded_step(options.output, device=options.device) as trace:
        run = Replay(str(trace), chosen, options=ReplayOptions(device=options.device))
        with closing(run):
            _, interrupted = _replay(run, None, verbose=False)
    return _INTERRUPTED if interrupted else 0


def _show(options: argparse.Namespace) -> int:
    from opreplay.environment import default_device
    from opreplay.resolve import Resolver

    groups = _reader(options)(options.trace).groups(inspecting.selection_of(options))
    if not groups:
        raise ValueError(f"{options.trace}: no operator call is left to choose")
    resolver = Resolver(
        imports=options.imports,
        allow_mismatch=options.allow_mismatch,
        device=options.device or default_device(),
    )
    show_calls(groups, resolver, make_console())
    return 0


def _plan(options: argparse.Namespace) -> int:
    if is_plan(options.trace):
        raise ValueError(f"{options.trace}: is a plan already; pass a trace")
    output = writable(options.output)
    plan = make_plan(
        options.trace,
        _selection(options),
        options=ReplayOptions(
            recipe_parameters=dict(options.recipe),
            imports=tuple(options.imports),
            allow_mismatch=options.allow_mismatch,
            isolation=not options.no_isolation,
            timeout_s=options.timeout,
        ),
        read=_reader(options),
    )
    write_plan(plan, output)
    runnable = sum(isinstance(call.outcome, PlannedOperator) for call in plan.calls)
    print(f"{output}: {runnable:,} of {len(plan.calls):,} signatures can run without the trace")
    return 0


def _bundle(options: argparse.Namespace) -> int:
    from opreplay.bundle import write_bundle

    calls = _planned_calls(options)
    describing = replace(_describing(options), timing=TimingOptions(grad=options.grad))
    report = write_bundle(calls, options.output, options=describing)
    for warning in report.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    for call, why in report.left_out if options.verbose else ():
        print(f"left out: {call.op}: {why}")
    print(f"{options.output}: {report.written:,} of {len(calls):,} signatures are in the bundle")
    return 0


def _script(options: argparse.Namespace) -> int:
    from opreplay.script import make_script

    calls = _planned_calls(options)
    if options.call is None and len(calls) != 1:
        raise ValueError(
            f"{options.plan}: {len(calls)} calls are chosen, a script runs one: add --call N"
        )
    (call,) = _nth(calls, options.call or 1)
    text = make_script(call, options.lang, options=_describing(options))
    if options.output is None:
        sys.stdout.write(text)
    else:
        Path(options.output).write_text(text)
        print(f"{options.output}: runs {call.op}; the lines at its top say how")
    return 0


def _planned_calls(options: argparse.Namespace) -> list[PlannedCall]:
    if not is_plan(options.plan):
        raise ValueError(f"{options.plan}: is no plan; write one with: opreplay plan TRACE -o PLAN")
    return read_plan(options.plan).select(_selection(options))


def _nth(calls: list[PlannedCall], number: int) -> list[PlannedCall]:
    if number > len(calls):
        raise ValueError(f"--call {number}: {len(calls)} calls of the source are chosen")
    return [calls[number - 1]]


def _describing(options: argparse.Namespace) -> ReplayOptions:
    """What chooses the inputs of calls that another program runs."""
    return ReplayOptions(
        seed=options.seed,
        memory_budget=options.memory_budget,
        recipe_parameters=dict(options.recipe),
        imports=tuple(options.imports),
    )


def _env(options: argparse.Namespace) -> int:
    from opreplay.environment import describe_environment, usable_device

    environment = describe_environment(usable_device(options.device))
    print(orjson.dumps(environment.to_json(), option=orjson.OPT_INDENT_2).decode())
    return 0
