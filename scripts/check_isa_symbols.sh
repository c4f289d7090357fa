#!/bin/sh
# check_isa_symbols.sh BUILD_DIR: objects compiled for one instruction set must not define symbols
# that the linker could share with the rest of the program (an inline function of a common header
# compiled with AVX-512 would crash older machines). Prints offenders; exit status 1 when there are any, 2 when
# the libraries are missing.
set -eu
build=${1:?usage: check_isa_symbols.sh BUILD_DIR}
bad=0
for isa in portable avx2 avx512; do
  library=$build/libkernels_$isa.a
  if [ ! -f "$library" ]; then
    echo "$library: not built" >&2
    exit 2
  fi
  # Defined symbols that are weak, unique or global and lie outside of the namespace. (Names of
  # sanitizers and of the compiler's own data are not code.)
  found=$(nm --defined-only "$library" | awk 'NF == 3 && $2 ~ /^[A-Zuvw]$/ && $2 !~ /^[bdrt]$/' |
    c++filt | grep -v " shoal::kernels::$isa::" | grep -v -E ' (__odr_asan|DW\.ref)' |
    grep -E '^[0-9a-f]+ [TWVuvwi] ' || true)
  weak=$(nm --defined-only "$library" | awk 'NF == 3 && $2 ~ /^[WVuvw]$/' | c++filt |
    grep -v -E ' (__odr_asan|DW\.ref)' || true)
  for list in "$found" "$weak"; do
    if [ -n "$list" ]; then
      echo "$library:"
      echo "$list"
      bad=1
    fi
  done
done
exit $bad
