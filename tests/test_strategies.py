"""The registry of strategies: what every entry must do, and that nothing else has to know an entry."""

from __future__ import annotations

import ast
import dataclasses
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32

import mixorder
from mixorder import pipeline, strategies
from mixorder.errors import Decline
from mixorder.ir.verify import verify
from mixorder.lowering.tile import lower_tile
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.plan import Plan
from mixorder.schedule.predicted import Expected
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.strategies.persistent import PERSISTENT
from mixorder.tune import tuner

PACKAGE = Path(mixorder.__file__).parent
FILES = [sys.modules[f"mixorder.strategies.{path.stem}"] for path in PACKAGE.glob("strategies/[a-z]*.py")]
ENTRIES = {name for file in FILES for name, value in vars(file).items() if isinstance(value, Strategy)}
OPTIONS = graphs.ALWAYS
WIDE = {
    "rms": graphs.rms_norm_backward(2048, 16384),
    "layer": graphs.layer_norm_backward(2048, 12288, f32),
    "narrow": graphs.layer_norm_backward(2048, 768, bf16),
    "bias": graphs.traced(lambda a, b: (product := a * b, product.sum(0)), *[((2048, 768), bf16)] * 2),
}
DECLINED = {
    # What a program would have to keep of these rows does not fit into its registers.
    *{("rms", "persistent"), ("layer", "persistent")},
    # A reduction along rows needs them whole.
    *{("rms", "blocks of columns"), ("layer", "blocks of columns"), ("narrow", "blocks of columns")},
    # No sum is compensated, or what a program keeps of a row does not fit without the compensation either.
    # Their reductions span more than a tile.
    *((norm, "blocks in a tile") for norm in ("rms", "layer", "narrow", "bias")),
    *((norm, "two-pass") for norm in ("rms", "layer", "narrow", "bias")),
    *((norm, "whole groups") for norm in ("rms", "layer", "narrow", "bias")),
}


def test_every_entry_is_listed_once() -> None:
    assert {
        "COLUMN_BLOCKS",
        "PERSISTENT",
        "COOPERATIVE",
        "TILE",
        "TWO_PASS",
        "WHOLE_GROUPS",
    } == ENTRIES
    assert len({s.name for s in STRATEGIES}) == len({s.rank for s in STRATEGIES}) == len(ENTRIES)


def test_no_other_module_names_an_entry() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "strategies":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            assert not ENTRIES & set(names), path
            assert not (
                isinstance(node, ast.Constant)
                and node.value in {s.name for s in STRATEGIES} - {"cooperative"}
            ), path


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
@pytest.mark.parametrize("norm", WIDE)
def test_an_entry_declines_or_gives_a_schedule_of_its_own_space(norm: str, strategy: Strategy) -> None:
    merged = graphs.merged(graphs.only(WIDE[norm]))
    try:
        strategy.applies(merged)
        loops = strategy.transform(merged, H200)
        facts = strategy.facts(loops)
        schedule = strategy.choose(facts, H200, 0)
    except Decline:
        assert (norm, strategy.name) in DECLINED
        return
    assert (norm, strategy.name) not in DECLINED
    assert (facts.rows, facts.batch * facts.cols) == tuple(int(axis.size) for axis in merged.tile_axes)
    placed = verify(strategy.place(loops, schedule), strategy.form)
    main, final = strategy.generate(placed, schedule, "test")
    assert main.written and final.written and main.grid > 0
    assert strategy.title(schedule).startswith(strategy.name)
    space = strategy.search_space(facts, H200, schedule, False)
    assert space.start == schedule and space.legal(schedule)
    assert bool(space.near(schedule)) == bool(space.field_groups)


def test_a_program_whose_reductions_end_within_a_tile() -> None:
    """Only one entry runs it."""
    program = lower_tile(graphs.within_tile(graphs.block_scales(4096, 2048)))
    (strategy,) = (s for s in STRATEGIES if s.tile_local and not s.over_reduction_groups)
    strategy.applies(program)
    facts = strategy.facts(strategy.transform(program, H200))
    assert facts.numel == 4096 * 2048 and facts.load_bytes == 2
    schedule = strategy.choose(facts, H200, 0)
    (source,) = strategy.generate(verify(program, strategy.form), schedule, "test")
    assert source.grid == 4096 * 2048 // math.prod(schedule.extents)
    setting = pipeline.Setting(H200, tuple(s for s in STRATEGIES if s is not strategy))
    graph = graphs.block_scales(4096, 2048, transposed=False)
    assert pipeline.run(graph, OPTIONS, setting)[0].strategy != strategy.name


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Strategy]:
    """The strategy of docs/contributing.md, whose file is one of the package's."""
    text = (PACKAGE.parent / "docs" / "contributing.md").read_text()
    (file,) = re.findall(r"```python\n(\"\"\".*?)```", text.split("## Add a strategy")[1], re.DOTALL)
    (tmp_path / "row_by_row.py").write_text(file)
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(tmp_path)])
    (new,) = set(strategies.discover()) - set(STRATEGIES)
    yield new
    sys.modules.pop("mixorder.strategies.row_by_row")


def nine_times(*args: Any) -> Expected:
    found = PERSISTENT.predict(*args)
    return dataclasses.replace(found, fused_us=9 * found.fused_us)


def test_a_file_is_planned_reported_predicted_and_tuned(made_up: Strategy) -> None:
    """All that a strategy takes is its file."""
    records = []
    slow = dataclasses.replace(made_up, predict=nine_times)
    for found in (STRATEGIES, strategies.discover(), (slow,)):
        setting = pipeline.Setting(H200, found)
        records += pipeline.run(graphs.rms_norm_backward(32768, 768), OPTIONS, setting)
    usual, new, last = records
    assert (usual.strategy, new.strategy) == ("persistent", made_up.name)
    assert new.schedule.tile_rows == 1 < usual.schedule.tile_rows
    assert "axis 0: split 132, tile 1\n" in str(new.schedule) and "XBLOCK" in new.kernels[0].text
    assert last.expected.fused_us == pytest.approx(9 * new.expected.fused_us)
    merged = graphs.merged(graphs.only(graphs.rms_norm_backward(8192, 8192)))
    loops, schedule = graphs.run_by(PERSISTENT, merged)
    chosen = tuner.Chosen(PERSISTENT, loops, PERSISTENT.facts(loops), schedule)
    problem = tuner.Problem("r", "rms", merged, chosen, (*STRATEGIES, made_up), torch.device("cpu"), H200)
    assert made_up.name in tuner.variants(problem)


def test_what_no_strategy_takes_is_declined() -> None:
    def never(*args: Any) -> Plan:
        raise Decline(mixorder.errors.DeclineReason.ROW_TOO_WIDE, "for the test")

    graph = graphs.pair_graph()
    before = graphs.snapshot(graph)
    setting = pipeline.Setting(H200, (dataclasses.replace(PERSISTENT, choose=never),))
    assert pipeline.run(graph, OPTIONS, setting) == [] and graphs.snapshot(graph) == before
