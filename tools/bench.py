"""Norm-backward benchmark: share of the memory limit, launches and error of every provider.

In: shapes, norms, dtypes, providers. Out: tables on stdout, progress on stderr, and in --out
`bench.json` (rewritten after each provider), `report.txt` and one chart per norm and dtype.

The limit is `torch.add(x, dy, out=dx)` on the same tensors; a provider's share is limit / time. Both are
CUDA-graph replays with a cold L2, taken in turns once all providers of a row are captured.
A provider that fails gets `err`, and its text in the JSON. With CUDA the work runs in a child
process: when a provider crashes it, hangs, or loses the device, a new one goes on with the next.
Exit status: 0; 3 if a provider failed and no times were asked for; the child's if it cannot go on.
"""

import argparse
import contextlib
import gc
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch_config
from lab import backward
from lab.backward import DTYPES, EPS, EXIT_TIMEOUT, Captured, Inputs, Lab, Limit
from lab.providers import OPTIONS, OURS, PROVIDERS, Absent, usable_options
from lab.results import Case, Report, Result, Row
from torch import Tensor

SHAPES = "4096x4096,8192x4096,32768x4096,32768x768,32768x2048,8192x8192,1000000x256,1048576x128"
EXIT_FAILED, EXIT_DEVICE_LOST = 3, 76
ROOM = 1 / 3  # of the device's memory: with less of it free, a graph is not kept for its turns


# Measuring one row.


def run_provider(
    name: str, case: Case, inputs: Inputs, reference: Sequence[Tensor], lab: Lab, result: Result
) -> Captured | None:
    """Measure one provider, and give the graph that was timed; any exception ends in `result`, never in
    the caller."""
    started, captured = time.perf_counter(), None
    try:
        torch._dynamo.reset()
        skipped = usable_options(OPTIONS.get(name, {}))[1]
        result.note = f"options unknown to this torch: {skipped}" if skipped else ""
        with fusions_into(result) if name in OURS else contextlib.nullcontext():
            captured = backward.measure(PROVIDERS[name](case), inputs, reference, lab, result)
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
    """Note what mixorder makes meanwhile: each region's strategy and schedule, and what tuning gained."""
    from mixorder.report import RegionRecord, collect

    with collect() as records:
        yield
    fused = [r for r in records if isinstance(r, RegionRecord)]
    for one in fused:
        lines = (one.strategy, *str(one.schedule).splitlines(), one.tuning or "not tuned")
        result.note += f" {one.name}: {', '.join(map(str, lines))};"
    result.note += "".join(f" declined: {r}" for r in records if r not in fused)


def run_row(row: Row, args: argparse.Namespace, lab: Lab, report: Report, path: Path) -> None:
    """Measure the providers of a row that have no result yet; saves around each one."""
    inputs = backward.make_inputs(row.case, lab.device)
    reference = backward.reference_gradients(inputs)
    limit = Limit(inputs, lab) if "limit" in args.providers else None
    alone = limit.median_us() if limit else None
    row.limit_medians += [alone] if alone else []
    kept: dict[str, Captured] = {}
    for name in args.providers:
        if name == "limit" or name in row.results or report.older_than(args.deadline):
            continue
        result = row.results[name] = Result()
        report.save(path)
        what = f"{row.case.shape} {row.case.norm} {row.case.dtype} {name}"
        with backward.time_box(args.time_box, what) if args.worker else contextlib.nullcontext():
            captured = run_provider(name, row.case, inputs, reference, lab, result)
            report.save(path)
            if args.worker and not lab.works():
                print(f"{what}: {result.reason}; device lost", file=sys.stderr, flush=True)
                os._exit(EXIT_DEVICE_LOST)
            if captured and result.status == "ok" and _room():
                kept[name] = captured
            del captured
            gc.collect()
        outcome = f"{result.us:.1f} us" if result.us else result.reason or "ok"
        done = f"[{report.finished()}/{args.total}]"
        print(f"{done} {what} {result.seconds:.1f}s {outcome}", file=sys.stderr, flush=True)
    if limit and alone:
        take_turns(row, limit, alone, kept, lab)
    report.save(path)


def _room() -> bool:
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return free > ROOM * total


def take_turns(row: Row, limit: Limit, alone: float, kept: dict[str, Captured], lab: Lab) -> None:
    """Time the limit and the graphs that were kept in turns; these times replace those taken `alone`."""
    if not (limit.captured and lab.stream and lab.flush is not None):
        return
    graphs = {"limit": (limit.captured, alone)}
    graphs |= {name: (captured, row.results[name].us or alone) for name, captured in kept.items()}
    times = backward.time_in_turns(graphs, lab.stream, lab.flush, lab.reps)
    row.limit_medians[-1:] = times.pop("limit").halves()
    for name, taken in times.items():
        row.results[name].alone_us = row.results[name].us
        taken.into(row.results[name])


# Reports: records in, text out.


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned with spaces, the first one to the left, all others to the right."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]

    def join(cells: Sequence[str]) -> str:
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "  ".join((cells[0].ljust(widths[0]), *rest)).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join((join(header), rule, *map(join, rows)))


def _cell(row: Row, provider: str) -> str:
    """Percent of the limit; the time where there is no limit; `err`, or `-` for no result."""
    result, share = row.results.get(provider), row.share(provider)
    if share is not None:
        return f"{share:.1f}"
    if result is None or result.status == "absent":
        return "-"
    if result.status != "ok":
        return "err"
    return f"{result.us:.1f} us" if result.us else "ok"


def share_table(rows: Sequence[Row], providers: Sequence[str]) -> str:
    """One line per shape: the limit and its spread between timings, then percent of the limit."""
    lines = []
    for row in rows:
        limit = f"{row.limit_us:.1f}" if row.limit_us else "-"
        spread = f"{row.spread:.1f}%" if row.limit_us else "-"
        lines.append([row.case.shape, limit, spread, *(_cell(row, name) for name in providers)])
    return format_table(["M x N", "limit us", "spread", *providers], lines)


def detail_table(rows: Sequence[Row]) -> str:
    """One line per shape and provider: time, launches of one backward, errors against float64."""
    lines = []
    for row in rows:
        for name, r in row.results.items():
            if r.status == "absent":
                continue
            us = f"{r.us:.1f}" if r.us else "err" if r.status == "err" else "-"
            launches = [str(r.launches.get(key, "-")) for key in ("kernels", "memsets", "memcpys")]
            errors = [f"{r.errors[g]:.2e}" if g in r.errors else "-" for g in ("dx", "dw", "db")]
            same = {None: "-", True: "yes", False: "NO"}[r.repeatable]
            lines.append([row.case.shape, name, us, *launches, *errors, same])
    counted, compared = ["kernels", "memsets", "copies"], ["dx err", "dw err", "db err"]
    header = ["M x N", "provider", "us", *counted, *compared, "same bits"]
    return format_table(header, lines)


def find_issues(rows: Sequence[Row], targets: dict[str, dict[str, float]]) -> list[str]:
    """A line per timed row where mixorder has no time, is not the fastest, or is below its target.

    `targets` maps norm and shape to percent of the limit, for every dtype.
    """
    issues = []
    for row in rows:
        result = row.results.get("mixorder")
        if result is None:
            continue
        found = []
        if result.status != "ok":
            found.append(f"mixorder {result.status}: {result.reason}")
        times = {n: r.us for n, r in row.results.items() if r.us and r.status == "ok"}
        rivals = {name: us for name, us in times.items() if name not in OURS}
        ours = times.get("mixorder")
        if ours and rivals and min(rivals.values()) < ours:
            best = min(rivals, key=rivals.__getitem__)
            found.append(f"{best} is faster: {rivals[best]:.1f} us, mixorder {ours:.1f} us")
        share, target = row.share("mixorder"), targets.get(row.case.norm, {}).get(row.case.shape)
        if share is not None and target is not None and share < target:
            found.append(f"mixorder at {share:.1f}% of the limit, target {target:g}%")
        case = row.case
        issues += [f"{case.norm} {case.dtype} {case.shape}: {text}" for text in found]
    return issues


def report_text(report: Report, args: argparse.Namespace) -> str:
    """The whole report; what matters most comes last, where a cut-off output still shows it."""
    head = {key: value for key, value in report.meta.items() if key not in ("started", "complete")}
    head["measured"] = f"{report.finished()} of {args.total} results"
    parts = ["\n".join(f"{key}: {value}" for key, value in head.items())]
    tables = report.tables()
    parts += [f"{title}: launches and errors\n{detail_table(tables[title])}" for title in tables]
    for title, rows in tables.items() if args.timed else ():
        names = [name for name in args.providers if name != "limit"]
        parts.append(f"{title}: % of the limit\n{share_table(rows, names)}")
    results = [item for row in report.rows for item in row.results.items()]
    alone = sum(bool(result.us) and not result.alone_us for _, result in results)
    parts += [f"timed alone, not in turns with the others: {alone} of {len(results)}"] if alone else []
    errors = {f"{name}: {result.reason}" for name, result in results if result.error}
    parts += ["errors\n" + "\n".join(sorted(errors))] if errors else []
    if args.timed:
        issues = find_issues(report.rows, args.targets) or ["none"]
        parts.append("issues\n" + "\n".join(issues))
    return "\n\n".join(parts)


def draw_charts(report: Report, out: Path) -> None:
    """One PNG per norm and dtype with times; none without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return
    for rows in report.tables().values():
        names = [n for n in PROVIDERS if any(row.share(n) is not None for row in rows)]
        if not names:
            continue
        figure, axes = pyplot.subplots(figsize=(2 + 1.5 * len(rows), 5))
        width = 0.8 / len(names)
        for i, name in enumerate(names):
            at = [j + (i - (len(names) - 1) / 2) * width for j in range(len(rows))]
            axes.bar(at, [row.share(name) or 0 for row in rows], width, label=name)
        axes.axhline(100, color="black", linewidth=0.8)
        axes.set_xticks(range(len(rows)), [row.case.shape for row in rows], rotation=20)
        axes.set_ylabel("% of torch.add(x, dy, out=dx)")
        case = rows[0].case
        form = "_residual" if case.residual else ""
        axes.set_title(f"{case.norm} norm backward, {case.dtype}, {report.meta['device']}")
        axes.legend(ncols=len(names), fontsize="small", loc="lower center")
        figure.tight_layout()
        figure.savefig(out / f"bench_{case.norm}{form}_{case.dtype}_w{case.weight_dtype}.png", dpi=120)
        pyplot.close(figure)


# Command line and processes.


def parse_shapes(text: str) -> list[tuple[int, int]]:
    """(rows, cols) of each item of a list such as `4096x768,8192x8192`; spaces separate, too."""
    shapes = []
    for item in re.split(r"[,\s]+", text.strip(", ")):
        match = re.fullmatch(r"(\d+)x(\d+)", item)
        if not match:
            raise argparse.ArgumentTypeError(f"shape {item!r}: expected ROWSxCOLS, as 4096x768")
        shapes.append((int(match[1]), int(match[2])))
    return shapes


def names_of(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = re.split(r"[,\s]+", text.strip(", "))
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown}: expected some of {', '.join(allowed)}")
        return list(dict.fromkeys(names))

    return parse


def parse_targets(text: str) -> dict[str, dict[str, float]]:
    """A JSON file, or JSON itself: {"rms": {"4096x4096": 78}, "layer": {...}} in percent."""
    try:
        return json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"targets {text!r}: {error}") from error


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Options; shapes and providers default to small ones and two on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    every = ("limit", *PROVIDERS)
    parser.add_argument("--shapes", type=parse_shapes, help=f"default {SHAPES}; 64x96 on the CPU")
    parser.add_argument("--norm", type=names_of(list(EPS)), default=list(EPS))
    parser.add_argument("--dtype", type=names_of(list(DTYPES)), default=["bf16"])
    parser.add_argument("--weight-dtype", choices=DTYPES, help="default: that of x")
    parser.add_argument("--residual", action="store_true", help="dx plus an incoming gradient of x")
    parser.add_argument("--providers", type=names_of(every), help=f"some of {', '.join(every)}")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/bench")))
    parser.add_argument("--reps", type=int, default=40, help="samples, fewer beyond 5 ms each")
    parser.add_argument("--check-only", action="store_true", help="errors and launches, no times")
    parser.add_argument("--cpu-smoke", action="store_true", help="errors on the CPU, no times")
    parser.add_argument("--targets", type=parse_targets, default={}, help="JSON file or inline")
    parser.add_argument("--launches", choices=("graph", "profiler"), default="graph")
    parser.add_argument("--time-box", type=float, default=120, help="seconds a provider may take")
    parser.add_argument("--deadline", type=float, help="start no provider after so many seconds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.cpu_smoke |= not torch.cuda.is_available()
    args.timed = not (args.check_only or args.cpu_smoke)
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


def describe(cpu: bool) -> dict[str, Any]:
    """The report's header."""
    driver = "none"
    if not cpu:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            run = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
            driver = run.stdout.split("\n")[0]
    versions = {}
    for name in ("triton", "liger-kernel", "quack-kernels"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    device = "CPU" if cpu else torch.cuda.get_device_name(0)
    date, started = time.strftime("%Y-%m-%d %H:%M:%S %Z"), time.time()
    head = {"device": device, "driver": driver, "torch": torch.__version__, **versions}
    return {**head, "date": date, "started": started}


def work(args: argparse.Namespace) -> int:
    """Measure what `bench.json` lacks, then write the report. Returns the exit status."""
    path = args.out / "bench.json"
    report = Report.load(path) if path.exists() else Report(describe(args.cpu_smoke))
    lab = Lab("cpu" if args.cpu_smoke else "cuda", args.reps, args.launches == "profiler")
    if not args.cpu_smoke:
        lab.stream = torch.cuda.Stream()
        lab.flush = backward.flush_buffer() if args.timed else None
    for case in args.cases:
        row = report.row(case)
        missing = set(args.providers) - {"limit"} - set(row.results)
        wanted = missing or (args.timed and "limit" in args.providers and not row.limit_medians)
        if not wanted or report.older_than(args.deadline):
            continue
        try:
            with functorch_config.patch(donated_buffer=False):  # they forbid retain_graph
                run_row(row, args, lab, report, path)
        except Exception as error:  # inputs, reference or limit: the row is lost, not the run
            text = f"{type(error).__name__}: {error}"[:2000]
            row.results.update({n: Result("err", text) for n in missing - set(row.results)})
            report.save(path)
            if args.worker and not lab.works():
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
    """Run workers until one ends by itself or achieves nothing; returns its exit status. In the
    second case the report of what there is is written here.
    """
    reasons = {EXIT_TIMEOUT: "took longer than --time-box", EXIT_DEVICE_LOST: "lost the device"}
    path, finished = args.out / "bench.json", 0
    with tempfile.TemporaryDirectory(prefix="mixorder-bench-", ignore_cleanup_errors=True) as cache:
        env = {
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TORCHINDUCTOR_COMPILE_THREADS": str(min(8, os.cpu_count() or 1)),
            "TEARDOWN_CUPTI": "0",  # profiling again after a teardown can crash CUDA graphs
            **os.environ,
        }
        for name in ("MIXORDER", "TORCHINDUCTOR_MIX_ORDER_REDUCTION"):
            env.pop(name, None)  # would change what `stock` means
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
