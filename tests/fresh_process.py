"""Run code in a process that has imported nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

HANG_S = 3600  # for a child process: catches one that hangs, not a machine that is busy


def python(code: str, **env: str) -> str:
    """The output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FORKS = """
import json, os, sys
{first}
for code in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        exec(code, {{"__name__": "__main__"}})
        print("\\0", end="", flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""


def python_after(first: str, codes: Sequence[str], **env: str) -> list[str]:
    """The outputs of programs that each go on in a fork of one fresh interpreter, which has run `first`."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS.format(first=first), json.dumps(codes)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return [text.strip() for text in done.stdout.split("\0")[:-1]]
