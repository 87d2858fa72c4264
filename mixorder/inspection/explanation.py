"""The report that `mixorder.explain` returns: the findings, as text and as a page."""

from __future__ import annotations

from pathlib import Path

from .findings import Findings
from .page import page
from .table import text


class Report(Findings):
    """What mixorder does to a model. `print` shows it as text; `Findings` lists the fields."""

    def html(self, path: str | Path) -> Path:
        """Write a page that needs no other file: the report, and each kind of region with bars of its time,
        its loops and its kernels. Returns the path.

        Raises OSError if the file cannot be written.
        """
        path = Path(path)
        path.write_text(page(self))
        return path

    @property
    def details(self) -> str:
        """The report with each region's reductions, launches and schedule."""
        return text(self, details=True)

    def __str__(self) -> str:
        return text(self)

    def __repr__(self) -> str:
        totals = self.totals
        return f"<mixorder Report: fused regions: {totals.regions}, near misses: {totals.misses}>"
