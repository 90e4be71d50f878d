# SPDX-License-Identifier: Apache-2.0
#
# Third-party packages. Any version of LibTorch is accepted, and the few differences between versions are
# guarded in the sources.

# A project that adds this one as a subdirectory also links these targets.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_package(CURL REQUIRED)

# From here on, TUTTI_WITH_GRPC is ON or OFF.
if(TUTTI_WITH_GRPC STREQUAL "AUTO")
  find_package(OpenSSL QUIET)
  find_package(TuttiGrpc QUIET)
  if(OpenSSL_FOUND AND TuttiGrpc_FOUND)
    set(TUTTI_WITH_GRPC ON)
  else()
    set(TUTTI_WITH_GRPC OFF)
    message(STATUS "TUTTI_WITH_GRPC: gRPC or OpenSSL is not installed (Debian: libgrpc++-dev, libssl-dev), so workers \
in several processes are left out")
  endif()
elseif(TUTTI_WITH_GRPC)
  find_package(OpenSSL REQUIRED)
  find_package(TuttiGrpc REQUIRED)
endif()

# Use the pinned LibTorch if it was fetched.
set(fetched "")
if(TUTTI_TORCH STREQUAL "")
  execute_process(COMMAND "${CMAKE_CURRENT_LIST_DIR}/../tools/get_libtorch.py" --cached
    OUTPUT_VARIABLE fetched OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()

# CMake caches what it has found. A build tree that is given a different LibTorch searches again.
set(wanted "${TUTTI_TORCH}|${fetched}")
if(DEFINED Torch_DIR AND NOT "${TUTTI_TORCH_LOOKED_FOR}" STREQUAL wanted)
  message(STATUS "Searching for LibTorch again, instead of using that in ${Torch_DIR}")
  foreach(name Torch_DIR Caffe2_DIR TORCH_LIBRARY C10_LIBRARY C10_CUDA_LIBRARY kineto_LIBRARY)
    unset(${name} CACHE)
  endforeach()
endif()
set(TUTTI_TORCH_LOOKED_FOR "${wanted}" CACHE INTERNAL "")

if(TUTTI_TORCH STREQUAL "")
  find_package(Torch QUIET HINTS "${fetched}")
elseif(TUTTI_TORCH STREQUAL "debian")
  find_package(Torch QUIET
    NO_PACKAGE_ROOT_PATH NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH NO_CMAKE_PACKAGE_REGISTRY)
else()
  find_package(Torch QUIET PATHS "${TUTTI_TORCH}" NO_DEFAULT_PATH)
endif()
if(NOT Torch_FOUND)
  message(FATAL_ERROR
    "LibTorch was not found (TUTTI_TORCH is \"${TUTTI_TORCH}\"). Fetch it (tools/get_libtorch.py), install Debian's "
    "(apt-get install libtorch-dev), or point TUTTI_TORCH or CMAKE_PREFIX_PATH at an unpacked LibTorch.")
endif()
if(TUTTI_BUILD_TESTS AND TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR
    "The LibTorch in ${Torch_DIR} uses the C++ ABI from before C++11, which GoogleTest does not. "
    "Take LibTorch's cxx11 ABI package, or configure with -DTUTTI_BUILD_TESTS=OFF.")
endif()
message(STATUS "LibTorch ${Torch_VERSION}: ${Torch_DIR}")

# Clang cannot parse the operator headers of LibTorch before 2.1 as C++20 unless this one is first.
set(TUTTI_CLANG_TORCH_OPTIONS "")
if(Torch_VERSION VERSION_LESS 2.1)
  set(TUTTI_CLANG_TORCH_OPTIONS
    "$<$<COMPILE_LANG_AND_ID:CXX,Clang,AppleClang>:SHELL:-include ATen/core/ivalue.h>")
endif()
