"""The whole family on this GPU: each case of `support/cases.py`, by stock Inductor and mixorder.

    python tools/family.py --cases "over reduction groups" DyT
    python tools/family.py --cases "BatchNorm2d, ReLU" --shape 128,512,28,28 --out batch_norm.json

Prints, per case, the regions fused, and for the backward (for inference, the function): launches,
microseconds (CUDA-graph replay, L2 flushed, median), beside those of an addition that moves as many bytes as
one read of `x` and `dy` and one write of `dx`, megabytes that its kernels read and write, and the largest
relative error of a result against float64. Exit status 1 if a case is not fused as it should be,
slower than stock, less accurate, or moves more bytes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lab import arguments
from lab.stopwatch import Call, Stopwatch, stopwatch
from lab.tables import head, line
from support.case import Shape
from support.cases import GROUPS, Case, Example, Fused, found_in, relative_errors
from support.compilers import OURS, STOCK, inductor

from mixorder.errors import Decline
from mixorder.options import Options
from mixorder.report import RegionRecord, collect

# Inductor's own mix-order reduction fails to compile in fp64 (torch 2.11).
EXACT = STOCK | {"triton.mix_order_reduction": False}
DEVICE = "cuda"
SLACK = 1.02  # two medians of the same kernels differ by up to this factor
HEAD = ("case", "fused", "launches", "us", "speedup", "addition, us", "MB", "error, stock / mixorder")


# Bytes. Inductor's metric (`metrics.num_bytes_accessed`) is the sum of `get_read_write_buffers_sizes` over
# the scheduled kernels: of each distinct buffer that a kernel reads or writes, the smaller of its size and
# the elements accessed. It counts what a user-defined Triton kernel writes twice, as an argument and as its
# mutation. Partial sums of fused kernels are not counted, neither mixorder's nor those of Inductor's own
# mix-order reduction, which are no buffers of the graph.


class ByteCount:
    """A pass over Inductor's scheduled kernels that changes nothing, and counts bytes per graph.

    `records`: the list of `mixorder.report.collect`; it has a graph's regions when the graph is counted.
    """

    def __init__(self, records: Sequence[RegionRecord | Decline]) -> None:
        self.records = records
        self.seen = 0
        self.forward = self.backward = 0

    def __call__(self, nodes: list[Any]) -> list[Any]:
        from torch._inductor.virtualized import V

        new, self.seen = self.records[self.seen :], len(self.records)
        partials = sum(2 * r.traffic.workspace for r in new if isinstance(r, RegionRecord))
        total = sum(map(accessed_bytes, nodes)) - partials
        if V.graph.is_backward:
            self.backward = total
        else:
            self.forward = total
        return nodes


def accessed_bytes(node: Any) -> int:
    """Bytes that one scheduled kernel reads and writes."""
    from torch._inductor.ir import UserDefinedTritonKernel

    kernels = [part.node for part in node.get_nodes() if isinstance(part.node, UserDefinedTritonKernel)]
    if not kernels:
        return node.get_read_write_buffers_sizes()
    assert len(kernels) == len(node.get_nodes()), "Inductor fused something into a kernel of ours"
    return sum(map(passed_bytes, kernels))


def passed_bytes(kernel: Any) -> int:
    """Bytes of the distinct tensors passed to a user-defined Triton kernel; all sizes are known.

    A tensor that is both read and written, by in-place reuse, counts as two tensors.
    """
    tensors: dict[Any, int] = {}
    written = {arg.get_name() for arg in kernel.mutable_args}
    for name, buffer in kernel.kwargs.items():
        if buffer not in kernel.inputs:
            continue  # a size
        layout = buffer.get_layout()
        size, stride = ([int(n) for n in ns] for ns in (layout.size, layout.stride))
        extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))  # less where it broadcasts
        elements = min(math.prod(size), extent)
        key = (buffer.get_name(), int(layout.offset), *size, *stride)
        passes = 2 if name.startswith("in") and buffer.get_name() in written else 1
        tensors[key] = passes * elements * layout.dtype.itemsize
    return sum(tensors.values())


# One case.


@dataclasses.dataclass
class Measured:
    """Of one way. `bytes`: that its kernels read and write. `error`: the largest of a result. `addition`:
    microseconds of the addition."""

    bytes: int
    fused: list[Fused]
    declined: list[str]
    launches: int = 0
    microseconds: float = 0.0
    error: float = 0.0
    addition: float = math.nan


def compiled(example: Example, options: dict[str, Any], watch: Stopwatch) -> tuple[Call, Measured]:
    """The step, after it has run, and what is known of it without timing."""
    with watch.running(), collect() as records:
        count = ByteCount(records)
        step = example.step(inductor(options | {"_post_fusion_custom_pass": count}))
        for _ in range(3):
            step()
    watch.wait()
    return step, Measured(count.backward if example.case.training else count.forward, *found_in(records))


def run_case(case: Case, shape: Shape, dtype: torch.dtype, small: bool) -> tuple[Measured, Measured]:
    """Stock's and ours."""
    example, watch = Example(case, shape, dtype, DEVICE), stopwatch(DEVICE)
    exact = example.exact(inductor(EXACT))
    ours = OURS | ({"mixorder_min_numel": 0} if small else {})
    ways = [compiled(example, options, watch) for options in (STOCK, ours)]
    calls = {str(i): step for i, (step, _) in enumerate(ways)}
    if (addition := watch.limit(3 * example.inputs[0].nbytes)) is not None:
        calls["addition"] = addition
    timed = watch.time(calls)
    for i, (step, measured) in enumerate(ways):
        result = timed[str(i)]
        measured.microseconds, measured.launches = (
            result.times.median_us,
            sum((result.launches or {}).values()),
        )
        measured.error = max(relative_errors(step(), exact))
        if addition is not None:
            measured.addition = timed["addition"].times.median_us
    watch.free()
    return ways[0][1], ways[1][1]


def cells(name: str, stock: Measured, ours: Measured) -> list[str]:
    """A line of the table."""
    left = [f"left to Inductor: {', '.join(ours.declined)}"] if ours.declined else []
    return [
        name,
        "; ".join([space for space, _, _ in ours.fused] + left) or "no pair",
        f"{stock.launches} -> {ours.launches}",
        f"{stock.microseconds:.1f} -> {ours.microseconds:.1f}",
        f"{stock.microseconds / ours.microseconds:.2f}",
        f"{ours.addition:.1f}",
        f"{stock.bytes / 1e6:.1f} -> {ours.bytes / 1e6:.1f}",
        f"{stock.error:.2e} / {ours.error:.2e}",
    ]


def faults(case: Case, shape: Shape, small: bool, stock: Measured, ours: Measured) -> list[str]:
    """Failures of the case. At small sizes launches dominate, so time and bytes are not checked."""
    expected = case.expected(shape, 0 if small else Options().min_numel, DEVICE)
    checks = {
        "not fused as it should be": (ours.fused, ours.declined) != expected,
        "slower": not small and ours.microseconds > stock.microseconds * SLACK,
        "more bytes": not small and ours.bytes > stock.bytes,
        "less accurate": not ours.error <= stock.error * 1.05 + 1e-6,
    }
    return [fault for fault, is_fault in checks.items() if is_fault]


def sizes(text: str) -> Shape:
    return tuple(map(int, text.split(",")))


def main() -> int:
    parser = arguments.parser(__doc__)
    told = "only those whose name or group contains one of these"
    parser.add_argument("--cases", nargs="+", default=[""], help=told)
    parser.add_argument("--small", action="store_true", help="small shapes; time and bytes are not judged")
    parser.add_argument("--shape", type=sizes, help="in place of the cases' own, such as 128,512,28,28")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--out", type=Path, default=Path("family.json"))
    args = parser.parse_args()
    results: dict[str, Any] = {}
    bad: list[str] = []
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "no GPU"
    print(f"{name}, torch {torch.__version__}, {args.dtype}")
    for group, cases in GROUPS.items():
        chosen = {n: case for n, case in cases.items() if any(c in f"{group}: {n}" for c in args.cases)}
        if chosen:
            print(f"\n### {group.capitalize()}\n\n{head(HEAD)}")
        for name, case in chosen.items():
            shape = args.shape or (case.shapes.small if args.small else case.shapes.training)
            try:
                stock, ours = run_case(case, shape, getattr(torch, args.dtype), args.small)
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                told = f"{type(error).__name__}: {str(error)[:120]!r}"
                print(line([name, told, *[""] * (len(HEAD) - 2)]), flush=True)
                bad.append(f"{name} ({type(error).__name__})")
                continue
            print(line(cells(name, stock, ours)), flush=True)
            results[name] = {"stock": dataclasses.asdict(stock), "mixorder": dataclasses.asdict(ours)}
            args.out.write_text(json.dumps(results, indent=1))
            if faulty := faults(case, shape, args.small, stock, ours):
                bad.append(f"{name} ({', '.join(faulty)})")
    print(f"\nfaults: {'; '.join(bad) or 'none'}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
