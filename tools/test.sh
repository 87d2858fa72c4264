#!/usr/bin/env bash
# Lint, format check, types, the archives of a release, and tests, as CI runs them. Arguments go to pytest, and then only what they name is
# run; without any, all tests are, on all CPUs, those of tests/interpreter in a second run: whether Triton
# interprets kernels is decided when it is imported. Left out are tests of tools where these are as on the
# default branch; MIXORDER_ALL_TESTS=1, as in CI, runs them too. FRAMEWORKS="accelerate ..." installs these as well: tests
# of docs/adopt.md skip what is missing.
set -euo pipefail
EXTRA="[test]" PACKAGES=${FRAMEWORKS:-}
. "$(dirname "$0")/setup.sh"

"$PY" -m ruff check .
"$PY" -m ruff format --check .
if [ $# -gt 0 ]; then
  "$PY" -m mypy
  exec "$PY" -m pytest "$@"
fi
# Each takes one CPU, and some of the time of `packages.sh` is downloads.
PY=$PY bash tools/packages.sh &
"$PY" -m mypy || { wait; exit 1; }
wait $!
# Each worker has a CPU, a thread, and compiles by itself.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-1}
workers=$(env -u OMP_NUM_THREADS nproc)  # which would take it for the number of CPUs
many=(-n "$((workers < 40 ? workers : 40))" --dist worksteal --durations=25)
left_out=()
since=$(git merge-base HEAD origin/HEAD 2>/dev/null || git merge-base HEAD main 2>/dev/null || true)
if [ "${MIXORDER_ALL_TESTS:-}" != 1 ] && [ -n "$since" ] && git diff --quiet "$since" -- tools tests/tools; then
  for test in tests/tools/test_*.py; do
    [[ $test == */test_replay.py ]] || left_out+=("$test")  # that one is a test of the package
  done
fi
status=0
# The longest tests first, so that no worker waits for one of them at the end.
"$PY" -m pytest "${many[@]}" --ignore=tests/interpreter "${left_out[@]/#/--ignore=}" tests/tools tests || status=$?
TRITON_INTERPRET=1 "$PY" -m pytest "${many[@]}" tests/interpreter || status=$?
exit "$status"
