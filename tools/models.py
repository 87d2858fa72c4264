"""Whole-model benchmark: one training step of GPT-2, a Llama-style model and a ViT, stock and mixorder.

In: models, providers, steps. Out: a table per model on stdout, progress on stderr, and in --out
`models.json` (rewritten after each run) and `models.txt`. `lab/zoo.py` has the models, `lab/training.py` the
step, `lab/launches.py` the classes of a step's kernels.

Every run is a separate process with empty compile caches, so that memory and compile times are
independent; with --repeats the order of the providers alternates. A run that fails, hangs or lacks a
package is reported in a line, and the others go on. Without a GPU, small models run in the Triton
interpreter: regions and losses only. Exit status: 0, 1 if a run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lab import ROOT
from lab.arguments import names_of
from lab.processes import describe, write_whole
from lab.providers import OPTIONS, usable_options
from lab.tables import table
from lab.training import FULL, SMALL, Compiler, Run, measure, measure_interpreted
from lab.zoo import Spec
from support.compilers import how

PROVIDERS: dict[str, dict[str, Any]] = {
    **OPTIONS,
    "mixorder": {"mixorder": True},
    "mixorder_autotune": {"mixorder": True, "mixorder_autotune": True},
}
SLACK = 1.005  # medians of the same step differ by up to this factor
HEADER = [
    *("provider", "step ms", "+-%", "backward", "peak GiB", "compile s"),
    *("launches", "GPU ms", "norm ms", "in", "bias ms", "in", "fused", "loss off"),
]


# One run, in a process of its own.


def work(args: argparse.Namespace) -> int:
    """Measure one provider on one model and write its record to --worker. Returns the exit status."""
    (model,), (provider,) = args.models, args.providers
    run, spec = Run(model, provider, args.repeat), args.specs[model]
    start = time.perf_counter()
    try:
        if args.gpu:
            cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            measure(run, spec, compiler_of(provider), args.steps, cache)
        else:
            measure_interpreted(run, spec, interpreter_of(provider))
        run.status = "ok"
    except ImportError as error:
        run.status, run.error = "absent", f"{model} cannot be built here: {error!r}"
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        run.status, run.error = "err", f"{type(error).__name__}: {error}"[:2000]
    run.seconds = round(time.perf_counter() - start, 1)
    args.worker.write_text(json.dumps(dataclasses.asdict(run)))
    return run.status == "err"


def compiler_of(provider: str) -> Compiler:
    options = PROVIDERS[provider]
    if provider.startswith("mixorder"):
        import mixorder  # noqa: F401  registers its options

    return functools.partial(torch.compile, dynamic=False, options=usable_options(options)[0])


def interpreter_of(provider: str) -> Compiler:
    mixorder = provider.startswith("mixorder")
    return functools.partial(torch.compile, dynamic=False, **how("cpu", mixorder))


# All runs.


def supervise(args: argparse.Namespace) -> list[Run]:
    """Run every model and provider in turn, and save after each."""
    runs: list[Run] = []
    meta = describe(not args.gpu)
    planned = list(plan(args))
    for i, (repeat, model, provider) in enumerate(planned, 1):
        run = run_in_process(args, model, provider, repeat)
        runs.append(run)
        save(args.out / "models.json", meta, args, runs)
        outcome = f"{run.median_ms:.2f} ms" if run.median_ms else run.error or run.status
        at = time.time() - meta["started"]
        print(f"[{i}/{len(planned)}, {at:.0f} s] {model} {provider}: {outcome}", file=sys.stderr, flush=True)
    text = report(args, meta, runs)
    (args.out / "models.txt").write_text(text + "\n")
    print(text, flush=True)
    return runs


def plan(args: argparse.Namespace) -> list[tuple[int, str, str]]:
    """Repeat, model and provider of each run; every other repeat has the providers in reverse."""
    return [
        (repeat, model, provider)
        for repeat in range(args.repeats)
        for model in args.models
        for provider in (args.providers[::-1] if repeat % 2 else args.providers)
    ]


def run_in_process(args: argparse.Namespace, model: str, provider: str, repeat: int) -> Run:
    """A worker's record; it and its compile workers are ended after --time-box seconds."""
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="mixorder-models-", ignore_cleanup_errors=True) as folder:
        result = Path(folder) / "run.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(result)]
        command += ["--models", model, "--providers", provider, "--repeat", str(repeat)]
        command += ["--steps", str(args.steps), "--scale", args.scale]
        process = subprocess.Popen(command, env=environment(folder, args.gpu), start_new_session=True)
        status: int | str
        try:
            status = process.wait(args.time_box)
        except subprocess.TimeoutExpired:
            status = f"took longer than {args.time_box:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if result.exists():
            return Run(**json.loads(result.read_text()))
    ended = status if isinstance(status, str) else f"ended with status {status}"
    return Run(model, provider, repeat, "err", ended, seconds=round(time.time() - start, 1))


def environment(folder: str, gpu: bool) -> dict[str, str]:
    """The same for every provider: empty caches, no network, none of the user's options."""
    env = {
        "TORCHINDUCTOR_COMPILE_THREADS": str(min(16, os.cpu_count() or 1)),
        "TEARDOWN_CUPTI": "0",
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # stock means without any plugin
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    if not gpu:
        env["TRITON_INTERPRET"] = "1"
    for name in ("MIXORDER", "TORCHINDUCTOR_MIX_ORDER_REDUCTION", "MIXORDER_STRICT", "MIXORDER_DUMP"):
        env.pop(name, None)
    return env


def save(path: Path, meta: dict[str, Any], args: argparse.Namespace, runs: Sequence[Run]) -> None:
    specs = {name: dataclasses.asdict(args.specs[name]) for name in args.models}
    data = {"meta": meta, "models": specs, "runs": [dataclasses.asdict(run) for run in runs]}
    write_whole(path, json.dumps(data, indent=1))


# Text.


def report(args: argparse.Namespace, meta: dict[str, Any], runs: Sequence[Run]) -> str:
    """Header, a table per model, and where mixorder is worse than stock."""
    parts = ["\n".join(f"{key}: {value}" for key, value in meta.items() if key != "started")]
    for model in args.models:
        of_model = [run for run in runs if run.model == model]
        source = next((run.source for run in of_model if run.source), "not built")
        lines = [cells(run, of_model[0]) for run in of_model]
        parts.append(f"{model}: {args.specs[model]} ({source})\n{table(HEADER, lines)}")
        parts += [notes] if (notes := "\n".join(remarks(of_model))) else []
    parts.append("issues\n" + "\n".join(find_issues(runs) or ["none"]))
    return "\n\n".join(parts)


def cells(run: Run, first: Run) -> list[str]:
    """A run's line; `-` for values that were not measured. `loss off` is the difference from `first`."""
    name = f"{run.provider} {run.repeat + 1}" if run.repeat else run.provider
    if run.status != "ok":
        return [name, run.status, *["-"] * (len(HEADER) - 2)]

    def show(value: float | None, form: str = ".2f", scale: float = 1) -> str:
        return "-" if value is None else format(value / scale, form)

    counted = run.part() if run.launches else (None, None)
    norm, bias = (run.part(kind, "backward") if run.launches else (None, None) for kind in ("norm", "bias"))
    return [
        name,
        show(run.median_ms),
        show(run.spread if len(run.step_ms) > 1 else None, ".1f"),
        show(run.phase_ms.get("backward")),
        show(run.peak, ".3f", 2**30),
        show(run.compile_s, ".1f"),
        show(counted[0], ".0f"),
        show(counted[1]),
        *(text for n, ms in (norm, bias) for text in (show(ms, ".3f"), show(n, ".0f"))),
        str(run.fused),
        f"{loss_difference(run, first):.1e}",
    ]


def loss_difference(run: Run, other: Run) -> float:
    """The largest relative difference of the first steps' losses; nan where there are none."""
    pairs = list(zip(run.losses, other.losses, strict=False))
    return max((abs(a - b) / abs(b) for a, b in pairs), default=float("nan"))


def remarks(runs: Sequence[Run]) -> list[str]:
    """Shares of the step, reasons, errors and warnings, a line each."""
    lines = []
    for run in runs:
        if run.median_ms and run.launches:
            share = run.part("norm", "backward")[1] / run.median_ms * 100
            bias = run.part("bias", "backward")[1] / run.median_ms * 100
            lines.append(f"{run.provider}: norm backward {share:.1f}% of the step, bias sums {bias:.1f}%")
        if run.graphs > 1:
            lines.append(f"{run.provider}: the model falls into {run.graphs} graphs")
        if run.declined:
            lines.append(f"{run.provider}: declined {run.declined}")
        lines += [
            f"{run.provider}: {' '.join(text.split())[:300]}" for text in (run.error, *run.warnings) if text
        ]
    return list(dict.fromkeys(lines))


def find_issues(runs: Sequence[Run]) -> list[str]:
    """Where mixorder's median over the repeats is above stock's: times, peak memory, launches."""
    measures: dict[str, Callable[[Run], float | None]] = {
        "step ms": lambda run: run.median_ms,
        "peak bytes": lambda run: run.peak,
        "compile s": lambda run: run.compile_s,
        "launches": lambda run: run.part()[0] if run.launches else None,
    }
    slack = {"step ms": SLACK, "compile s": 1.03}
    issues = [f"{run.model} {run.provider}: {run.status}" for run in runs if run.status == "err"]
    for model in dict.fromkeys(run.model for run in runs):
        for what, value in measures.items():
            found = {}
            for provider in ("stock", "mixorder"):
                of_run = [value(run) for run in runs if (run.model, run.provider) == (model, provider)]
                if values := [v for v in of_run if v is not None]:
                    found[provider] = statistics.median(values)
            if len(found) == 2 and found["mixorder"] > found["stock"] * slack.get(what, 1):
                issues.append(f"{model}: {what} {found['mixorder']:,.6g}, stock {found['stock']:,.6g}")
    return issues


# Command line.


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=names_of(list(FULL)), default=list(FULL))
    parser.add_argument("--providers", type=names_of(list(PROVIDERS)), default=["stock", "mixorder"])
    parser.add_argument("--steps", type=int, default=30, help="timed steps")
    parser.add_argument("--repeats", type=int, default=1, help="processes per model and provider")
    parser.add_argument("--scale", choices=("full", "small"), help="default: full, small without a GPU")
    parser.add_argument("--time-box", type=float, default=240, help="seconds a run may take")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/models")))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.gpu = torch.cuda.is_available()
    args.scale = args.scale or ("full" if args.gpu else "small")
    args.specs: dict[str, Spec] = FULL if args.scale == "full" else SMALL
    if args.steps < 2:
        parser.error("--steps: at least 2")
    return args


def main(argv: Sequence[str]) -> int:
    args = parse_args(argv)
    if args.worker:
        return work(args)
    args.out.mkdir(parents=True, exist_ok=True)
    return any(run.status == "err" for run in supervise(args))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
