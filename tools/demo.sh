#!/usr/bin/env bash
# Install what is missing, as tools/setup.sh says, then run the demo. Arguments go to `python -m mixorder`.
set -euo pipefail
echo "This trains a small transformer for one step without and with mixorder, and compares the two." >&2
. "$(dirname "$0")/setup.sh"

"$PY" -m mixorder "$@"
