"""What tools/matrix.py would run, how it reads what pytest and pip say, and its table."""

from __future__ import annotations

import re
from pathlib import Path

import matrix
import pytest
from matrix import Row, Suite

ROOT = Path(__file__).resolve().parents[2]


def test_a_dry_run_says_what_it_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--versions", "2.13.0", "--root", str(tmp_path), "--dry-run"]
    assert matrix.main(asked) == 0
    said = capsys.readouterr().out
    for part in (
        "torch==2.13.0",
        "triton==3.7.1",
        f"--constraint {ROOT}/constraints.txt",
        f"-e '{ROOT}[test]'",
        "TRITON_INTERPRET=1",
    ):
        assert part in said
    assert list(tmp_path.iterdir()) == []


def test_versions_and_their_triton() -> None:
    setup = (ROOT / "tools" / "setup.sh").read_text()
    versions = dict(line.split("=") for line in setup.splitlines() if "_VERSION=" in line and "$" not in line)
    assert matrix.TRITON[versions["TORCH_VERSION"]] == versions["TRITON_VERSION"]
    assert [v.rsplit(".", 1)[0] for v in matrix.TRITON] == ["2.11", "2.12", "2.13", "2.14", "2.15"]
    with pytest.raises(SystemExit):
        matrix.parsed(["--versions", "2.16.0"])
    assert matrix.parsed(["--versions", "2.16.0", "--triton", "4.0.0", "--", "-x"]).pytest == ["-x"]


LOG = """\
..F.s
FAILED tests/test_a.py::test_one[case 1] - AssertionError: 1 failed, 2 passed
ERROR tests/test_b.py::test_two
1 failed, 3 passed, 1 skipped, 1 error in 12.34s
"""


def test_what_pytest_says() -> None:
    suite = matrix.parsed_log(LOG, 1)
    assert suite.counts == {"failed": 1, "passed": 3, "skipped": 1, "error": 1}
    assert suite.failed == ("tests/test_a.py::test_one[case", "tests/test_b.py::test_two")
    assert str(suite) == "1 failed, 3 passed, 1 skipped, 1 error; exit status 1"
    assert str(matrix.parsed_log("", None)) == "no result; not in time"
    assert str(matrix.parsed_log("5 passed, 2 warnings in 3.00s", 0)) == "5 passed"


def test_what_pip_says() -> None:
    log = (
        "Collecting torch\nERROR: Could not find a version\nERROR: No matching distribution for torch==2.99\n"
    )
    assert matrix.reason(log) == "No matching distribution for torch==2.99"
    assert matrix.reason("") == "pip failed"


def test_the_table() -> None:
    good = Row("2.13.0", "2.13.0+cpu 3.7.1 3.11.9", suites={"suite": Suite({"passed": 5}, 0)}, seconds=60)
    bad = Row("2.15.0", refusal="No matching distribution")
    failing = Row("2.11.0", "2.11.0 3.6.0", suites={"suite": Suite({"failed": 1}, 1, ("tests/a.py::b",))})
    text = re.sub(" +", " ", matrix.report([good, bad, failing]))
    assert "| 2.13.0 | 2.13.0+cpu 3.7.1 3.11.9 | 5 passed | - | 1.0 |" in text
    assert "| 2.15.0 | cannot be installed: No matching distribution | - | - | 0.0 |" in text
    assert "- 2.11.0, suite: tests/a.py::b" in text
    assert good.good and not bad.good and not failing.good
