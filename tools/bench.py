"""Norm-backward benchmark: share of the memory limit, launches and error of every provider.

In: shapes, norms, dtypes, providers. Out: tables on stdout, progress on stderr, and in --out
`bench.json` (rewritten after each provider), `report.txt` and one chart per norm and dtype.

The limit is `torch.add(x, dy, out=dx)` on the same tensors; a provider's share is limit / time. Both are
CUDA-graph replays with a cold L2, taken in turns once all providers of a row are captured.
A provider that fails is shown as `err`, with its message in the JSON. With CUDA the work runs in a child
process: when a provider crashes it, hangs, or loses the device, a new process continues with the next one.
Without a GPU, it measures errors at small shapes only. Exit status: 0; 3 if a provider failed and there are
no times; the child's if no new process can continue.
"""

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch._functorch.config as functorch_config
from lab import backward
from lab.arguments import names_of, parse_shapes
from lab.backward import DTYPES, EPS, Captured, Inputs, Setup
from lab.processes import EXIT_TIMEOUT, describe, time_box
from lab.providers import OPTIONS, OURS, PROVIDERS, Absent, usable_options
from lab.report import draw_charts, report_text
from lab.results import Case, Report, Result, Row
from lab.timing import flush_buffer
from torch import Tensor

SHAPES = "4096x4096,8192x4096,32768x4096,32768x768,32768x2048,8192x8192,1000000x256,1048576x128"
EXIT_FAILED, EXIT_DEVICE_LOST = 3, 76
ROOM = 1 / 3  # of the device's memory: with less of it free, a graph is not kept to be timed in turns


# Measuring one row.


def run_provider(
    name: str, case: Case, inputs: Inputs, reference: Sequence[Tensor], setup: Setup, result: Result
) -> Captured | None:
    """Measure one provider, and return the graph that was timed. Exceptions are stored in `result`, not
    raised."""
    started, captured = time.perf_counter(), None
    try:
        torch._dynamo.reset()
        skipped = usable_options(OPTIONS.get(name, {}))[1]
        result.note = f"options unknown to this torch: {skipped}" if skipped else ""
        with fusions_into(result) if name in OURS else contextlib.nullcontext():
            captured = backward.measure(PROVIDERS[name](case), inputs, reference, setup, result)
        result.status = "ok"
    except Absent as error:
        result.status, result.error = "absent", str(error)
    except Exception as error:
        result.status, result.error = "err", f"{type(error).__name__}: {error}"[:2000]
        result.note = "".join(traceback.format_exception(error)[-3:])[-2000:]
    result.seconds = round(time.perf_counter() - started, 1)
    return captured


@contextlib.contextmanager
def fusions_into(result: Result) -> Iterator[None]:
    """Record what mixorder fuses inside: each region's strategy and schedule, and the gain from tuning."""
    from mixorder.report import RegionRecord, collect

    with collect() as records:
        yield
    fused = [r for r in records if isinstance(r, RegionRecord)]
    for one in fused:
        lines = (one.strategy, *str(one.schedule).splitlines(), one.tuning or "not tuned")
        result.note += f" {one.name}: {', '.join(map(str, lines))};"
    result.note += "".join(f" declined: {r}" for r in records if r not in fused)


def run_row(row: Row, args: argparse.Namespace, setup: Setup, report: Report, path: Path) -> None:
    """Measure the providers of a row that have no result yet; saves before and after each one."""
    inputs = backward.make_inputs(row.case, setup.device)
    reference = backward.reference_gradients(inputs)
    kept: dict[str, Captured] = {}
    if "limit" in args.providers and (limit := backward.limit(inputs, setup)):
        kept["limit"] = limit
        row.limit_medians.append(setup.times(kept)["limit"].median_us)
    for name in args.providers:
        if name == "limit" or name in row.results or report.older_than(args.deadline):
            continue
        result = row.results[name] = Result()
        report.save(path)
        what = f"{row.case.shape} {row.case.norm} {row.case.dtype} {name}"
        with time_box(args.time_box, what) if args.worker else contextlib.nullcontext():
            captured = run_provider(name, row.case, inputs, reference, setup, result)
            report.save(path)
            if args.worker and not setup.works():
                print(f"{what}: {result.reason}; device lost", file=sys.stderr, flush=True)
                os._exit(EXIT_DEVICE_LOST)
            if captured and result.status == "ok" and _room():
                kept[name] = captured
            del captured
            gc.collect()
        outcome = f"{result.us:.1f} us" if result.us else result.reason or "ok"
        done = f"[{report.finished()}/{args.total}]"
        print(f"{done} {what} {result.seconds:.1f}s {outcome}", file=sys.stderr, flush=True)
    if "limit" in kept:
        take_turns(row, kept, setup)
    report.save(path)


def _room() -> bool:
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return free > ROOM * total


def take_turns(row: Row, kept: dict[str, Captured], setup: Setup) -> None:
    """Time the kept graphs, including the limit's, in turns; these times replace those measured alone."""
    times = setup.times(kept)
    row.limit_medians[-1:] = times.pop("limit").halves()
    for name, taken in times.items():
        row.results[name].alone_us = row.results[name].us
        row.results[name].take(taken.samples)


# Command line and processes.


def parse_targets(text: str) -> dict[str, dict[str, float]]:
    """A JSON file, or JSON itself: {"rms": {"4096x4096": 78}, "layer": {...}} in percent."""
    try:
        return json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"targets {text!r}: {error}") from error


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; on the CPU the defaults are small shapes and two providers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    every = ("limit", *PROVIDERS)
    parser.add_argument("--shapes", type=parse_shapes, help=f"default {SHAPES}; 64x96 on the CPU")
    parser.add_argument("--norm", type=names_of(list(EPS)), default=list(EPS))
    parser.add_argument("--dtype", type=names_of(list(DTYPES)), default=["bf16"])
    parser.add_argument("--weight-dtype", choices=DTYPES, help="default: that of x")
    parser.add_argument("--residual", action="store_true", help="dx plus an incoming gradient of x")
    parser.add_argument("--providers", type=names_of(every), help=f"some of {', '.join(every)}")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/bench")))
    parser.add_argument("--cpu-smoke", action="store_true", help="errors on the CPU, no times")
    parser.add_argument("--targets", type=parse_targets, default={}, help="JSON file or inline")
    parser.add_argument("--time-box", type=float, default=120, help="seconds a provider may take")
    parser.add_argument("--deadline", type=float, help="start no provider after so many seconds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.cpu_smoke |= not torch.cuda.is_available()
    args.timed = not args.cpu_smoke
    args.shapes = args.shapes or parse_shapes("64x96" if args.cpu_smoke else SHAPES)
    usual = [name for name in every if name != "mixorder_tuned"]
    args.providers = args.providers or (["eager", "stock"] if args.cpu_smoke else usual)
    args.cases = [
        Case(norm, dtype, args.weight_dtype or dtype, *shape, args.residual)
        for dtype in args.dtype
        for norm in args.norm
        for shape in args.shapes
    ]
    args.total = len(args.cases) * len([name for name in args.providers if name != "limit"])
    return args


def work(args: argparse.Namespace) -> int:
    """Measure what `bench.json` lacks, then write the report. Returns the exit status."""
    path = args.out / "bench.json"
    report = Report.load(path) if path.exists() else Report(describe(args.cpu_smoke))
    setup = Setup("cpu")
    if args.timed:
        setup = Setup("cuda", torch.cuda.Stream(), flush_buffer())
    for case in args.cases:
        row = report.row(case)
        missing = set(args.providers) - {"limit"} - set(row.results)
        wanted = missing or (args.timed and "limit" in args.providers and not row.limit_medians)
        if not wanted or report.older_than(args.deadline):
            continue
        try:
            with functorch_config.patch(donated_buffer=False):  # they forbid retain_graph
                run_row(row, args, setup, report, path)
        except Exception as error:  # inputs, reference or limit: skip this row only
            text = f"{type(error).__name__}: {error}"[:2000]
            row.results.update({n: Result("err", text) for n in missing - set(row.results)})
            report.save(path)
            if args.worker and not setup.works():
                os._exit(EXIT_DEVICE_LOST)
    report.meta["complete"] = True
    report.save(path)
    publish(report, args)
    failed = any(r.status == "err" for row in report.rows for r in row.results.values())
    return EXIT_FAILED if failed and not args.timed else 0


def publish(report: Report, args: argparse.Namespace) -> None:
    """Print the report and write its files."""
    text = report_text(report, args)
    (args.out / "report.txt").write_text(text + "\n")
    print(text, flush=True)
    try:
        draw_charts(report, args.out)
    except Exception as error:  # a chart is no reason to fail after the measurement
        print(f"no chart: {error}", file=sys.stderr)


def supervise(argv: Sequence[str], args: argparse.Namespace) -> int:
    """Run workers until one ends by itself or makes no progress; returns its exit status. In the
    second case this process writes the report of the results so far.
    """
    reasons = {EXIT_TIMEOUT: "took longer than --time-box", EXIT_DEVICE_LOST: "lost the device"}
    path, finished = args.out / "bench.json", 0
    with tempfile.TemporaryDirectory(prefix="mixorder-bench-", ignore_cleanup_errors=True) as cache:
        env = {
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TORCHINDUCTOR_COMPILE_THREADS": str(min(8, os.cpu_count() or 1)),
            **os.environ,
        }
        for name in ("MIXORDER", "TORCHINDUCTOR_MIX_ORDER_REDUCTION"):
            env.pop(name, None)  # it would change `stock`
        while True:
            command = [sys.executable, str(Path(__file__).resolve()), *argv, "--worker"]
            status = subprocess.call(command, env=env)
            if status in (0, EXIT_FAILED) or not path.exists():
                return status
            report = Report.load(path)
            report.close_running(reasons.get(status, f"ended its process with status {status}"))
            report.save(path)
            before, finished = finished, report.finished()
            if finished == before or report.meta.get("complete"):
                publish(report, args)
                return status


def main(argv: Sequence[str]) -> int:
    args = parse_args(argv)
    if args.worker:
        return work(args)
    (args.out / "bench.json").unlink(missing_ok=True)
    return work(args) if args.cpu_smoke else supervise(argv, args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
