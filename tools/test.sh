#!/usr/bin/env bash
# Lint, format check, types and tests, as CI runs them. Arguments go to pytest, and then only what they name is
# run; without any, the tests of tests/interpreter run beside the others in two processes of their own: whether
# Triton interprets kernels is decided when it is imported.
set -euo pipefail
NEEDS="pytest expecttest hypothesis ruff mypy"
. "$(dirname "$0")/setup.sh"

"$PY" -m ruff check .
"$PY" -m ruff format --check .
"$PY" -m mypy
status=0
if [ $# -gt 0 ]; then
  "$PY" -m pytest "$@" || status=$?
  exit "$status"
fi
# Three processes share the CPUs: a thread each.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
logs=$(mktemp -d)
interpreted=()
trap 'kill "${interpreted[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
files=(tests/interpreter/test_*.py)
for half in 0 1; do
  mine=()
  for i in "${!files[@]}"; do
    if [ $((i % 2)) -eq "$half" ]; then mine+=("${files[$i]}"); fi
  done
  # The others, which take longest, go first.
  TRITON_INTERPRET=1 nice -n 10 "$PY" -m pytest "${mine[@]}" > "$logs/$half" 2>&1 & interpreted+=("$!")
done
"$PY" -m pytest || status=$?
echo "The tests in tests/interpreter:"
for half in 0 1; do
  wait "${interpreted[$half]}" || status=$?
  cat "$logs/$half"
done
exit "$status"
