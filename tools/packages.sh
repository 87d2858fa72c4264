#!/usr/bin/env bash
# Build the two archives of a release, from a copy of the tree, and check how a package index would show them.
# They are left in the folder that is named, and in none without one.
set -euo pipefail
out=${1:+$(realpath -m "$1")}
PY=${PY:-python3}  # has pip, setuptools and wheel
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# In a folder of their own: what they need may not go with what else is installed.
"$PY" -m pip install --quiet --no-compile --disable-pip-version-check --constraint "${BOUNDS:-constraints.txt}" \
  --target "$work/with" build twine 2>"$work/log" ||
  { cat "$work/log" >&2; exit 1; }
mkdir "$work/tree"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory "$work/tree"
export PYTHONPATH=$work/with
cd "$work"
"$PY" -m build --no-isolation --outdir dist tree >log 2>&1 || { cat log >&2; exit 1; }
"$PY" -m twine check --strict dist/*
[ -z "$out" ] || { mkdir -p "$out" && cp dist/* "$out"; }
