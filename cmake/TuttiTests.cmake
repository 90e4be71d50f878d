# SPDX-License-Identifier: Apache-2.0
#
# tutti_tests():       one GoogleTest executable out of globbed test files, and its ctest entries.
# tutti_test_flags():  sets the flags of a target of tests, fewer than those of the library.
# tutti_torch_headers(): makes a target of tests or an example use precompiled LibTorch headers.
# tutti_test_setup():  sets what every ctest entry has: a label, a timeout, sanitizer options.

set(TUTTI_TIMEOUT_FACTOR 1)
set(TUTTI_TEST_ENVIRONMENT "")
if(Torch_VERSION VERSION_LESS 2)  # Debian's
  # Its oneDNN 2.6 crashes on its own AMX instructions (docs/guide/training-loop.md), and its
  # OpenBLAS mistakes current CPUs for old ones (docs/environment.md).
  list(APPEND TUTTI_TEST_ENVIRONMENT ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16)
  execute_process(COMMAND "${PROJECT_SOURCE_DIR}/tools/openblas_core.sh"
    OUTPUT_VARIABLE TUTTI_OPENBLAS_CORE OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(TUTTI_OPENBLAS_CORE)
    list(APPEND TUTTI_TEST_ENVIRONMENT OPENBLAS_CORETYPE=${TUTTI_OPENBLAS_CORE})
  endif()
endif()
if(TUTTI_SANITIZE)
  set(TUTTI_TIMEOUT_FACTOR 6)  # Sanitizers make tests several times slower.
endif()
if(TUTTI_SANITIZE MATCHES "thread")
  # LibTorch is not instrumented. No suppression names it: that would also hide our own races inside
  # its hooks. The suppressions for gRPC cover only code in its headers.
  list(APPEND TUTTI_TEST_ENVIRONMENT
    "TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:suppressions=${CMAKE_CURRENT_SOURCE_DIR}/sanitizer/tsan_grpc.txt")
elseif(TUTTI_SANITIZE MATCHES "undefined")
  list(APPEND TUTTI_TEST_ENVIRONMENT "UBSAN_OPTIONS=print_stacktrace=1")
endif()

function(tutti_test_setup name label seconds)
  math(EXPR timeout "${seconds} * ${TUTTI_TIMEOUT_FACTOR}")
  set_tests_properties(${name} PROPERTIES
    LABELS "${label}" TIMEOUT ${timeout} ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
endfunction()

# Tests are not optimised: that would take longer than it saves when they run.
function(tutti_test_flags target)
  if(TUTTI_SANITIZE)
    target_compile_options(${target} PRIVATE -g0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0 -g0>)
  endif()
endfunction()

# For targets that have the flags of tests. Each source spends 12 seconds on the headers; the
# precompiled file takes 650 MB, so this pays only in builds of everything.
function(tutti_torch_headers target)
  if(NOT TUTTI_UNITY STREQUAL "ALL" OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  if(NOT TARGET tutti_torch_headers)
    set(source "${PROJECT_BINARY_DIR}/generated/torch_headers.cc")
    file(CONFIGURE OUTPUT "${source}" CONTENT "")
    add_library(tutti_torch_headers OBJECT "${source}")
    tutti_compile_flags(tutti_torch_headers)
    tutti_test_flags(tutti_torch_headers)
    target_link_libraries(tutti_torch_headers PRIVATE tutti::tutti)
    target_precompile_headers(tutti_torch_headers PRIVATE <torch/torch.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM tutti_torch_headers)
  target_compile_options(${target} PRIVATE -fpch-preprocess)  # for ccache
endfunction()

# tutti_tests(<name> FILES <globs>... [BATCHES <number>] [SHARDS <number>] [LABEL <label>] [TIMEOUT <seconds>] [LAYERS <folders>...]
#             [NEED_GRPC <filters>...] [NEED_GRPC_FILES <globs>...]
#             [SANITIZERS_WITHOUT <filters>...] [SANITIZERS_WITHOUT_FILES <globs>...]
#             [TSAN_WITHOUT <filters>...] [TSAN_WITHOUT_FILES <globs>...])
#
# LAYERS are linked in place of the whole library, for tests of layers that do not need LibTorch.
# A program that links LibTorch takes more than half a second to start, so an executable is one
# ctest entry. NEED_GRPC are left out of a build without gRPC. Sanitizers leave out tests of many processes and of whole models, and the thread
# sanitizer also leaves out cases with one thread.
# BATCHES is the number of sources in unity mode: every batch reads the headers, but a large batch
# needs memory and may keep the other cores waiting.
function(tutti_tests name)
  cmake_parse_arguments(arg "" "BATCHES;LABEL;TIMEOUT;SHARDS" "FILES;LAYERS;NEED_GRPC;NEED_GRPC_FILES;SANITIZERS_WITHOUT;SANITIZERS_WITHOUT_FILES;TSAN_WITHOUT;TSAN_WITHOUT_FILES" ${ARGN})
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  if(NOT arg_BATCHES)
    set(arg_BATCHES 1)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" ${arg_FILES})
  set(without_files "")
  set(without "")
  if(NOT TUTTI_WITH_GRPC)
    list(APPEND without_files ${arg_NEED_GRPC_FILES})
    list(APPEND without ${arg_NEED_GRPC})
  endif()
  if(TUTTI_SANITIZE)
    list(APPEND without_files ${arg_SANITIZERS_WITHOUT_FILES})
    list(APPEND without ${arg_SANITIZERS_WITHOUT})
  endif()
  if(TUTTI_SANITIZE STREQUAL "thread")
    list(APPEND without_files ${arg_TSAN_WITHOUT_FILES})
    list(APPEND without ${arg_TSAN_WITHOUT})
  endif()
  if(without_files)
    file(GLOB left_out CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" ${without_files})
    list(REMOVE_ITEM sources ${left_out})
  endif()
  if(NOT sources)
    return()
  endif()

  add_executable(${name} ${sources})
  tutti_compile_flags(${name})
  tutti_test_flags(${name})
  if(arg_LAYERS)
    list(TRANSFORM arg_LAYERS PREPEND tutti_)
    target_link_libraries(${name} PRIVATE ${arg_LAYERS} GTest::gtest_main)
  else()
    target_link_libraries(${name} PRIVATE tutti_test_support)
    tutti_torch_headers(${name})
  endif()
  if(NOT TUTTI_UNITY STREQUAL "OFF")
    list(LENGTH sources files)
    math(EXPR batch_size "(${files} + ${arg_BATCHES} - 1) / ${arg_BATCHES}")
    set_target_properties(${name} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch_size})
  endif()

  set(filter "")
  if(without)
    list(JOIN without ":" filter)
    set(filter "--gtest_filter=-${filter}")
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${arg_SHARDS})
    set(test ${name})
    if(arg_SHARDS GREATER 1)
      set(test ${name}_${shard})
    endif()
    add_test(NAME ${test} COMMAND ${name} ${filter})
    tutti_test_setup(${test} ${arg_LABEL} ${arg_TIMEOUT})
    math(EXPR index "${shard} - 1")
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
      GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${index})
    # Replicas are threads: two test programs at once would only disturb each other.
    set_tests_properties(${test} PROPERTIES RUN_SERIAL ON)
  endforeach()
endfunction()
