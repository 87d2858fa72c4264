"""What is told of two versions of torch: sums over the graphs with a region, and those with more bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab import traffic


def test_sums_and_graphs_with_more_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    region = ["8x8 persistent"]
    graphs = {
        "less": ([3, 20_000_000, 0, []], [2, 10_000_000, 1_000_000, region]),
        "more": ([2, 10_000_000, 0, []], [2, 12_000_000, 0, region]),
        "launches": ([1, 10_000_000, 0, []], [2, 10_000_000, 0, region]),
        "none": ([2, 10_000_000, 0, []], [2, 10_000_000, 0, []]),
    }
    lines = [
        json.dumps({"key": key, "family": key, "torch": "2.15", "stock": stock, "ours": ours})
        for key, (stock, ours) in graphs.items()
    ]
    path = tmp_path / "found.jsonl"
    path.write_text("\n".join([*lines, json.dumps({"key": "failed", "family": "x", "error": "E: e"})]))
    traffic.compare([path])
    told = capsys.readouterr().out.splitlines()
    assert told[:4] == [
        "failed: ['E: e']",
        "4 graphs of 4 families, 3 with a region",
        "| 2.15 | stock | 6 | 40 | 0 |",
        "| 2.15 | ours | 6 | 32 | 1 |",
    ]
    assert [line.split()[0] for line in told[4:]] == ["more", "launches"]
