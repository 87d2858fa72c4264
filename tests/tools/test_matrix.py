"""The versions that tools/matrix.sh knows."""

from __future__ import annotations

import re
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def test_versions_and_their_triton() -> None:
    setup = (TOOLS / "setup.sh").read_text()
    versions = dict(line.split("=") for line in setup.splitlines() if "_VERSION=" in line and "$" not in line)
    triton = dict(re.findall(r"\[([\d.]+)\]=([\d.]+)", (TOOLS / "matrix.sh").read_text()))
    assert triton[versions["TORCH_VERSION"]] == versions["TRITON_VERSION"]
    assert [v.rsplit(".", 1)[0] for v in triton] == ["2.11", "2.12", "2.13", "2.14", "2.15"]
