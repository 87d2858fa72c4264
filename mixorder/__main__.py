"""`python -m mixorder [command] ...`: explain, bench, tune, doctor or, where none is named, the demo.

Exit status: the command's; 70 where it crashed; 130 where it was interrupted; 141 where the reader of its
output has gone.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
import traceback

from mixorder.errors import NO_DOUBLE_BACKWARD, in_a_line

COMMANDS = ("demo", "explain", "bench", "tune", "doctor")
HELP = """\
usage: python -m mixorder [command] [arguments]

mixorder is a plugin for torch.compile that makes the backward of norms faster. A compile uses it with
options={"mixorder": True}, or with MIXORDER=1 in the environment. These commands show what it does:

  python -m mixorder doctor                          checks the installation, and says what to do
  python -m mixorder explain package.module:factory  start here: what mixorder would do to your model
  python -m mixorder bench package.module:factory    on a GPU: times steps without and with mixorder
  python -m mixorder tune package.module:factory     on a GPU: times schedules of kernels, keeps the fastest
  python -m mixorder demo                            trains one step of a small transformer without and with
                                                     mixorder, and compares; the default command
  python -m mixorder --version

A factory is a function of yours that returns a model and its inputs. `python -m mixorder explain --help` has
an example; each command has its own --help."""


def main() -> int:
    """Run the command that the arguments name; its exit status."""
    try:
        try:
            return _run(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would fail once more, at its end
        return 141
    except Exception as error:  # apart from the status 1 of "nothing is fused"
        if NO_DOUBLE_BACKWARD in str(error):
            print(f"python -m mixorder: error: the model needs {in_a_line(error)}", file=sys.stderr)
            return 2
        traceback.print_exc()
        return os.EX_SOFTWARE


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["--version"]:
        from mixorder import __version__

        print(f"mixorder {__version__}")
        return 0
    if arguments[:1] in (["-h"], ["--help"]):
        print(HELP)
        return 0
    command = "demo"
    if arguments and not arguments[0].startswith("-"):
        command = arguments.pop(0)
    if command not in COMMANDS:
        print(f"python -m mixorder: error: {_unknown(command)}", file=sys.stderr)
        return 2
    if command != "doctor" and (why := _cannot_run(command, arguments)):
        print(f"python -m mixorder: error: {command} cannot run: {why}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"mixorder.cli.{command}").main(arguments))


def _cannot_run(command: str, arguments: list[str]) -> str:
    """Why a command cannot run here; empty if it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed; install it as https://pytorch.org says"
    from mixorder.options import switched_off

    compiles = command != "explain" or not {"--time", "--check"}.isdisjoint(arguments)
    return "MIXORDER=0 is set" if compiles and switched_off() else ""


def _unknown(command: str) -> str:
    close = difflib.get_close_matches(command, COMMANDS, 1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"there is no command {command!r}{meant}; there are {', '.join(COMMANDS)}"


if __name__ == "__main__":
    sys.exit(main())
