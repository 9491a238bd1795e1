#!/usr/bin/env bash
# One door to the project. See `./build.sh help`.
#
#   state lives in build/<preset> (objects), .venv (Python tools and the package) and ./deepinfer (a link to the binary)
set -euo pipefail
cd "$(dirname "$0")"

# Paths relative to the tree, so that another clone of it finds the same objects in the cache.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1

usage() {
  cat <<'TEXT'
./build.sh run        install what is missing, build the command line with the CPU backend, then let the built-in model write
./build.sh            install, build everything: ./deepinfer and the Python package
./build.sh test       the same, then every test that needs no GPU
./build.sh gpu-test   build with CUDA, then the tests and benchmarks of the GPU backend; needs a GPU
./build.sh web-test   the web page in a real browser: installs chromium and playwright
./build.sh bench      benchmarks, with ratios to this machine's limits
./build.sh fuzz [S]   every fuzz target for S seconds (default 30)
./build.sh sanitize   the fast tests under the address, undefined-behaviour and thread sanitizers
./build.sh format     format the code in place
TEXT
}

# What the command line needs, what the rest needs on top.
run_packages=(g++ cmake ninja-build ccache mold pkg-config libboost1.81-dev libboost-json1.81-dev libssl-dev libspdlog-dev
  libfmt-dev libcli11-dev libexpected-dev libxxhash-dev)
all_packages=("${run_packages[@]}" prometheus-cpp-dev python3-venv libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev python3-dev git)
fuzz_packages=(clang-19 libclang-rt-19-dev)
web_packages=(chromium fonts-dejavu-core)

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

# install PACKAGE...: through apt where we are root, else the one line to run and exit 2.
install() {
  local missing=()
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ]; then
    echo "missing packages; install them with:  sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 2
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# venv PACKAGE...: pinned Python packages in .venv.
venv() {
  [ -x .venv/bin/python ] || python3 -m venv .venv
  .venv/bin/python -m pip install -q --disable-pip-version-check "$@"
}

# Where nvcc is, the GPU backend is built as well; a GPU is needed to use it, not to build it.
has_nvcc() { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }
cuda_switch() { if has_nvcc; then echo -DDI_CUDA=ON; else echo -DDI_CUDA=OFF; fi; }

# configure_and_build PRESET ARGUMENT...: everything, or the targets in `targets` if there are any.
targets=()
configure_and_build() {
  local preset=$1
  shift
  cmake --preset "$preset" "$@" >/dev/null
  cmake --build --preset "$preset" ${targets:+--target "${targets[@]}"}
}

link_binary() { ln -sfn "build/$1/bin/deepinfer" deepinfer; }

# Without the HTTP service and structured outputs, in large units: the first token comes within minutes of a clone.
build_run() {
  install "${run_packages[@]}"
  configure_and_build run
  link_binary run
}

# What every other build needs.
prepare() {
  install "${all_packages[@]}" "$@"
  venv -r scripts/requirements-dev.txt
  .venv/bin/python scripts/fetch_xgrammar.py
}

# The package of this source tree, importable from .venv.
link_package() { echo "$PWD/python" >"$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/deepinfer.pth"; }

build_all() {
  prepare
  link_package
  configure_and_build release "$(cuda_switch)" -DDI_PYTHON=ON -DPython_EXECUTABLE="$PWD/.venv/bin/python"
  link_binary release
}

run_demo() {
  say "a story from the built-in model"
  ./deepinfer generate --prompt "Once upon a time" --max-tokens 120
  say "a question"
  ./deepinfer generate --chat scripts/demo/question.json --max-tokens 60
  say "now talk to it:  ./deepinfer chat"
}

run_tests() {
  say "format, lint, layering"
  .venv/bin/python scripts/check_style.py
  .venv/bin/python scripts/fetch_tokenizer.py
  say "unit tests"
  ctest --preset release
  say "command line and Python"
  .venv/bin/python -m pytest -q tests python/tests --ignore tests/web
}

test_web() {
  install "${web_packages[@]}"
  venv -r scripts/requirements-web.txt
  .venv/bin/python -m pytest -q tests/web
}

# No && between the steps: on its left `set -e` is off inside functions, and a build that failed would be gone over.
case "${1:-all}" in
  run) build_run; run_demo ;;
  all) build_all ;;
  test) build_all; run_tests ;;
  gpu-test)
    has_nvcc || { echo "nvcc was not found: install the CUDA toolkit 13, or put nvcc on the PATH" >&2; exit 2; }
    prepare
    configure_and_build cuda -DDI_BENCH=ON
    scripts/gpu_check.sh build/cuda build/gpu
    ;;
  web-test) targets=(deepinfer); build_all; test_web ;;
  bench) build_all; configure_and_build release -DDI_BENCH=ON; scripts/run_bench.sh ;;
  fuzz) prepare "${fuzz_packages[@]}"; configure_and_build fuzz; scripts/run_fuzz.sh "${2:-30}" ;;
  sanitize)
    prepare
    for preset in asan tsan; do
      configure_and_build "$preset"
      ctest --preset "$preset" -L fast
    done
    ;;
  format) venv -r scripts/requirements-dev.txt; .venv/bin/python scripts/check_style.py --fix ;;
  help | -h | --help) usage ;;
  *) usage >&2 && exit 2 ;;
esac
