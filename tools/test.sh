#!/usr/bin/env bash
# Lint, format check and tests, as CI runs them. Arguments go to pytest, and then only what they name is
# run; without any, the tests of tests/interpreter follow in a process of their own: whether Triton
# interprets kernels is decided when it is imported.
set -euo pipefail
. "$(dirname "$0")/setup.sh"

"$PY" -m ruff check .
"$PY" -m ruff format --check .
status=0
"$PY" -m pytest "$@" || status=$?
if [ $# -eq 0 ]; then
  TRITON_INTERPRET=1 "$PY" -m pytest tests/interpreter || status=$?
fi
exit "$status"
