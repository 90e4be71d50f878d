# SPDX-License-Identifier: Apache-2.0
#
# The installed package: library, headers, find_package(tutti) and pkg-config.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tutti")
install(TARGETS tutti EXPORT tuttiTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILE_SET generated DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION "${package_dir}")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/tuttiConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/tuttiConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tuttiConfig.cmake"
  "${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake" DESTINATION "${package_dir}")
if(TUTTI_WITH_GRPC)
  install(FILES "${CMAKE_CURRENT_LIST_DIR}/FindTuttiGrpc.cmake" DESTINATION "${package_dir}")
endif()

# pkg-config does not know LibTorch's CMake targets, so tutti.pc spells out what was found here.
# Its prefix is relative to the file, so that an installed tree can be moved.
set(pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH pc_prefix "/prefix/${pc_dir}" "/prefix")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(pc_dir "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig")
  file(RELATIVE_PATH pc_prefix "${pc_dir}" "${CMAKE_INSTALL_PREFIX}")
endif()
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
get_filename_component(torch_lib_dir "${TORCH_LIBRARY}" DIRECTORY)
list(TRANSFORM TORCH_INCLUDE_DIRS PREPEND "-I" OUTPUT_VARIABLE torch_cflags)
list(JOIN torch_cflags " " torch_cflags)
set(torch_cflags "${TORCH_CXX_FLAGS} ${torch_cflags}")
set(torch_libs "-ltorch_cpu -lc10")
if(TORCH_LIBRARY MATCHES "libtorch\\.so$")  # the one that Tutti fetches has none
  string(PREPEND torch_libs "-ltorch ")
endif()
string(PREPEND torch_libs "-L${torch_lib_dir} ")
if(NOT torch_lib_dir IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  string(APPEND torch_libs " -Wl,-rpath,${torch_lib_dir}")
endif()
set(grpc_libs "")
if(TUTTI_WITH_GRPC)
  set(grpc_libs "-lgrpc++ -lgrpc -lgpr -labsl_synchronization -lssl -lcrypto ")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/tutti.pc.in" "${PROJECT_BINARY_DIR}/tutti.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/tutti.pc" DESTINATION "${pc_dir}")
