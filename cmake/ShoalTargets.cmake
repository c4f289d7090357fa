# Compiler flags and the functions that declare Shoal's targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# -ffp-contract=off: compilers contract a*b+c differently with and without -mfma, and the same
# request must give the same bits on every instruction set (docs/decisions/0001-determinism.md).
add_compile_options(-Wall -Wextra -Werror -Wno-unused-parameter -ffp-contract=off
                    -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety)
endif()

set(SHOAL_SANITIZE "" CACHE STRING "Value for -fsanitize=, for example address,undefined or thread")
if(SHOAL_SANITIZE)
  add_compile_options(-fsanitize=${SHOAL_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${SHOAL_SANITIZE})
endif()

set(SHOAL_AVX2_FLAGS -mavx2 -mfma -mf16c)
set(SHOAL_AVX512_FLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c)


# shoal_library(NAME DIR folder [DEPS ...] [FLAGS ...]): every .cc of one folder, main.cc aside.
function(shoal_library name)
  cmake_parse_arguments(ARG "" "DIR" "DEPS;FLAGS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_DIR}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  target_compile_options(${name} PRIVATE ${ARG_FLAGS})
endfunction()

# shoal_binary(NAME MAIN file [DEPS ...])
function(shoal_binary name)
  cmake_parse_arguments(ARG "" "MAIN" "DEPS" ${ARGN})
  add_executable(${name} ${ARG_MAIN})
  target_compile_definitions(${name} PRIVATE SHOAL_VERSION="${PROJECT_VERSION}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

add_custom_target(unit_tests)      # every C++ test
add_custom_target(threaded_tests)  # those that TSan runs

# shoal_test(FOLDER [THREADED] [DEPS ...] [SOURCES ...]): tests/FOLDER/*.cc, and files shared with
# other tests, as one program FOLDER_test.
# Label unit; with THREADED also label threaded.
function(shoal_test folder)
  cmake_parse_arguments(ARG "THREADED" "" "DEPS;SOURCES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/${folder}/*.cc)
  add_executable(${folder}_test ${sources} ${ARG_SOURCES})
  target_compile_definitions(${folder}_test PRIVATE
    SHOAL_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}" SHOAL_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${folder}_test PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${folder}_test COMMAND ${folder}_test)
  set_tests_properties(${folder}_test PROPERTIES TIMEOUT 900 LABELS unit)
  add_dependencies(unit_tests ${folder}_test)
  if(ARG_THREADED)
    set_tests_properties(${folder}_test PROPERTIES LABELS "unit;threaded")
    add_dependencies(threaded_tests ${folder}_test)
  endif()
endfunction()

# shoal_fuzzer(NAME [DEPS ...]): tests/fuzz/NAME.cc with libFuzzer; its corpus is tests/fuzz/corpus/NAME.
function(shoal_fuzzer name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_executable(${name} tests/fuzz/${name}.cc)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()

# shoal_bench(NAME [DEPS ...]): bench/NAME.cc with Google Benchmark.
function(shoal_bench name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_executable(${name} bench/${name}.cc)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} benchmark::benchmark)
endfunction()
