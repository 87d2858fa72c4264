"""Nothing of a row is held over a reduction: each stage reads, and computes, what it needs again."""

from __future__ import annotations

from typing import Any

import graphs
from graphs import bf16, f32, merged, only, traced

from mixorder.ir.program import Compute, Load, LoopProgram, Reduce, operands
from mixorder.ir.verify import Form, verify
from mixorder.schedule.facts import facts_of
from mixorder.transform.reread import reread


def layer(cols: int = 512) -> LoopProgram:
    return merged(only(graphs.layer_norm_backward(4096, cols)))


def held_over_reductions(program: LoopProgram) -> set[str]:
    """Full tiles that are made before a reduction's end, and used after it."""
    main = program.nests[0]
    deps, tile = main.dependence(), {axis.symbol for axis in program.tile_axes}
    made, held = set(), set()
    done: set[str] = set()
    for before, stmt in zip([None, *main.body], main.body, strict=False):
        if isinstance(before, Reduce) and not isinstance(stmt, Reduce):
            done |= made
        held |= {n for n in operands(stmt) if n in done}
        if isinstance(stmt, Load | Compute) and tile <= deps[stmt.name]:
            made.add(stmt.name)
    return held


def test_no_tile_outlives_its_stage() -> None:
    program = layer()
    assert held_over_reductions(program)
    again = reread(program)
    verify(again, Form.MERGED)
    assert held_over_reductions(again) == set()
    assert facts_of(again).held_words < facts_of(program).held_words


def test_each_full_tile_is_read_once_per_stage_and_the_later_read_says_so() -> None:
    main = reread(layer()).nests[0]
    loads = [
        s for s in main.body if isinstance(s, Load) and {"x", "y"} <= {str(n) for n in s.index.free_symbols}
    ]
    buffers = [s.buffer for s in loads]
    assert {buffers.count(b) for b in buffers} == {2}  # dy and x, in both stages
    assert [s.again for s in loads] == [False, False, True, True]
    assert "reload" in str(main)


def test_results_of_a_row_are_computed_once() -> None:
    main = reread(layer()).nests[0]
    names = [s.name for s in main.statements if isinstance(s, Load | Compute | Reduce)]
    assert len(names) == len(set(names))
    deps = main.dependence()
    rows = [n for n in names if not any(str(s) == "y" for s in deps[n])]
    assert not any(".again" in n for n in rows)


def test_column_vectors_stay_before_the_loop() -> None:
    program = layer()
    assert reread(program).nests[0].preamble == program.nests[0].preamble != ()


def test_a_program_without_stages_stays_as_it_is() -> None:
    def function(x: Any, y: Any) -> Any:
        product = x * y
        return product, product.sum(0)

    program = merged(only(traced(function, ((4096, 512), bf16), ((4096, 512), bf16))))
    assert [s for s in reread(program).nests[0].body if isinstance(s, Load) and s.again] == []
    assert len(reread(program).nests[0].body) == len(program.nests[0].body)


def test_three_stages() -> None:
    def function(x: Any, dy: Any) -> Any:
        centred = x - x.mean(1, keepdim=True)
        hat = centred / centred.amax(1, keepdim=True)
        return hat * dy, (hat * dy).sum(0)

    program = reread(merged(only(traced(function, ((512, 256), f32), ((512, 256), f32)))))
    verify(program, Form.MERGED)
    reads = [s.name for s in program.nests[0].body if isinstance(s, Load) and s.buffer == "in0"]
    assert len(reads) == 3 and held_over_reductions(program) == set()
