#!/usr/bin/env bash
# Configures and builds a CMake preset (release, dev, tsan, fuzz): build.sh PRESET [TARGET ...]
# Shows ninja's progress; silent when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
if ! configure=$(cmake --preset "$preset" 2>&1); then
  echo "$configure" >&2
  exit 1
fi
if ! ninja -C "build/$preset" -n "$@" | grep -q 'no work to do'; then
  echo "Building Shoal ($preset)" >&2
  ninja -C "build/$preset" "$@" >&2
fi
