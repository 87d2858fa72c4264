#!/usr/bin/env bash
# Install what is missing, then run the demo. Arguments go to `python -m mixorder`.
set -euo pipefail
. "$(dirname "$0")/setup.sh"

"$PY" -m mixorder "$@"
