"""Triton's interpreter, for commands that run kernels without a GPU."""

from __future__ import annotations

import importlib.util
import os
import sys

from mixorder.cli.parser import Parser


def interpret_triton(parser: Parser) -> None:
    """Switch Triton to its interpreter. Triton reads the variable while it is imported."""
    for name in ("triton", "numpy"):
        if importlib.util.find_spec(name) is None:
            parser.error(f"{name} is not installed; `python -m mixorder doctor` says more")
    if os.environ.get("TRITON_INTERPRET") != "1":
        os.environ["TRITON_INTERPRET"] = "1"
        if "triton" in sys.modules:
            os.execv(sys.executable, [sys.executable, "-m", "mixorder", *sys.argv[1:]])
