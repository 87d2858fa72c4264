# Sourced by the other scripts. Sets PY to a Python that has torch, mixorder with the EXTRA that it asks for, such as
# [test], and other PACKAGES. A torch and a triton that are there already are kept, so that a GPU machine uses its CUDA
# build. Of the rest, what is missing is installed; what an EXTRA or PACKAGES need is replaced if it is outside of BOUNDS.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The oldest and the newest release that mixorder supports are 2.11 and 2.15; this one lies between
# them, and the tests' expected texts come from it. CI's default index serves its CPU build.
TORCH_VERSION=2.13.0
# The triton release that this torch is built against. CPU builds of torch do not pull it, and the
# tests compile and interpret kernels without a GPU.
TRITON_VERSION=3.7.1

export BOUNDS=${BOUNDS:-constraints.txt}
PY=python3
if [ -x .venv/bin/python ]; then PY=.venv/bin/python; fi

has() { "$PY" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

has_torch() {
  # Autoload is off: an entry point of an older checkout must not decide whether torch is there.
  TORCH_DEVICE_BACKEND_AUTOLOAD=0 "$PY" -c '
import sys, torch
sys.exit(tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 11))' 2>/dev/null
}

use_venv() {
  "$PY" -m venv --system-site-packages .venv
  PY=.venv/bin/python
}

install() {
  local log
  log=$(mktemp)
  if "$PY" -m pip install --quiet --disable-pip-version-check --constraint "$BOUNDS" "$@" >"$log" 2>&1; then
    rm -f "$log"
  elif [ "$PY" = python3 ] && grep -q externally-managed-environment "$log"; then
    rm -f "$log"
    use_venv
    install "$@"
  else
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
}

has_torch || install "torch==$TORCH_VERSION"
has triton || install "triton==$TRITON_VERSION"
# Triton's interpreter needs numpy, which a CPU build of torch does not ask for.
for package in setuptools wheel sympy numpy; do
  has "$package" || install "$package"
done
install --no-build-isolation -e ".${EXTRA:-}" ${PACKAGES:-}
