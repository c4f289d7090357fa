#!/usr/bin/env bash
# Configures and builds a CMake preset (release, dev, tsan, fuzz): build.sh PRESET [TARGET ...]
# Shows ninja's progress (on a terminal: one line); silent when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
if ! configure=$(cmake --preset "$preset" 2>&1); then
  echo "$configure" >&2
  exit 1
fi

# ninja -n cannot tell whether there is work: with globs it always plans to run CMake again.
columns=0
[ -t 2 ] && columns=$(tput cols 2>/dev/null || echo 80)
ninja -C "build/$preset" "$@" | awk -v preset="$preset" -v columns="$columns" '
  function end_line() { if (open) printf "\n"; open = 0 }
  /^ninja: Entering directory|^ninja: no work to do|Re-checking globbed directories|Re-running CMake/ { next }
  /^-- (Configuring|Generating|Build files)/ { next }
  !started { started = 1; print "Building Shoal (" preset "); the first build takes minutes" }
  columns > 0 && /^\[[0-9]+\/[0-9]+\] / { printf "\r\033[K%s", substr($0, 1, columns - 1); open = 1; fflush(); next }
  { end_line(); print; fflush() }
  END { end_line() }' >&2
