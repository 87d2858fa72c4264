"""compute-sanitizer over the kernels that mixorder generates, at odd sizes.

    python tools/sanitize.py --out sanitized

Its tools are memcheck, racecheck, initcheck and synccheck. Cases are those of `support/cases.py` at their
small sizes, and norms at sizes that take every strategy. They are compiled first, into a cache that the
checked processes read; those then run each backward once, without the caching allocator
(`PYTORCH_NO_CUDA_MEMORY_CACHING=1`), so that every tensor is a separate allocation. Only kernels of
mixorder are checked. initcheck runs on all kernels, since mixorder's read results of others; errors in other
kernels are counted apart. Matrix products are computed on the CPU: initcheck does not see what cuBLAS writes
by TMA, and racecheck cannot run some of its kernels ("failed to handle a hardware exception", even with no
kernel checked). Prints a table: errors per tool, and where. Logs are in --out.

compute-sanitizer comes with the CUDA toolkit, or with `pip install nvidia-cuda-sanitizer-api`. This script
searches the PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda, and that package. Exit status: 0 if there are no
errors, 1 if there are or if a tool did not end, 2 without compute-sanitizer or a GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab import arguments
from lab.processes import run_logged
from lab.tables import table

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
KERNELS = "triton_mixorder"
# Persistent, read off a boundary, cooperative.
NORM_SIZES = ("37x100", "1031x768", "131x1001", "9x4097", "17x8191", "7x16400", "3x20001")
NORMS = ("LayerNorm", "RMSNorm", "pre-norm residual")
FIRST_PORT = 50000
_BEGIN = "CASE "


@dataclasses.dataclass(frozen=True)
class Job:
    """A case of the family, its sizes (empty: its small ones), the dtype, and whether rows are symbolic."""

    case: str
    sizes: str = ""
    dtype: str = "bfloat16"
    dynamic: bool = False

    def __str__(self) -> str:
        return "@".join((self.case, self.sizes, self.dtype, str(int(self.dynamic))))

    @classmethod
    def parse(cls, text: str) -> Job:
        case, sizes, dtype, dynamic = text.split("@")
        return cls(case, sizes, dtype, dynamic == "1")


@dataclasses.dataclass(frozen=True)
class Report:
    """A tool's result: errors in mixorder's kernels and elsewhere, the jobs with errors, and how the
    process ended: "" if normally, "timeout", or its exit status."""

    ours: int = 0
    elsewhere: int = 0
    jobs: tuple[str, ...] = ()
    ended: str = ""

    def __add__(self, other: Report) -> Report:
        jobs = tuple(dict.fromkeys((*self.jobs, *other.jobs)))
        return Report(
            self.ours + other.ours, self.elsewhere + other.elsewhere, jobs, self.ended or other.ended
        )

    @property
    def clean(self) -> bool:
        return self.ours == 0 and not self.ended


def find_sanitizer() -> Path | None:
    """The path of compute-sanitizer; None if there is none."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is not None:
        return Path(sanitizer)
    roots = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    for root in filter(None, roots):
        for folder in ("bin", "compute-sanitizer"):
            path = Path(root) / folder / "compute-sanitizer"
            if path.is_file():
                return path
    package = importlib.util.find_spec("nvidia")
    for place in package.submodule_search_locations or () if package else ():
        for path in Path(place).glob("*/bin/compute-sanitizer"):
            path.chmod(path.stat().st_mode | 0o111)  # pip does not keep the bit
            return path
    return None


def default_jobs() -> list[Job]:
    from support.cases import CASES

    family = [Job(name) for name in CASES]
    norms = [
        Job(name, sizes, dtype) for name in NORMS for sizes in NORM_SIZES for dtype in ("bfloat16", "float32")
    ]
    wide = [Job(name, "13x12288", "float64") for name in NORMS]
    symbolic = [Job(name, sizes, dynamic=True) for name in NORMS for sizes in ("131x1001", "7x16400")]
    return family + norms + wide + symbolic


def products_on_the_host() -> None:
    """Make compiled code compute its matrix products on the CPU, in fp32."""
    import torch
    from torch._inductor.select_algorithm import extern_kernels

    def moved(product: Callable[..., Any]) -> Callable[..., Any]:
        def on_the_host(*args: Any, out: Any = None, **kwargs: Any) -> Any:
            here = next(a for a in args if isinstance(a, torch.Tensor))
            result = product(*(a.cpu().float() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)
            return result.to(here.device, here.dtype) if out is None else out.copy_(result)

        return on_the_host

    for name in ("mm", "addmm", "bias_addmm", "bmm", "baddbmm"):
        if hasattr(extern_kernels, name):
            setattr(extern_kernels, name, moved(getattr(extern_kernels, name)))


def run_jobs(jobs: Sequence[Job]) -> None:
    """Run each job's backward once: first to compile, then in the checked process."""
    import torch
    from support.cases import CASES, Example

    products_on_the_host()

    def compiled(job: Job):  # type: ignore[no-untyped-def]
        options = {"mixorder": True, "mixorder_strict": True, "mixorder_min_numel": 0}
        dynamic = None if job.dynamic else False
        return lambda function: torch.compile(function, options=options, dynamic=dynamic)

    for job in jobs:
        print(f"{_BEGIN}{job}", flush=True)
        torch._dynamo.reset()
        case = CASES[job.case]
        shape = tuple(map(int, job.sizes.split("x"))) if job.sizes else case.shapes.small
        example = Example(case, shape, getattr(torch, job.dtype), "cuda")
        if job.dynamic:
            for value in example.inputs:
                torch._dynamo.maybe_mark_dynamic(value, 0)
        example.step(compiled(job))()
        torch.cuda.synchronize()


def command(sanitizer: Path, tool: str, jobs: Sequence[Job], port: int) -> list[str]:
    options = ["--tool", tool, "--target-processes", "application-only", "--port", str(port)]
    options += ["--launch-timeout", "0"]  # it gives up after 10 seconds, and torch may take longer to import
    options += ["--report-api-errors", "no"] if tool == "memcheck" else []
    options += ["--kernel-name", f"kns={KERNELS}"] if tool != "initcheck" else []
    python = [sys.executable, __file__, "--run", *map(str, jobs)]
    return [str(sanitizer), *options, "--print-limit", "1000", *python]


def environment(cache: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def checked(
    sanitizer: Path, tool: str, jobs: Sequence[Job], cache: str, log: Path, limit: float, port: int
) -> Report:
    """Run one tool over some jobs, in a separate process."""
    status, text = run_logged(command(sanitizer, tool, jobs, port), log, limit, environment(cache))
    ended = "timeout" if status is None else f"exit status {status}" if status else ""
    return dataclasses.replace(parsed_log(text), ended=ended)


def swept(
    parts: Sequence[Sequence[Job]],
    check: Callable[[Sequence[Job], str, int], Report],
    pool: concurrent.futures.Executor,
) -> Report:
    """Run one tool over all parts at the same time. A part may then time out, or fail without an error in a
    kernel. Each job of such a part is checked again alone."""
    futures = [pool.submit(check, part, str(i), FIRST_PORT + 20 * i) for i, part in enumerate(parts)]
    reports = [future.result() for future in futures]
    for i, part in enumerate(parts):
        if reports[i].ended and len(parts) > 1:
            alone = (check([job], f"{i}-{j}", FIRST_PORT) for j, job in enumerate(part))
            reports[i] = sum(alone, dataclasses.replace(reports[i], ended=""))
    return sum(reports, Report())


def parsed_log(text: str) -> Report:
    """Errors by where they are: a record begins at an unindented line, and names its kernel further down."""
    ours, elsewhere, jobs, job = 0, 0, [], ""
    for record in records(text):
        if record.startswith(_BEGIN):
            job = record[len(_BEGIN) :].strip()
        elif KERNELS in record:
            ours += 1
            jobs.append(job)
        else:
            elsewhere += 1
    return Report(ours, elsewhere, tuple(dict.fromkeys(jobs)))


_PREFIX = re.compile(r"^=+ ?")
_ERROR = re.compile(
    r"Invalid __|Uninitialized|Host API|hazard|Barrier error|Program hit|Illegal|Misaligned|Out-of-range"
    r"|error detected",
    re.IGNORECASE,
)
_SUMMARY = re.compile(r"SUMMARY|COMPUTE-SANITIZER|hazards? displayed")


def records(text: str) -> Iterator[str]:
    """The lines that begin a job, and compute-sanitizer's records of errors, each in one string."""
    current: list[str] = []
    for line in (*text.splitlines(), ""):
        told = _PREFIX.sub("", line) if line.startswith("=====") else None
        begins = told is not None and not told.startswith(" ") and told.strip()
        if current and (told is None or begins or not told.strip()):
            yield "\n".join(current)
            current = []
        if line.startswith(_BEGIN):
            yield line
        elif begins and told is not None and _ERROR.search(told) and not _SUMMARY.search(told):
            current = [told]
        elif current and told is not None:
            current.append(told)


HEAD = ("tool", "in mixorder's kernels", "elsewhere", "ended", "cases")


def cells(tool: str, r: Report) -> list[str]:
    """A line of the table."""
    ended, where = r.ended or "in good order", "; ".join(r.jobs[:5]) or "-"
    return [tool, str(r.ours or "clean"), str(r.elsewhere), ended, where]


def split(jobs: Sequence[Job], parts: int) -> list[list[Job]]:
    return [part for i in range(parts) if (part := list(jobs[i::parts]))]


def warm(jobs: Sequence[Job], cache: str, limit: float) -> str:
    """Compile into the cache, again after a failure, as a process may crash as it ends; returns the second
    failure."""
    python = [sys.executable, __file__, "--run", *map(str, jobs)]
    error = ""
    for _ in range(2):
        try:
            done = subprocess.run(
                python, env=environment(cache), capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return "timeout"
        if not done.returncode:
            return ""
        error = done.stderr[-2000:]
    return error


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments.parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("sanitized"), help="folder for the logs")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--jobs", nargs="+", type=Job.parse, help="case@sizes@dtype@0 or 1, instead of all")
    parser.add_argument("--every", type=int, default=1, help="take every n-th job")
    parser.add_argument("--processes", type=int, default=6, help="at once")
    parser.add_argument("--limit", type=float, default=400, help="seconds for one process")
    parser.add_argument("--run", nargs="+", type=Job.parse, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    if args.run:
        run_jobs(args.run)
        return 0
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("compute-sanitizer is missing: install the CUDA toolkit, or nvidia-cuda-sanitizer-api with pip")
        return 2
    import torch

    if not torch.cuda.is_available():
        print("there is no GPU to run kernels on")
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    jobs = (args.jobs or default_jobs())[:: args.every]
    parts = split(jobs, args.processes)
    print(f"{sanitizer}: {len(jobs)} jobs in {len(parts)} processes", flush=True)
    with (
        tempfile.TemporaryDirectory() as cache,
        concurrent.futures.ThreadPoolExecutor(args.processes) as pool,
    ):
        for error in filter(None, pool.map(lambda part: warm(part, cache, args.limit), parts)):
            print(f"cannot be run without compute-sanitizer:\n{error}")
            return 1
        reports = {}
        for tool in args.tools:

            def check(jobs: Sequence[Job], name: str, port: int, tool: str = tool) -> Report:
                log = args.out / f"{tool}-{name}.txt"
                return checked(sanitizer, tool, jobs, cache, log, args.limit, port)

            reports[tool] = swept(parts, check, pool)
            print(f"{tool}: {reports[tool]}", flush=True)
    text = table(HEAD, (cells(tool, r) for tool, r in reports.items()))
    (args.out / "table.md").write_text(f"{text}\n")
    print(f"\n{text}")
    return int(not all(report.clean for report in reports.values()))


if __name__ == "__main__":
    sys.exit(main())
