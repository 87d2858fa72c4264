"""These tests run kernels in the Triton interpreter, which triton decides on when it is imported.

`TRITON_INTERPRET=1 pytest tests/interpreter` runs them; in any other run they are skipped.
"""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1"))
