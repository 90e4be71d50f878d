# SPDX-License-Identifier: Apache-2.0
#
# Every option of the build, and the defaults that follow from being the top-level project or not.

option(TUTTI_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_INSTALL "Make the install rules" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_WERROR "Treat compiler warnings as errors" OFF)

set(TUTTI_WITH_GRPC AUTO CACHE STRING "Connections to other processes, through gRPC and OpenSSL: ON, \
OFF, or AUTO: if both are installed")
set_property(CACHE TUTTI_WITH_GRPC PROPERTY STRINGS AUTO ON OFF)

set(TUTTI_TORCH "" CACHE STRING "LibTorch: the folder of an unpacked one, \"debian\" for the system's, or empty: \
first CMAKE_PREFIX_PATH, then what tools/get_libtorch.py has fetched, then the system's")

set(TUTTI_SANITIZE "" CACHE STRING
  "Sanitizers for everything built here: empty, \"address,undefined\" or \"thread\"")
set_property(CACHE TUTTI_SANITIZE PROPERTY STRINGS "" "address,undefined" "thread")

# LibTorch's headers cost far more than our code, so a few large translation units build quickest.
set(TUTTI_UNITY "TESTS" CACHE STRING "What is built in unity mode: OFF, TESTS or ALL")
set_property(CACHE TUTTI_UNITY PROPERTY STRINGS OFF TESTS ALL)
if(NOT TUTTI_UNITY MATCHES "^(OFF|TESTS|ALL)$")
  message(FATAL_ERROR "TUTTI_UNITY is \"${TUTTI_UNITY}\"; it must be OFF, TESTS or ALL.")
endif()

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

  # The base directory lets another clone of the same sources reuse the cache.
  find_program(CCACHE_PROGRAM ccache)
  if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros "${CCACHE_PROGRAM}")
  endif()
endif()
