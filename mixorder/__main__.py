"""`python -m mixorder [command] ...`: explain, bench, tune, doctor or, where none is named, the demo."""

from __future__ import annotations

import importlib
import sys

COMMANDS = ("demo", "explain", "bench", "tune", "doctor")


def main() -> int:
    """Run the command that the arguments name; its exit status."""
    arguments = sys.argv[1:]
    command = arguments.pop(0) if arguments and arguments[0] in COMMANDS else "demo"
    return int(importlib.import_module(f"mixorder.cli.{command}").main(arguments))


if __name__ == "__main__":
    sys.exit(main())
