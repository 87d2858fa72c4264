#!/usr/bin/env bash
# Lint, format check and tests, as CI runs them. Arguments go to pytest, and then only what they name is
# run; without any, the tests of tests/interpreter run beside the others in a process of their own: whether
# Triton interprets kernels is decided when it is imported.
set -euo pipefail
. "$(dirname "$0")/setup.sh"

"$PY" -m ruff check .
"$PY" -m ruff format --check .
status=0
if [ $# -gt 0 ]; then
  "$PY" -m pytest "$@" || status=$?
  exit "$status"
fi
log=$(mktemp)
trap 'kill "$interpreted" 2>/dev/null || true; rm -f "$log"' EXIT
TRITON_INTERPRET=1 "$PY" -m pytest tests/interpreter > "$log" 2>&1 & interpreted=$!
"$PY" -m pytest || status=$?
echo "The tests in tests/interpreter:"
wait "$interpreted" || status=$?
cat "$log"
exit "$status"
