#!/usr/bin/env bash
# Installs what is missing, builds, and passes every test.
#   scripts/test.sh         what CI runs: checks, release tests, pytest, ASan+UBSan, TSan, 60 s of fuzzing
#   scripts/test.sh --full  the same with long fuzzing, 100 times the simulations, pings for 15 minutes and clang-tidy
#                           over every file
set -euo pipefail
cd "$(dirname "$0")/.."

full=
case "${1:-}" in
  "") ;;
  --full) full=1 ;;
  *) echo "usage: scripts/test.sh [--full]" >&2; exit 2 ;;
esac

step() { printf '\n=== %s (%d s since start)\n' "$1" "$SECONDS"; }

step "Debian packages"
scripts/install_deps.sh test

step "Layers and format"
/usr/bin/python3 scripts/check_layers.py
scripts/check_format.sh

step "Release build"
scripts/build.sh release
scripts/check_isa_symbols.sh build/release

step "Release tests"
SHOAL_SIM_SEEDS=${full:+1200000} ctest --test-dir build/release --output-on-failure -j2

step "Python environment"
scripts/python_env.sh

step "pytest: the whole path with real processes"
model=$(scripts/fetch_model.sh)
SHOAL_MODEL=$model .venv/bin/python -m pytest -q ${full:+--full} tests/python

step "ASan and UBSan"
scripts/build.sh dev unit_tests
ctest --test-dir build/dev --output-on-failure -j2 -L unit

step "TSan (nothing that links gRPC)"
scripts/build.sh tsan threaded_tests
ctest --test-dir build/tsan --output-on-failure -L threaded

step "Fuzzing"
scripts/build.sh fuzz gguf_fuzzer template_fuzzer tokenizer_fuzzer
scripts/fuzz.sh "${full:+600}"

step "clang-tidy"
scripts/tidy.sh ${full:+--all}

step "All passed"
