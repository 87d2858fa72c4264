# Sourced by the other scripts. Sets PY to a Python that has torch, mixorder with the EXTRA that it asks for, such as
# [test], and other PACKAGES. What is missing is installed into .venv, an environment of its own, which also sees what the
# active one has: a torch and a triton that are there already and new enough are used, so that a GPU machine uses its CUDA
# build. With MIXORDER_ENV=active the active environment is installed into. What an EXTRA or PACKAGES need is installed
# again if it is outside of BOUNDS.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The oldest and the newest release that mixorder supports are 2.11 and 2.15; this one lies between
# them, and the tests' expected texts come from it. CI's default index serves its CPU build.
TORCH_VERSION=2.13.0
# The triton release that this torch is built against. CPU builds of torch do not pull it, and the
# tests compile and interpret kernels without a GPU.
TRITON_VERSION=3.7.1

export BOUNDS=${BOUNDS:-constraints.txt}
PY=python3 WHERE="the active environment"
if [ "${MIXORDER_ENV:-}" != active ]; then
  PY=$PWD/.venv/bin/python WHERE=.venv
  if [ ! -x "$PY" ]; then
    python3 -m venv --system-site-packages --without-pip .venv
    # .venv sees the packages of the system; those of an active environment are others.
    site='import sysconfig; print(sysconfig.get_path("purelib"))'
    echo "import site; site.addsitedir('$(python3 -c "$site")')" >"$("$PY" -c "$site")/active.pth"
  fi
fi

has() { "$PY" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

has_torch() {
  # Autoload is off: an entry point of an older checkout must not decide whether torch is there.
  TORCH_DEVICE_BACKEND_AUTOLOAD=0 "$PY" -c '
import sys, torch
sys.exit(tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 11))' 2>/dev/null
}

install() {  # what is not imported need not be compiled
  local quiet=--quiet
  if [ -t 2 ]; then quiet=--progress-bar=on; fi
  echo "Installing into $WHERE: $*" >&2
  "$PY" -m pip install "$quiet" --no-compile --disable-pip-version-check --constraint "$BOUNDS" "$@" >&2
}

has pip || "$PY" -m ensurepip >&2
has_torch || install "torch==$TORCH_VERSION" "triton==$TRITON_VERSION"
has triton || install "triton==$TRITON_VERSION"
# Triton's interpreter needs numpy, which a CPU build of torch does not ask for.
for package in setuptools wheel sympy numpy; do
  has "$package" || install "$package"
done
install --no-build-isolation -e ".${EXTRA:-}" ${PACKAGES:-}
