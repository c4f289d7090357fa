#!/usr/bin/env bash
# Installs the Debian packages that Shoal needs and that are missing. Usage: install_deps.sh run|test
# `run` is what building and serving needs; `test` adds the sanitizers' compiler, linters and Python.
set -euo pipefail

run_packages=(
  ca-certificates git g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev grpc-proto
  golang-github-gogo-googleapis-dev
  libabsl-dev libgoogle-glog-dev libcli11-dev nlohmann-json3-dev libpcre2-dev libedit-dev
  python3 python3-venv
)
test_packages=(
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-14 libclang-rt-14-dev clang-tidy-14 clang-format-14
)

want=("${run_packages[@]}")
[ "${1:-run}" = test ] && want+=("${test_packages[@]}")

missing=()
for package in "${want[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' ||
    missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || {
    echo "error: these Debian packages are missing and need root to install: ${missing[*]}" >&2
    exit 1
  }
  sudo=(sudo)
fi
echo "Installing ${#missing[@]} Debian packages: ${missing[*]}" >&2
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
  "${missing[@]}" >&2
