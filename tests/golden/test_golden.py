"""Some kernels as a whole, for readers: each strategy, and each construct that changes the text.

Each file in `kernels` begins with device, strategy and graph. EXPECTTEST_ACCEPT=1 writes the files
anew. The kernels of many more graphs are compared by digest (tests/tools/test_replay.py).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import devices
import graphs
import pytest
import torch
import triton
from graphs import bf16, f32, traced
from support import quantised
from support.quantised import RECIPES
from torch.fx import Graph

from mixorder.options import Options
from mixorder.pipeline import run, setting_in_force

ROOT = Path(__file__).parents[2]
KERNELS = Path(__file__).parent / "kernels"


@dataclasses.dataclass(frozen=True)
class Golden:
    """A graph in words, how it is made, and the device that its kernels are for."""

    words: str
    make: Callable[[], Graph]
    device: str = "H200"


def finished(x: Any, dy: Any, w: Any) -> Any:
    scaled = x * dy
    return dy - scaled.sum(2, keepdim=True), (scaled.sum(0) * w).to(bf16)


def bias(x: Any, dy: Any) -> Any:
    dx = torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
    return dx, dx.sum(0)


def transposed(x: Any, scales: Any) -> Any:
    return (x.float() * scales).clamp(-448, 448).to(quantised.F8).t().contiguous()


def full(rows: int, cols: int, count: int = 2, dtype: torch.dtype = bf16) -> list[Any]:
    return [((rows, cols), dtype)] * count


def recipe(name: str, rows: int, cols: int) -> Graph:
    return traced(lambda *x: RECIPES[name].function(*x), *RECIPES[name].like(rows, cols))


GOLDEN = {
    "rows": Golden("LayerNorm's backward, 32768x768", lambda: graphs.layer_norm_backward(32768, 768)),
    "rows_in_chunks": Golden(
        "RMSNorm's backward, 32768x1152 in float32: a row in chunks, sums that are compensated",
        lambda: graphs.rms_norm_backward(32768, 1152, f32),
    ),
    "rows_off_a_boundary": Golden(
        "RMSNorm's backward, 8192x4097: rows begin at 8 places relative to accesses of 16 bytes",
        lambda: graphs.rms_norm_backward(8192, 4097),
    ),
    "rows_symbolic": Golden(
        "a pair of sums of 1024 columns of float32: symbolic rows, and no PTX",
        lambda: graphs.traced_rows(graphs.pair, *full(4096, 1024, dtype=f32)),
        "MI300",
    ),
    "rows_without_a_finalisation": Golden(
        "a pair of sums at each of 640 indices of a batch, 32x16",
        lambda: traced(finished, *[((32, 640, 16), f32)] * 2, ((640, 16), f32)),
    ),
    "rows_shared": Golden(
        "RMSNorm's backward, 4096x20000 in bf16: parts that are no power of two",
        lambda: graphs.rms_norm_backward(4096, 20000),
    ),
    "blocks_of_columns": Golden(
        "the gradient of GELU (tanh) and of a bias, 16384x3072", lambda: traced(bias, *full(16384, 3072))
    ),
    "tile_of_blocks": Golden(
        "MXFP8 along rows and along columns, transposed, 4096x4096", lambda: recipe("mx_both", 4096, 4096)
    ),
    "tile_transposed": Golden(
        "a cast by scales of columns, transposed, 16384x4096",
        lambda: traced(transposed, *full(16384, 4096, 1), ((1, 4096), f32)),
    ),
    "reduction_groups": Golden(
        "GroupNorm's backward, 8 samples of 4096 places and 320 channels in bf16: three kernels",
        lambda: graphs.group_norm_backward(8, 4096, 320, 32),
    ),
}


def text_of(golden: Golden) -> str:
    """The kernels of a graph's one region, below a heading."""
    setting = dataclasses.replace(setting_in_force(), device=getattr(devices, golden.device))
    (record,) = run(golden.make(), Options(interpret=True, strict=True, min_numel=0), setting)
    heading = f'"""{golden.device}, {record.strategy}: {golden.words}."""'
    kernels = [f"# {k.grid} programs of {k.config.num_warps} warps\n{k.text}" for k in record.kernels]
    return "\n\n".join([heading, *kernels])


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    """With the versions of tools/setup.sh: printers and orders of dims differ between versions."""
    here = {"TORCH": torch.__version__.split("+")[0], "TRITON": triton.__version__}
    setup = (ROOT / "tools" / "setup.sh").read_text()
    expected = dict(re.findall(r"^(TORCH|TRITON)_VERSION=(\S+)", setup, re.MULTILINE))
    if here != expected:
        pytest.skip(f"the kernels are those of {expected}")
    file, text = KERNELS / f"{name}.py", text_of(GOLDEN[name])
    if os.environ.get("EXPECTTEST_ACCEPT") == "1":
        file.write_text(text)
    assert file.read_text() == text


def test_each_file_is_of_a_graph() -> None:
    assert {file.stem for file in KERNELS.glob("*.py")} == GOLDEN.keys()
