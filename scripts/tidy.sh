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

flags=(-std=c++20 -Wthread-safety -I. '-DSHOAL_VERSION=""' '-DSHOAL_SOURCE_DIR=""'
  '-DSHOAL_BINARY_DIR=""')
for folder in build/release/gen/*; do flags+=(-isystem "$folder"); done
export checks='-*,bugprone-use-after-move,clang-diagnostic-thread-safety*'
# One process for four files; the files come before the --, the compiler's flags after it.
xargs -P "$(nproc)" -n 4 bash -c 'flags=(); while [ "$1" != -- ]; do flags+=("$1"); shift; done; shift
  clang-tidy-14 --quiet --warnings-as-errors="*" --checks="$checks" "$@" -- "${flags[@]}" 2>/dev/null' \
  tidy "${flags[@]}" -- <<<"$files"
echo "checked $(wc -l <<<"$files") files"
