"""Write docs/how_it_works.md: one region, from the FX graph to Triton, as mixorder dumps it.

The text is in this file. The IR is what the pass writes into `mixorder_dump_dir` for the backward of RMSNorm
in bf16, 32768 x 768, on the meta device. `--check` compares with the file instead of writing it; exit status
1 if they differ. tests/test_docs.py does the same. Needs no GPU.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import mixorder

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how_it_works.md"
ROWS, COLS = 32768, 768

HEAD = f"""\
# How it works

For those who want to know how a region becomes a kernel, and for those who change mixorder. The
[glossary](glossary.md) defines the terms.

`mixorder/pipeline.py` has one call for each stage, in this order:

```
FX graph of forward and backward together
   |
   v  round          half-precision values that are compared are marked to round as in eager mode
FX graph of forward or backward, after Inductor's own passes
   |
   |  sizes          symbolic sizes are read from the graph's inputs, not from intermediate tensors
   |  canonicalise   a maximum of all elements, a packed byte, or a reduction of a transposed tensor becomes a
   |                 reduction that a region can take
   |  find, grow     inner and outer reductions of the same elements, and the pointwise operators around them
   v                 -> Region, or Decline with a reason
   |  lower          pointwise operators through Inductor's own lowerings
   v                 -> LoopProgram:  for row: for col: ...    for col: for row: ...
   |  relative       a sum of exponentials along a row becomes differences to the row's maximum, and their sum
   |  one_hot        the sum of a row whose elements are equal in all columns but one needs no loop
   |  split          outer reduction -> partial_accumulate per program; one nest over rows for both, and one
   |                 that adds up the partials
   |  same_bits      cheaper instructions with the same results, such as functions without branches
   |  reorder        statements in order; what does not depend on rows comes before their loop
   v  fma            -> LoopProgram:  for row: for col: both; in fp32, dx by fused multiply-adds
   |  transform      by the first strategy that accepts the program, or the faster one for reduction groups:
   |                   blocks        no reduction along rows: a program has a block of the columns
   |                   persistent    a program holds a row from its first reduction to its last
   |                   cooperative   several programs share a row, and exchange partial reductions
   |                   two-pass      sums over reduction groups: three kernels
   |                   whole groups  groups that fit a program: one kernel, and one for sums over several
   |                   tile          reductions over blocks only: a program has whole blocks
   |  facts          bytes, registers and instructions for each element
   |  schedule       rows per tile, programs, warps, pipeline stages
   |  search         of this region and those that compute less of it or more, the one predicted to take the
   |                 least time, with what it leaves to Inductor, and does not raise the graph's peak memory
   v                 -> LoopProgram, Plan
   |  tune           on request: time similar schedules, other strategies, and Inductor's own kernels
   |  gate           a region is left to Inductor if it takes longer, as timed or else as expected of its kind
   |  in_place       dx takes the memory of a dy that nothing reads afterwards
   v                 -> LoopProgram, Plan
   |  codegen        main kernel and finalisation
   v                 -> Triton source
   |  rewrite        launches replace the region, all or nothing
   |  canonicalise   reductions that no region has taken become the original operators again
   v
FX graph with kernel launches, mostly two, in place of the region; Inductor carries on
```

Block-scaled casts have one stage between `lower` (`lowering/tile.py`) and `transform`: in `contract`,
products and sums of one operator become fused multiply-adds, as in eager's kernels. Their strategy
(`strategies/tile.py`) also changes the program. Casts behind a norm need a sum of each whole row. Some
programs of the kernel compute these sums, and programs with tiles read them. Sums over all rows become
partial results.

The rest of this page follows one region from the FX graph to Triton: the backward of `nn.RMSNorm({COLS})` in
bf16, {ROWS} rows. `python tools/walkthrough.py` writes the page from the output of each stage, without a GPU
(`device: cpu`), and a test checks that it is up to date. To see the same for your own model, set
`MIXORDER_DUMP=<directory>`: each block below is one of the files there."""

# Name of the dumped file without its number: heading, language, and description.
STAGES: dict[str, tuple[str, str, str]] = {
    "fx.txt": (
        "The graph",
        "text",
        "The backward after Inductor's post-grad passes. `sum_2` runs along each row and is "
        "needed for dx; `sum_1` runs over all rows, and is dw. Both read the gradient and the input.",
    ),
    "region.txt": (
        "Find and grow",
        "text",
        "An inner and an outer reduction that read the same large tensors make a pair "
        "(`region/find.py`); pointwise operators and views around them join it (`region/grow.py`). If a pair "
        "cannot be fused, the result is a reason ([reasons.md](reasons.md)). Here the whole graph "
        "belongs to the region.",
    ),
    "loops.txt": (
        "Lower",
        "text",
        "Inductor's own lowerings turn each operator into scalar operations (`lowering/lower.py`). There are "
        "two nests. The outermost loop of the inner reduction runs over rows, and that of the outer one over "
        "columns. Two kernels would read both tensors twice.",
    ),
    "split.txt": (
        "Split",
        "text",
        "The outer reduction becomes pointwise: each of `num_splits` programs adds its rows to its own "
        "partial sum, and a second nest adds up the partials (`transform/split.py`). Nothing depends on the "
        "order of the loops over columns and rows any more. So both nests are one over rows, which reads "
        "each tensor once.",
    ),
    "merged.txt": (
        "Reorder",
        "text",
        "Statements that need no reduction come first, and those that do not depend on the row are hoisted "
        "(`once:`, `transform/reorder.py`). In fp32, dx is computed by fused multiply-adds, "
        "which do not round the product (`transform/fma.py`). Other strategies transform this program "
        "further. In `transform/cooperative.py`, several programs share a wide row. They wait for each other "
        "for a bounded time; a program that has waited longer computes the others' parts itself.",
    ),
    "plan.txt": (
        "Plan",
        "text",
        "A few numbers of the region and of the device, here an H200, decide rows per tile, warps, programs "
        "and pipeline stages (`num_stages`; `schedule/persistent.py`, `docs/lab/tuning.md`). Axis 0 is the "
        "rows: `split` programs divide them, and each walks through its rows, one tile after the other. Axis "
        "1 is the columns: a tile has a power of two that holds them all. Each program of the second stage "
        "adds up the partial results of a block of columns. With `dependent`, this stage is launched while "
        "the main kernel still runs. `schedule/plan.py` explains the other fields.",
    ),
    "kernel.py": (
        "Generate",
        "triton",
        "The main kernel and the finalisation (`codegen/kernel.py`). Programs are persistent: each loops "
        "over several tiles. The order of all sums is fixed, so gradients are bitwise identical from run to "
        "run. If nothing reads the incoming gradient afterwards, as between two layers, dx reuses its memory "
        "(`transform/in_place.py`).",
    ),
    "fx_after.txt": (
        "Rewrite",
        "text",
        "Two launches replace the region in the graph, and Inductor continues (`rewrite/rewrite.py`; only "
        "the modules of `rewrite/` change the graph).",
    ),
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    args = parser.parse_args(argv)
    text = page()
    if not args.check:
        PAGE.write_text(text)
    elif text != PAGE.read_text():
        print(f"{PAGE.name} is not what the pass does now: run python tools/walkthrough.py", file=sys.stderr)
        return 1
    return 0


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for number, (name, text) in enumerate(dumped(), 1):
        title, language, said = STAGES[name]
        parts.append(f"## {number}. {title}\n\n{_wrapped(said)}\n\n```{language}\n{text.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def dumped() -> list[tuple[str, str]]:
    """Each file's name without its number, and its text, in order."""
    with torch.device("meta"):
        model = nn.RMSNorm(COLS, dtype=torch.bfloat16)
        x = torch.randn(ROWS, COLS, dtype=torch.bfloat16, requires_grad=True)
    with tempfile.TemporaryDirectory() as folder:
        options = {"mixorder_dump_dir": folder, "mixorder_strict": True}
        report = mixorder.explain(model, options=options)(x)
        assert len(report.regions) == 1, report
        files = sorted(Path(folder).glob("*/region0/*"))
        texts = [(path.name.partition("_")[2], plain(path.read_text())) for path in files]
    assert [name for name, _ in texts] == list(STAGES), [name for name, _ in texts]
    return texts


def plain(text: str) -> str:
    """The text without what differs from process to process, and with FX's arguments on short lines."""
    text = re.sub(r"call_function\[target=(?:torch\.ops\.)?", "[", text)
    text = re.sub(r"\[num_users=\d+\] = ", "", text)
    text = re.sub(
        r"(  outputs: [^\n]*)\n.*", r"\1", text, flags=re.DOTALL
    )  # a region's nodes are the graph's
    return re.sub(r"kernel_idx: \d+, constant_args_idx: \d+, ", "", text)


def _wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 118)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
