#!/usr/bin/env bash
# Runs every fuzz target on its committed corpus for SECONDS in all (default 60): fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
targets=(gguf_fuzzer template_fuzzer tokenizer_fuzzer)
each=$((seconds / ${#targets[@]}))
for target in "${targets[@]}"; do
  new=$(mktemp -d "${TMPDIR:-/tmp}/shoal-fuzz.XXXXXX")
  # One input may take 5 s and 512 MiB at most; a finding leaves crash-* in build/fuzz.
  if ! (cd build/fuzz && "./$target" -max_total_time="$each" -timeout=5 -rss_limit_mb=512 \
      -print_final_stats=0 -verbosity=0 "$new" "$OLDPWD/tests/fuzz/corpus/$target"); then
    echo "error: $target found a fault; the input is in build/fuzz" >&2
    rm -rf "$new"
    exit 1
  fi
  echo "$target: $each s without a fault"
  rm -rf "$new"
done
