# SPDX-License-Identifier: Apache-2.0
#
# tutti_tests():       one GoogleTest executable out of globbed test files, and its ctest entries.
# tutti_test_setup():  what every ctest entry has: a label, a timeout, sanitizer options.

set(TUTTI_TIMEOUT_FACTOR 1)
set(TUTTI_TEST_ENVIRONMENT "")
if(TUTTI_SANITIZE)
  set(TUTTI_TIMEOUT_FACTOR 6)  # Sanitizers make tests several times slower.
endif()
if(TUTTI_SANITIZE MATCHES "thread")
  # LibTorch is not instrumented. There is no suppression file: one that names LibTorch would also
  # hide our own races inside its hooks.
  set(TUTTI_TEST_ENVIRONMENT
    ENVIRONMENT "TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1")
elseif(TUTTI_SANITIZE MATCHES "undefined")
  set(TUTTI_TEST_ENVIRONMENT ENVIRONMENT "UBSAN_OPTIONS=print_stacktrace=1")
endif()

function(tutti_test_setup name label seconds)
  math(EXPR timeout "${seconds} * ${TUTTI_TIMEOUT_FACTOR}")
  set_tests_properties(${name} PROPERTIES
    LABELS ${label} TIMEOUT ${timeout} ${TUTTI_TEST_ENVIRONMENT})
endfunction()

# tutti_tests(<name> FILES <globs>... [LABEL <label>] [TIMEOUT <seconds>] [TSAN_WITHOUT <filters>...])
#
# A program that links LibTorch takes more than half a second to start, so an executable is one
# ctest entry. The thread sanitizer leaves out what has nothing to show it: cases with one thread.
function(tutti_tests name)
  cmake_parse_arguments(arg "" "LABEL;TIMEOUT" "FILES;TSAN_WITHOUT" ${ARGN})
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" ${arg_FILES})
  if(NOT sources)
    return()
  endif()

  add_executable(${name} ${sources})
  tutti_compile_flags(${name})
  # Most of the time goes into templates of headers; optimising them again finds nothing.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  target_link_libraries(${name} PRIVATE tutti_test_support)
  if(NOT TUTTI_UNITY STREQUAL "OFF")
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
  endif()

  set(filter "")
  if(TUTTI_SANITIZE STREQUAL "thread" AND arg_TSAN_WITHOUT)
    list(JOIN arg_TSAN_WITHOUT ":" filter)
    set(filter "--gtest_filter=-${filter}")
  endif()
  add_test(NAME ${name} COMMAND ${name} ${filter})
  tutti_test_setup(${name} ${arg_LABEL} ${arg_TIMEOUT})
  # Replicas are threads: two test programs at once would only disturb each other.
  set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
endfunction()
