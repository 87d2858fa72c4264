"""Arguments that several scripts take."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence


def parser(description: str) -> argparse.ArgumentParser:
    """A parser that shows a script's whole docstring."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parse_shapes(text: str) -> list[tuple[int, int]]:
    """(rows, cols) of each item of a list such as `4096x768,8192x8192`, separated by commas or spaces."""
    shapes = []
    for item in re.split(r"[,\s]+", text.strip(", ")):
        match = re.fullmatch(r"(\d+)x(\d+)", item)
        if not match:
            raise argparse.ArgumentTypeError(f"shape {item!r}: expected ROWSxCOLS, as 4096x768")
        shapes.append((int(match[1]), int(match[2])))
    return shapes


def names_of(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = re.split(r"[,\s]+", text.strip(", "))
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown}: expected some of {', '.join(allowed)}")
        return list(dict.fromkeys(names))

    return parse
