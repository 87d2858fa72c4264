"""No kernel waits without end: each loop of a text that may wait counts down, or up to a number."""

from __future__ import annotations

import re

import graphs
import pytest
from test_producers import kernel_of
from test_wide_offsets import WHOLE
from waits import unbounded

from mixorder.codegen.exchange import Record, word
from mixorder.ir.reductions import AMAX
from mixorder.strategies.cooperative import COOPERATIVE


@pytest.mark.parametrize(("rows", "cols"), [(16384, 4096), (16384, 1024), (2048, 12000)])
def test_values_of_rows_from_producers(rows: int, cols: int) -> None:
    """Other kernels: tests/codegen/test_wide_offsets.py."""
    _, _, source = kernel_of(rows, cols)
    assert "while " in source.text and unbounded(source.text) == []


ENDLESS = {
    "no count": "while tl.min((w != -1).to(tl.int32)) == 0:\n    w = tl.load(p)",
    "a count that is not needed": "while (w == 0) | (n > 0):\n    w = tl.load(p)\n    n -= 1",
    "a count that starts again": "while (w == 0) & (n > 0):\n    n -= 1\n    n = 5",
    "a count in a branch": "while (w == 0) & (n > 0):\n    if w:\n        n -= 1",
    "a limit that grows": "while n < most:\n    most = most + 1\n    n += 1",
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_is_found(what: str) -> None:
    assert unbounded(ENDLESS[what])


@pytest.mark.parametrize("gone", ["sub.u32 n, n, 1; ", "@!m bra done; ", "setp.ne.and.u32 m, n, 0, m; "])
def test_what_is_found_in_assembly(gone: str) -> None:
    text = Record(AMAX, 2, 12).total("p", "seen", "polls")
    assert unbounded(text) == [] and gone in text
    assert unbounded(text.replace(gone, ""))


def test_a_slot_is_written_in_one_way() -> None:
    """So that none has the bits of an empty one: NaN may have any."""
    strategy, what = COOPERATIVE.name, "rows"
    loops, schedule = graphs.run_by(COOPERATIVE, graphs.merged(graphs.only(WHOLE[strategy, what]())))
    texts = [COOPERATIVE.generate(loops, schedule, "test")[0].text, kernel_of(16384, 4096)[2].text]
    for text in texts:
        stores = [line for line in text.splitlines() if "tl.store(" in line and "mailbox_ptr" in line]
        assert stores
        for line in stores:
            (value,) = re.findall(r"tl\.where\((\w+) == \1,", line)
            assert word(value) in line
