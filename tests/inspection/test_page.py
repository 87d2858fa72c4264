"""The page of a report: one valid file for phones and screens, with labelled pictures."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from support import quantised
from torch import nn

import mixorder
from mixorder.inspection.explanation import Report
from mixorder.inspection.flow import after, before
from mixorder.inspection.page import page
from mixorder.schedule.device import H200

VOID = {"meta", "br"}


class Nesting(HTMLParser):
    """Asserts that elements nest; lists all of them with their attributes, and by their class the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report() -> Report:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(768, 768), nn.LayerNorm(768), nn.Linear(768, 768), nn.RMSNorm(768))
        x = torch.randn(4096, 768, dtype=torch.bfloat16, requires_grad=True)
    return mixorder.explain(model.bfloat16())(x)


def test_the_page_is_one_valid_file_without_fixed_widths(report: Report) -> None:
    text = page(report)
    parser = Nesting()
    parser.feed(text)
    assert parser.open == []
    assert "<script" not in text and "src=" not in text and "href=" not in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in parser.found
    assert "@media (prefers-color-scheme: dark)" in text and "color-scheme: light dark" in text
    assert not [tag for tag, attrs in parser.found if "width" in attrs]
    # What can be wider than a phone scrolls by itself.
    assert text.count("<div class='wide'><table>") == text.count("<table") and "<pre>" not in text
    assert not re.search(r"[^-]width: \d+(?:px|em)", text)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
FRAME = """<!DOCTYPE html>
<iframe id=f width={width} height=800 srcdoc="{page}"></iframe><pre id=found></pre>
<script>
f.onload = () => {{
  const page = f.contentDocument.documentElement;
  found.textContent = JSON.stringify([page.scrollWidth, page.clientWidth]);
}}
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="there is no browser")
def test_in_a_browser_the_page_never_scrolls_sideways(report: Report, tmp_path: Path) -> None:
    """On a phone."""
    shown, width = tmp_path / "shown.html", 360
    shown.write_text(FRAME.format(width=width, page=html.escape(page(report), quote=True)))
    quiet = [f"--disable-{name}" for name in ("gpu", "background-networking", "component-update", "sync")]
    command = [str(BROWSER), "--headless", "--no-sandbox", *quiet, f"--user-data-dir={tmp_path / 'profile'}"]
    dumped = [*command, "--dump-dom", shown.as_uri()]
    done = subprocess.run(dumped, capture_output=True, text=True, timeout=120)
    (text,) = re.findall(r"<pre id=\"found\">(.*?)</pre>", done.stdout)
    scrolled, visible = json.loads(html.unescape(text))
    assert scrolled <= visible > width / 2


def test_pictures_show_the_kernels_of_both_ways(report: Report) -> None:
    text = page(report)
    pictures = re.findall(r"<table.*?</table>", text, re.DOTALL)
    assert len(pictures) == 2 * len(report.regions) and text.count("def triton_mixorder") == len(pictures)
    for i, region in enumerate(report.regions):
        graph = report.graph_of(i)
        apart, fused = before(region, graph, report.device), after(region, graph)
        assert sum(k.launches for k in apart.kernels) == region.expected.launches_apart > 2
        assert sum(k.launches for k in fused.kernels) == region.expected.launches == 2
        for flow, shown in zip((apart, fused), pictures[2 * i : 2 * i + 2], strict=True):
            assert re.findall(r"box kernel'>(.*?)<br>", shown) == [kernel.title for kernel in flow.kernels]
            results = [t for t in flow.tensors.values() if t.kind == "result"]
            assert len(results) == len(region.outputs)
            # Each result is written once, by a kernel that is shown.
            written = [key for k in flow.kernels for key in k.writes if flow.tensors[key].kind == "result"]
            assert len(set(written)) == len(written) == len(results)
            assert "partial sums" in shown and "width: 100%" in shown


def test_results_are_named_after_what_they_are_the_gradients_of(report: Report) -> None:
    titles = {
        tensor.title
        for i, region in enumerate(report.regions)
        for tensor in after(region, report.graph_of(i)).tensors.values()
        if tensor.kind == "result"
    }
    assert {
        "dx",
        "dw of 1.weight",
        "db of 1.bias",
        "dw of 3.weight",
        "db of 0.bias",
        "db of 2.bias",
    } == titles


def test_a_region_without_reductions_has_pictures_too() -> None:
    x = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    found = mixorder.explain(lambda x: quantised.rowwise_both(x))(x)
    _, turned = found.regions
    assert not turned.outer and "<table" in page(found) and "inner: none; outer: none" in found.details
    (graph,) = found.graphs
    for flow in (before(turned, graph, H200), after(turned, graph)):
        (kernel,) = flow.kernels
        assert kernel.title == "no reduction" and len(kernel.reads) == 2 and len(kernel.writes) == 1
