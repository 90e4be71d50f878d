# SPDX-License-Identifier: Apache-2.0
#
# tutti_layer():         one folder under tutti/ becomes the object library tutti_<folder>.
# tutti_compile_flags(): the flags of every target that is built here; users do not inherit them.

function(tutti_compile_flags target)
  # Contraction would make the bits of a sum depend on the compiler's optimisations.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -ffp-contract=off
    $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wthread-safety>
    $<$<BOOL:${TUTTI_WERROR}>:-Werror>)
  # LibTorch's headers take up a gigabyte of GCC's memory for good, so collecting garbage before
  # that only takes time.
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  if(TUTTI_SANITIZE)
    # The instrumentation makes GCC see uninitialised values in c10::optional that are not there, and
    # keeps Clang from vectorising loops. The thread sanitizer does not support fences, which
    # LibTorch's headers have for Python.
    target_compile_options(${target} PRIVATE -fsanitize=${TUTTI_SANITIZE} -fno-sanitize=vptr
      -fno-sanitize-recover=all -fno-omit-frame-pointer
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-tsan>
      $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wno-pass-failed>)
    # Two checks of every access through a pointer make the compiler take three times as long. Null
    # pointers show without them, and messages and files are read by memcpy.
    if(TUTTI_SANITIZE MATCHES "undefined")
      target_compile_options(${target} PRIVATE -fno-sanitize=null,alignment)
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${TUTTI_SANITIZE})
  endif()
endfunction()

# tutti_layer(<folder> [NO_LIBTORCH] [DEPENDS <folders>...] [HEADERS <files>...] [SOURCES <files>...])
#
# DEPENDS are the layers below that this one includes; tools/check_layers.py holds the same table.
# NO_LIBTORCH layers do not see LibTorch, so that programs without it can use them.
# All HEADERS are installed; those in internal/ are there only because templates need them.
function(tutti_layer folder)
  cmake_parse_arguments(arg "NO_LIBTORCH" "" "DEPENDS;HEADERS;SOURCES" ${ARGN})
  set(target tutti_${folder})

  add_library(${target} OBJECT ${arg_SOURCES} ${arg_HEADERS})
  tutti_compile_flags(${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON LINKER_LANGUAGE CXX)
  target_include_directories(${target} PUBLIC
    "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/generated")
  list(TRANSFORM arg_DEPENDS PREPEND tutti_ OUTPUT_VARIABLE depends)
  target_link_libraries(${target} PUBLIC ${depends} Threads::Threads)
  if(arg_NO_LIBTORCH)
    # They still use the same C++ ABI as LibTorch.
    target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:torch,INTERFACE_COMPILE_OPTIONS>)
  else()
    target_link_libraries(${target} PUBLIC torch)
    target_compile_options(${target} PUBLIC ${TUTTI_CLANG_TORCH_OPTIONS})
  endif()
  if(TUTTI_UNITY STREQUAL "ALL")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    # GCC treats a source as a main file only as long as nothing includes it.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()

  set_property(GLOBAL APPEND PROPERTY TUTTI_LAYERS ${target})
  list(TRANSFORM arg_HEADERS PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set_property(GLOBAL APPEND PROPERTY TUTTI_HEADERS ${arg_HEADERS})
endfunction()
