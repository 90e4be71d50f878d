# SPDX-License-Identifier: Apache-2.0
#
# Third-party packages. LibTorch comes from the system, or from CMAKE_PREFIX_PATH; any version is
# accepted, and the few differences between versions are guarded in the sources.

# A project that adds this one as a subdirectory links these targets too.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(TuttiGrpc REQUIRED)

find_package(Torch QUIET)
if(NOT Torch_FOUND)
  message(FATAL_ERROR
    "LibTorch was not found. Install it (Debian: apt-get install libtorch-dev), or point "
    "CMAKE_PREFIX_PATH at an unpacked LibTorch.")
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
