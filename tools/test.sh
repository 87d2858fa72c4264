#!/usr/bin/env bash
# Lint, format check and tests, as CI runs them. Arguments go to pytest.
set -euo pipefail
. "$(dirname "$0")/setup.sh"

"$PY" -m ruff check .
"$PY" -m ruff format --check .
"$PY" -m pytest "$@"
