#!/usr/bin/env bash
# The CPU suite with each torch that mixorder supports and its triton, each in a separate environment:
#
#   bash tools/matrix.sh                                  # every version
#   bash tools/matrix.sh 2.13.0 2.16.0=4.0.0 -- tests/ir  # these; arguments for pytest
#
# Environments and logs are kept under ROOT (build/matrix). INDEX: where pip finds CPU builds of torch, if it knows none
# itself; other builds bring gigabytes of CUDA. Prints a table. Exit status: 0, or 1 if a version has no result or fails.
set -uo pipefail
cd "$(dirname "$0")/.."
declare -A triton=([2.11.0]=3.6.0 [2.12.1]=3.7.1 [2.13.0]=3.7.1 [2.14.1]=3.8.0 [2.15.0]=3.9.0)  # what torch asks for
root=${ROOT:-build/matrix} asked=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do asked+=("$1") && shift; done
[ $# -eq 0 ] || shift
mkdir -p "$root"

suites() { # torch, triton, arguments for pytest
  local folder=$root/torch-$1 PY=$root/torch-$1/bin/python
  [ -x "$PY" ] || python3 -m venv "$folder"
  "$PY" -m pip install --quiet "torch==$1" ${INDEX:+--extra-index-url "$INDEX"} && "$PY" -m pip install --quiet "triton==$2" &&
    "$PY" -m pip install --quiet --constraint constraints.txt setuptools wheel &&
    "$PY" -m pip install --quiet --constraint constraints.txt --no-build-isolation -e ".[test]" || return
  local status=0 run=("$PY" -m pytest -q -p no:cacheprovider -n "$(nproc)" --dist worksteal "${@:3}")
  OMP_NUM_THREADS=1 "${run[@]}" || status=1
  OMP_NUM_THREADS=1 TRITON_INTERPRET=1 "${run[@]}" tests/interpreter || status=1
  return "$status"
}

all=0 table=$'| torch | triton | result |\n| --- | --- | --- |\n'
mapfile -t known < <(printf '%s\n' "${!triton[@]}" | sort -V)
[ ${#asked[@]} -gt 0 ] || asked=("${known[@]}")
for one in "${asked[@]}"; do
  version=${one%=*} with=${triton[${one%=*}]:-${one#*=}} log=$root/${one%=*}.txt status=0
  suites "$version" "$with" "$@" >"$log" 2>&1 || status=1 all=1
  said=$(grep -E "^(FAILED|ERROR)|(passed|failed|error).* in " "$log" | tail -20 | paste -sd ';')
  table+="| $version | $with | $([ "$status" -eq 0 ] || echo "FAILED: ")$said |"$'\n'
done
printf '%s' "$table" | tee "$root/matrix.md"
exit "$all"
