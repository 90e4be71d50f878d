# SPDX-License-Identifier: Apache-2.0
#
# find_package(Torch) for a LibTorch that tools/get_libtorch.py has taken out of the torch wheel: its CPU part, without
# a CUDA toolkit. Defines what LibTorch's own package file does for a program in C++: the target torch, TORCH_LIBRARY,
# TORCH_LIBRARIES, TORCH_INCLUDE_DIRS, TORCH_CXX_FLAGS.

get_filename_component(TORCH_INSTALL_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(TORCH_INCLUDE_DIRS
  "${TORCH_INSTALL_PREFIX}/include" "${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include")
set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")
set(TORCH_LIBRARY "${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so")
set(TORCH_LIBRARIES torch)

if(NOT TARGET torch)
  foreach(name c10 torch_cpu)
    add_library(${name} SHARED IMPORTED)
    set_target_properties(${name} PROPERTIES
      IMPORTED_LOCATION "${TORCH_INSTALL_PREFIX}/lib/lib${name}.so"
      INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
      INTERFACE_COMPILE_OPTIONS "${TORCH_CXX_FLAGS}"
      INTERFACE_COMPILE_FEATURES cxx_std_20)
  endforeach()
  set_target_properties(torch_cpu PROPERTIES INTERFACE_LINK_LIBRARIES c10)

  # The name is that of LibTorch's own target. libtorch.so, which only depends on the CUDA part, is
  # left out.
  add_library(torch INTERFACE IMPORTED)
  set_target_properties(torch PROPERTIES
    INTERFACE_COMPILE_OPTIONS "${TORCH_CXX_FLAGS}"
    INTERFACE_LINK_LIBRARIES "torch_cpu;c10")
endif()

set(Torch_FOUND TRUE)
