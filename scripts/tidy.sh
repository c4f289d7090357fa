#!/usr/bin/env bash
# clang's thread-safety analysis and use-after-move over the files that the last commit changed, or
# over all (--all). A base to compare with may be given: SHOAL_TIDY_BASE=REV.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --all ]; then
  list=$(git ls-files '*.cc')
else
  base=${SHOAL_TIDY_BASE:-HEAD~1}
  git rev-parse -q --verify "$base^{commit}" >/dev/null || base=$(git hash-object -t tree /dev/null)
  list=$(git diff --name-only --diff-filter=d "$base" -- '*.cc')
fi
files=$(grep -vE '^(kernels/cpu/(avx2|avx512|portable)|tests/fuzz|bench)/' <<<"$list" || true)
[ -z "$files" ] && { echo "no file to check"; exit 0; }

generated=()
for folder in build/release/gen/*; do generated+=(-isystem "$folder"); done
xargs -P "$(nproc)" -n 4 clang-tidy-14 --quiet --warnings-as-errors='*' \
  -checks='-*,bugprone-use-after-move,clang-diagnostic-thread-safety*' <<<"$files" -- 2>/dev/null \
  -std=c++20 -Wthread-safety -I. "${generated[@]}" \
  '-DSHOAL_VERSION=""' '-DSHOAL_SOURCE_DIR=""' '-DSHOAL_BINARY_DIR=""' \
  -DPCRE2_CODE_UNIT_WIDTH=8
echo "checked $(wc -l <<<"$files") files"
