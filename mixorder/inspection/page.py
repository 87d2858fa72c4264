"""A report as one HTML page: its text, then each kind of region with bars of its time, its loops and kernels.

No script, no font, no file beside it. What is wider than the screen scrolls by itself.
"""

from __future__ import annotations

import jinja2

from .findings import Findings
from .table import by_saving, schedule_of, source, text

_PAGE = """\
<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>mixorder</title><style>
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1em; max-width: 88em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.15em; margin-top: 2em; } meter { width: 60%; height: 1.2em; }
.without::-moz-meter-bar { background: #c2571a; } .with::-moz-meter-bar { background: #1e8a62; }
.without::-webkit-meter-optimum-value { background: #c2571a; }
.with::-webkit-meter-optimum-value { background: #1e8a62; }
pre { overflow-x: auto; overflow-wrap: normal; font-size: 12.5px; line-height: 1.35; }
summary { cursor: pointer; padding: .4em 0; }
</style></head><body><h1>What mixorder does to this model</h1>
<pre>{{ text }}</pre>
{% if kinds %}<p>Bars are predicted times, all to one scale.</p>{% endif %}
{% for kind in kinds %}
{% set region = regions[kind[0]] %}{% set takes = region.expected %}
<h2>{{ source(kind) }}: {{ region.space }} (region {{ kind[0] }}
{%- if kind | length > 1 %} and {{ kind | length - 1 }} like it{% endif %})</h2>
<ul>{% for line in region.provenance.lines[:4] %}<li><code>{{ line }}</code></li>{% endfor %}</ul>
{{ bar("Without", takes.launches_apart, takes.apart_us) }}
{{ bar("With", takes.launches, takes.ours_us) }}
<p>{{ region.strategy }}: {{ schedule_of(region) }}. Reads {{ region.inputs | join(", ") }}.
Writes {{ region.outputs | join(", ") }}.</p>
<details><summary>Loops</summary><pre>{{ report.graph(kind[0]) }}</pre></details>
<details><summary>Triton</summary><pre>{{ report.kernel(kind[0]) }}</pre></details>
{% endfor %}
</body></html>
"""
_BAR = """\
{% macro bar(way, launches, us) -%}
<div>{{ way }} mixorder: launches: {{ launches }}, us: {{ "%.0f" | format(us) }}

<br><meter class="{{ way | lower }}" max="{{ most }}" value="{{ us }}"></meter></div>
{%- endmacro -%}
"""


def page(report: Findings) -> str:
    """The whole page."""
    regions = report.regions
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_BAR + _PAGE)
    return template.render(
        report=report,
        regions=regions,
        kinds=by_saving(report),
        most=max((us for r in regions for us in (r.expected.apart_us, r.expected.ours_us)), default=0),
        text=text(report, details=True, width=160),
        source=lambda kind: source([regions[i] for i in kind]),
        schedule_of=schedule_of,
    )
