"""Small results through a workspace: the stores to it, and the copies."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import sympy
from graphs import bf16, merged, traced, within_tile
from support import quantised
from support.quantised import RECIPES

from mixorder.ir.program import AxisClass, BufferRole, Load, LoopProgram, Store
from mixorder.ir.verify import Form, verify
from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.schedule.schedule import Schedule
from mixorder.transform import staged as transform


def planned(function: Any, count: int = 1, rows: int = 256) -> tuple[LoopProgram, Schedule]:
    region = within_tile(traced(lambda *x: function(*x), *[((rows, 512), bf16)] * count))
    program = merged(region)
    schedule = tile.choose(tile.facts_of_tile(program), H200)
    return program, dataclasses.replace(schedule, staged=True)


def staged(program: LoopProgram, schedule: Schedule) -> LoopProgram:
    return transform.staged(program, tile.staged_results(program, schedule))


def test_stores_and_copies() -> None:
    program, schedule = planned(quantised.mx_both)
    loops = verify(staged(program, schedule), Form.BLOCKED)
    assert [str(b) for b in loops.role(BufferRole.WORKSPACE)] == ["stage0: u8[4096]", "stage1: u8[4096]"]
    main, *copies = loops.nests
    stores = [str(s) for s in main.body if isinstance(s, Store) and s.buffer.startswith("stage")]
    assert [s.split(" = ")[0] for s in stores] == [
        "store stage0[32*i + 256*j + x]",
        "store stage1[512*i + 32*j + y]",
    ]
    assert [str(nest).splitlines() for nest in copies] == [
        [
            "for c in batch(16):",
            "  for r in batch(256):",
            "    %out0.staged: u8 = load stage0[256*c + r]",
            "    store out0[c + 16*r] = %out0.staged",
        ],
        [
            "for c in batch(8):",
            "  for r in batch(512):",
            "    %out2.staged: u8 = load stage1[512*c + r]",
            "    store out2[c + 8*r] = %out2.staged",
        ],
    ]


@pytest.mark.parametrize("name", ["mx_both", "mx_transposed", "blocks_both", "gelu_backward"])
def test_every_element_comes_to_the_place_that_the_graph_states(name: str) -> None:
    """The place in the graph of each point, by both nests."""
    program, schedule = planned(RECIPES[name].function, 2 if name == "gelu_backward" else 1, 512)
    loops = staged(program, schedule)
    direct = {s.buffer: s.index for s in program.nests[0].body if isinstance(s, Store)}
    main = {s.buffer: s.index for s in loops.nests[0].body if isinstance(s, Store)}
    copies = [n for n in loops.nests[1:] if isinstance(n.body[0], Load) and n.body[0].buffer in main]
    assert copies
    for nest in copies:
        load, store = nest.body
        assert isinstance(load, Load) and isinstance(store, Store)
        inner, others = nest.loops
        place = sympy.lambdify([inner.symbol, others.symbol], [load.index, store.index])
        at = dict(place(c, r) for c in range(int(inner.size)) for r in range(int(others.size)))
        assert len(at) == int(loops.buffer(load.buffer).numel)
        symbols = sorted(direct[store.buffer].free_symbols, key=str)
        axes = {a.symbol: int(a.size) for a in program.nests[0].loops if a.kind is not AxisClass.SPLIT}
        for point in _some_points(symbols, axes):
            assert at[int(main[load.buffer].subs(point))] == int(direct[store.buffer].subs(point))


def _some_points(symbols: list[sympy.Symbol], axes: dict[sympy.Symbol, int]) -> list[dict[sympy.Symbol, int]]:
    """The corners, and a point within."""
    corners = [{}]
    for s in symbols:
        corners = [{**one, s: value} for one in corners for value in (0, axes[s] // 3, axes[s] - 1)]
    return corners


def test_a_schedule_that_stages_nothing() -> None:
    program, schedule = planned(quantised.mx_both)
    assert staged(program, dataclasses.replace(schedule, staged=False)) is program


def test_a_staged_result_that_is_not_copied_is_found() -> None:
    program, schedule = planned(quantised.mx_both)
    loops = staged(program, schedule)
    with pytest.raises(ValueError, match="stored as"):
        verify(dataclasses.replace(loops, nests=loops.nests[:-1]), Form.BLOCKED)
