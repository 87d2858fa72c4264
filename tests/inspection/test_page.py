"""The page of a report: one valid file for phones and screens, with bars and kernels."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from fresh_process import HANG_S
from support import quantised
from torch import nn

import mixorder
from mixorder.inspection import table
from mixorder.inspection.explanation import Report
from mixorder.inspection.page import page

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
    assert "color-scheme: light dark" in text
    assert not [tag for tag, attrs in parser.found if "width" in attrs]
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
    done = subprocess.run(dumped, capture_output=True, text=True, timeout=HANG_S)
    (text,) = re.findall(r"<pre id=\"found\">(.*?)</pre>", done.stdout)
    scrolled, visible = json.loads(html.unescape(text))
    assert scrolled <= visible > width / 2


def test_bars_have_the_times_of_both_ways_to_one_scale(report: Report) -> None:
    text = page(report)
    found = re.findall(r'<meter class="(.*?)" max="(.*?)" value="(.*?)">', text)
    assert [name for name, *_ in found] == ["without", "with"] * len(report.regions)
    for name, _, _ in found[:2]:  # in the words of both engines
        assert len(set(re.findall(rf"\.{name}::-[\w-]+ {{ background: (#\w+); }}", text))) == 1
    bars = [(float(most), float(us)) for _, most, us in found]
    regions = report.regions
    takes = [regions[kind[0]].expected for kind in table.by_saving(report)]
    assert [us for _, us in bars] == [us for one in takes for us in (one.apart_us, one.ours_us)]
    assert {most for most, _ in bars} == {max(us for _, us in bars)}
    assert text.count("def triton_mixorder") == 2 * len(report.regions) == 4


def test_the_text_is_not_cut_at_a_terminals_width(report: Report) -> None:
    (shown,) = re.findall(r"<pre>(.*?)</pre>", page(report).split("<details>")[0], re.DOTALL)
    longest = max(map(len, html.unescape(shown).splitlines()))
    assert table.WIDTH < longest <= 160 and max(map(len, report.details.splitlines())) <= table.WIDTH


def test_what_the_model_says_is_no_markup(report: Report) -> None:
    assert "noted <b> &" not in page(dataclasses.replace(report, notes=("noted <b> &",)))
    assert "noted &lt;b&gt; &amp;" in page(dataclasses.replace(report, notes=("noted <b> &",)))


def test_a_region_without_reductions_has_bars_too() -> None:
    x = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    found = mixorder.explain(lambda x: quantised.rowwise_both(x))(x)
    _, transposed = found.regions
    assert not transposed.outer and "inner: none; outer: none" in found.details
    assert page(found).count("<meter") == 2 * len(found.regions)
