#!/bin/sh
# check_isa_symbols.sh BUILD_DIR: objects compiled for one instruction set must define nothing outside of
# their own namespace and nothing weak: the linker may keep their copy of a shared inline function,
# and that would crash older machines. Prints offenders; exit status 1 when there are any, 2
# when the libraries are missing.
set -eu
build=${1:?usage: check_isa_symbols.sh BUILD_DIR}
bad=0
for isa in portable avx2 avx512 amx; do
  library=$build/libkernels_$isa.a
  if [ ! -f "$library" ]; then
    echo "$library: not built" >&2
    exit 2
  fi
  # Upper case letters are global symbols, v and w weak ones, u unique ones.
  offenders=$(nm --defined-only "$library" | awk 'NF == 3 && $2 ~ /^[A-Zuvw]$/' | c++filt |
    awk -v inside="shoal::kernels::$isa::" \
      '$2 ~ /^[WVuvw]$/ || index($3, inside) != 1' | grep -v -E ' (__odr_asan|DW\.ref\.)' || true)
  if [ -n "$offenders" ]; then
    printf '%s:\n%s\n' "$library" "$offenders"
    bad=1
  fi
done
exit $bad
