"""`python -m mixorder tune package.module:factory`: time schedules for a model's regions, and keep the best.

The best are stored in Inductor's cache directory, where every later compile finds them.
Exit status: 0; 1 where nothing was tuned; 2 on bad arguments or without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixorder.cli.bench import NO_GPU, step_of
from mixorder.cli.factory import HELP, add_factory, make
from mixorder.cli.parser import Parser

if TYPE_CHECKING:
    from mixorder.record import RegionRecord

DESCRIPTION = """\
Compile a model with mixorder_autotune. This times up to 28 schedules of each region, then the fastest of them
and Inductor's kernels for the same operators. A schedule is the size of tiles, and the numbers of programs,
warps and pipeline stages. The results are kept in Inductor's cache directory. Every later compile with
{"mixorder": True} on this machine uses them, and times nothing. To forget them, delete the folder `mixorder`
there."""


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    parser = Parser("python -m mixorder tune", DESCRIPTION, HELP)
    add_factory(parser)
    args = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        parser.error(NO_GPU)
    from mixorder.errors import Decline, DeclineReason
    from mixorder.inductor.config import without_autograd_cache
    from mixorder.report import RegionRecord, collect

    example = make(parser, args.factory, "cuda")
    torch.compiler.reset()
    print("Compiling, and timing schedules: some seconds for each region.", flush=True)
    with without_autograd_cache(), collect() as records:
        step_of(example, {"mixorder": True, "mixorder_autotune": True})()
        torch.cuda.synchronize()
    regions = [record for record in records if isinstance(record, RegionRecord)]
    left = [r for r in records if isinstance(r, Decline) and r.reason is DeclineReason.SLOWER]
    print("\n".join([text(regions), *(f"Left to Inductor: {decline.detail}" for decline in left)]))
    return 0 if any(record.planning.tuning for record in regions) or left else 1


def text(records: Sequence[RegionRecord]) -> str:
    """A line per region: its source, its size, and the gain from tuning."""
    from mixorder.inspection.table import schedule_of, source, table

    rows = [["region", "from", "rows x cols", "schedule", "tuned"]]
    for record in records:
        tuned = str(record.planning.tuning or "not tuned")
        rows.append([record.name, source([record]), str(record.space), schedule_of(record), tuned])
    before, after = (
        sum(getattr(tuning, name) for record in records if (tuning := record.planning.tuning))
        for name in ("heuristic_us", "best_us")
    )
    return f"{table(rows)}\n\n{len(records)} regions: {before:.1f} -> {after:.1f} us"
