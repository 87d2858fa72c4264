"""The CPU suite with each torch that mixorder supports and its triton, each in a separate environment.

    python tools/matrix.py                              # every version
    python tools/matrix.py --versions 2.13.0 --dry-run  # print what would be done

For each version, it makes a virtual environment under --root, kept for the next time. It installs torch (the
CPU build where pip or --index has one, since others install gigabytes of CUDA), the triton that this torch is
built against, the tests' requirements, and mixorder from this checkout. Then it runs `pytest`, and with
Triton's interpreter `pytest tests/interpreter`. Prints a table, and writes it to --root as `matrix.md` with
the logs. A version that cannot be installed is listed with the reason. Exit status: 0, or 1 if a suite failed
or nothing could be installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from lab import ROOT as REPOSITORY
from lab import arguments
from lab.processes import run_logged
from lab.tables import table

# torch, and the triton that its metadata asks for.
TRITON = {"2.11.0": "3.6.0", "2.12.1": "3.7.1", "2.13.0": "3.7.1", "2.14.1": "3.8.0", "2.15.0": "3.9.0"}
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error|errors|xfailed|deselected)\b")


@dataclasses.dataclass
class Suite:
    """The result of a run of pytest: its counts, its exit status (None: timed out), the tests that failed."""

    counts: dict[str, int]
    status: int | None
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = ", ".join(f"{n} {what}" for what, n in self.counts.items()) or "no result"
        if self.status is None:
            return f"{text}; not in time"
        return text if self.status == 0 else f"{text}; exit status {self.status}"


@dataclasses.dataclass
class Row:
    """One version: what is installed, or why not; and the two suites."""

    version: str
    installed: str = ""
    refusal: str = ""
    suites: dict[str, Suite] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return bool(self.suites) and all(s.status == 0 for s in self.suites.values())


PYTEST = ["-m", "pytest", "-n", str(os.cpu_count() or 1), "--dist", "worksteal"]  # as tools/test.sh
SUITES: dict[str, tuple[list[str], dict[str, str]]] = {
    "suite": (PYTEST, {"OMP_NUM_THREADS": "1"}),
    "interpreted": ([*PYTEST, "tests/interpreter"], {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}),
}


def steps(version: str, triton: str, python: Path, index: str) -> list[list[str]]:
    """The commands that fill an environment, in order."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    bounds = ["--constraint", str(REPOSITORY / "constraints.txt")]
    return [
        [*pip, f"torch=={version}", *(["--extra-index-url", index] if index else [])],
        [*pip, f"triton=={triton}"],
        [*pip, *bounds, "setuptools", "wheel"],
        [*pip, *bounds, "--no-build-isolation", "-e", f"{REPOSITORY}[test]"],
    ]


def install(version: str, args: argparse.Namespace, log: Path) -> tuple[Path, str]:
    """The environment's Python, and why it cannot be used (empty if it can)."""
    folder = args.root / f"torch-{version}"
    python = folder / "bin" / "python"
    if not python.exists() and not args.dry_run:
        venv.create(folder, with_pip=True)
    for command in steps(version, args.triton or TRITON.get(version, ""), python, args.index):
        print(f"$ {shlex.join(command)}", flush=True)
        if args.dry_run:
            continue
        with log.open("a") as out:
            status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=args.root).returncode
        if status:
            return python, reason(log.read_text(errors="replace"))
    return python, ""


def reason(log: str) -> str:
    """The last error that pip reports."""
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
    return (errors or log.splitlines() or ["pip failed"])[-1].removeprefix("ERROR: ")[:160]


def what_is_installed(python: Path) -> str:
    names = "torch.__version__, triton.__version__, sys.version.split()[0]"
    code = f"import torch, triton, sys; print({names})"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, cwd="/")
    return done.stdout.strip() if done.returncode == 0 else ""


def test(name: str, python: Path, args: argparse.Namespace, log: Path) -> Suite:
    """Run one of the suites; its output goes to the log."""
    arguments, environment = SUITES[name]
    command = [str(python), *arguments, "-q", "-p", "no:cacheprovider", *args.pytest]
    variables = [f"{k}={v}" for k, v in environment.items()]
    print("$", *variables, shlex.join(command), flush=True)
    if args.dry_run:
        return Suite({}, 0)
    status, text = run_logged(command, log, args.limit, {**os.environ, **environment}, REPOSITORY)
    return parsed_log(text, status)


def parsed_log(text: str, status: int | None) -> Suite:
    """Counts from pytest's last line, and what it lists as failed."""
    lines = reversed(text.splitlines())
    last = next((line for line in lines if _COUNTS.search(line) and " in " in line), "")
    counts = {what: int(n) for n, what in _COUNTS.findall(last)}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return Suite(counts, status, tuple(dict.fromkeys(failed)))


def run(version: str, args: argparse.Namespace) -> Row:
    row, started = Row(version), time.monotonic()
    python, row.refusal = install(version, args, args.root / f"install-{version}.txt")
    if not row.refusal:
        row.installed = "" if args.dry_run else what_is_installed(python)
        if not row.installed and not args.dry_run:
            row.refusal = "torch and triton are installed, but cannot be imported"
        else:
            for name in SUITES:
                row.suites[name] = test(name, python, args, args.root / f"{name}-{version}.txt")
    row.seconds = time.monotonic() - started
    return row


def report(rows: Sequence[Row]) -> str:
    """The table, and below it the tests that failed."""
    lines = []
    for row in rows:
        found = f"cannot be installed: {row.refusal}" if row.refusal else row.installed
        suites = (str(row.suites.get(name, "-")) for name in SUITES)
        lines.append([row.version, found, *suites, f"{row.seconds / 60:.1f}"])
    failed = [
        f"- {row.version}, {name}: {test}"
        for row in rows
        for name, suite in row.suites.items()
        for test in suite.failed
    ]
    head = ["torch", "torch, triton, Python found", *SUITES, "minutes"]
    return "\n".join([table(head, lines), *failed])


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments.parser(__doc__)
    parser.add_argument("--versions", nargs="+", default=list(TRITON))
    parser.add_argument("--triton", help="its version, instead of the one that torch is built against")
    parser.add_argument("--root", type=Path, default=REPOSITORY / "build" / "matrix")
    parser.add_argument(
        "--index", default="", help="where pip finds CPU builds of torch, if it knows none itself"
    )
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one suite")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run none")
    parser.add_argument("pytest", nargs="*", default=[], help="arguments for pytest, after --")
    args = parser.parse_args(argv)
    args.root = args.root.resolve()
    if unknown := [v for v in args.versions if v not in TRITON and not args.triton]:
        parser.error(f"which triton goes with torch {', '.join(unknown)}? (--triton)")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    args.root.mkdir(parents=True, exist_ok=True)
    rows = []
    for version in args.versions:
        rows.append(run(version, args))
        text = report(rows)
        if not args.dry_run:
            (args.root / "matrix.md").write_text(f"{text}\n")
    print(f"\n{text}")
    installed = [row for row in rows if not row.refusal]
    return int(not installed or not all(row.good for row in installed))


if __name__ == "__main__":
    sys.exit(main())
