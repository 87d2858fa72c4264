"""What each operator takes on this GPU: `mixorder/schedule/operators.json`.

    python tools/lab/operators.py                   # prints a table: an operator, its price, and the file's
    python tools/lab/operators.py --write FILE      # and writes the prices

A kernel computes an operator of values that stay in registers, in a loop, with as many warps as mixorder's
kernels have: of all four values, and of two. The difference is what the operator takes where it is all that
there is to do, in instructions at the rate of `times.json`. The text is that of mixorder's kernels. Prices of
a few instructions are left out: those run beside others. A price in the file that is within 10% of the new
one, or one less or more, stays.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch._inductor.lowering  # the dtypes of results, for printers
import triton

from mixorder.codegen.op_printer import OpPrinter
from mixorder.inductor.kernels import IMPORTS, load_module
from mixorder.inductor.printing import IndentedBuffer, printing_triton
from mixorder.ir.program import Compute, Ref
from mixorder.schedule.facts import PRICES, UNMEASURED
from mixorder.schedule.kernel_time import TIMES

BLOCK, WARPS, PROGRAMS, STEPS, REPS = 1024, 8, 2, 1000, 5  # programs of a multiprocessor
FEW = 6
KEPT = 0.1

F32, F64, I32, I64 = torch.float32, torch.float64, torch.int32, torch.int64
HEAD = """\


@triton.jit
def kernel(values, same, out, steps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    kept = tl.load(same)
    x0, x1 = tl.load(values + at), tl.load(values + BLOCK + at)
    x2, x3 = tl.load(values + 2 * BLOCK + at), tl.load(values + 3 * BLOCK + at)
    total = tl.zeros([BLOCK], {dtype})
    for step in range(steps):
"""
TAIL = """\
    tl.store(out + tl.program_id(0) * BLOCK + at, total)
"""
VALUES = 4


@dataclasses.dataclass(frozen=True)
class Entry:
    """An operator. `key`: its name in the file. `chain`: what is computed, of `x` and `z`. `share`: of the
    chain's time that is the operator's. `bounds`: of the values."""

    key: str
    chain: tuple[Compute, ...]
    bounds: tuple[float, float] = (0.5, 1.5)
    dtype: torch.dtype = F32
    share: float = 1.0


def of(op: str, *args: str, dtype: torch.dtype = F32) -> tuple[Compute, ...]:
    return (Compute("y", op, tuple(map(Ref, args)), (), dtype),)


def there_and_back(dtype: torch.dtype, source: torch.dtype = F32) -> tuple[Compute, ...]:
    there = Compute("half", "to_dtype", (Ref("x"), dtype), (("use_compute_types", False),), dtype)
    return there, Compute("y", "to_dtype", (Ref("half"), source), (), source)


AROUND_ZERO = (-3.0, 3.0)
INTEGERS = (1.0, 2e4)
UNARY = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma")
MORE = ("sigmoid", "branchless_sigmoid", "floor", "round", "trunc")
SIGNED = ("sin", "cos", "tan", "tanh", "branchless_tanh", "erf", "branchless_erf", "erfc", "sinh", "cosh")
ALSO = ("asinh", "atan")


def entries() -> Iterator[Entry]:
    for op in (*UNARY, *MORE):
        yield Entry(op, of(op, "x"))
    for op in (*SIGNED, *ALSO):
        yield Entry(op, of(op, "x"), AROUND_ZERO)
    yield Entry("acosh", of("acosh", "x"), (1.1, 3.0))
    for op in ("asin", "acos", "atanh", "erfinv"):
        yield Entry(op, of(op, "x"), (-0.9, 0.9))
    for op in ("add", "mul", "truediv", "div_rn", "pow", "atan2", "fmod", "remainder", "maximum"):
        yield Entry(op, of(op, "x", "z"))
    yield Entry("fma", of("fma", "x", "z", "z"))
    yield Entry("corrected_quotient", of("corrected_quotient", "x", "z", "z"))
    for dtype in (I32, I64):
        for op in ("mul", "floordiv", "truncdiv", "remainder"):
            yield Entry(f"{op} {_name(dtype)}", of(op, "x", "z", dtype=dtype), INTEGERS, dtype)
    for op in ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "reciprocal"):
        yield Entry(f"{op} float64", of(op, "x", dtype=F64), dtype=F64)
    for op in ("add", "mul", "truediv", "pow", "maximum"):
        yield Entry(f"{op} float64", of(op, "x", "z", dtype=F64), dtype=F64)
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, I32, I64):
        yield Entry(f"to_dtype {_name(dtype)}", there_and_back(dtype), share=0.5)
    yield Entry("to_dtype float64", there_and_back(F32, F64), dtype=F64, share=0.5)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def text(entry: Entry, count: int) -> str:
    """The kernel that computes an operator of so many of the values, with the next one as its second."""
    code = IndentedBuffer(2)
    with printing_triton():
        printer = OpPrinter(code, {})
        for i in range(VALUES):
            code.writeline(f"x{i} {'*' if entry.dtype.is_floating_point else '^'}= kept")
        with printer.active():
            for i in range(VALUES):
                printer.define(f"x{i}", entry.dtype, "x")
                printer.define(f"x{(i + 1) % VALUES}", entry.dtype, "z")
                for stmt in entry.chain if i < count else ():
                    printer.compute(stmt)
                code.writeline(f"total += {printer.variables['y'] if i < count else f'x{i}'}")
    dtype = f"tl.{_name(entry.dtype)}"
    return IMPORTS + HEAD.format(dtype=dtype) + code.getvalue() + TAIL


def seconds(entry: Entry, count: int) -> float:
    """Of one call of a kernel, for each step of an element on one multiprocessor."""
    kernel = load_module(text(entry, count)).kernel
    programs = PROGRAMS * torch.cuda.get_device_properties(0).multi_processor_count
    generator = torch.Generator("cuda").manual_seed(0)
    low, high = entry.bounds
    values = torch.rand(VALUES * BLOCK, device="cuda", generator=generator) * (high - low) + low
    values = values.to(entry.dtype)
    same = torch.full((1,), int(entry.dtype.is_floating_point), dtype=entry.dtype, device="cuda")
    out = torch.empty(programs * BLOCK, dtype=entry.dtype, device="cuda")

    def call() -> None:
        kernel[(programs,)](values, same, out, STEPS, BLOCK, num_warps=WARPS, enable_fp_fusion=False)

    return statistics.median(timed(call) for _ in range(REPS)) / (PROGRAMS * BLOCK * STEPS)


def timed(call: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def prices(told: Callable[[str, float], None]) -> dict[str, float]:
    """By key, the instructions that an operator takes as long as."""
    instructions = dict[str, float]()
    for entry in entries():
        try:
            half, every = (seconds(entry, count) for count in (VALUES // 2, VALUES))
        except Exception as error:  # the next operator goes on
            print(f"{entry.key}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        value_s = max(0.0, every - half) / (VALUES // 2)
        instructions[entry.key] = entry.share * value_s * 1e6 * TIMES.instructions_sm_us
        told(entry.key, instructions[entry.key])
    return instructions


def kept(measured: dict[str, float]) -> dict[str, int]:
    """The prices for the file."""
    known = {key: price for key, price in PRICES.items() if key not in UNMEASURED}
    for key, price in measured.items():
        old = known.get(key, 1)
        if abs(price - old) > max(KEPT * old, 1.0) and max(price, old) >= FEW:
            known[key] = round(price)
    return dict(sorted(known.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, help="the file")
    args = parser.parse_args()
    measured = prices(lambda key, price: print(f"{key:26} {price:7.2f} {PRICES.get(key, 1):4}", flush=True))
    data = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": str(datetime.date.today()),
    }
    if args.write:
        args.write.write_text(json.dumps({"data": data, "prices": kept(measured)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
