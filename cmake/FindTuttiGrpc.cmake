# SPDX-License-Identifier: Apache-2.0
#
# TuttiGrpc::grpc: gRPC's C++ library. gRPC's own package file also requires protobuf and its
# compiler, which are not used here. Installed with a tutti that has gRPC, whose package file needs it too.

find_path(TuttiGrpc_INCLUDE_DIR grpcpp/generic/generic_stub.h)
set(TuttiGrpc_LIBRARIES "")
foreach(name grpc++ grpc gpr absl_synchronization)  # the last: gRPC's headers lock
  find_library(TuttiGrpc_${name}_LIBRARY ${name})
  mark_as_advanced(TuttiGrpc_${name}_LIBRARY)
  list(APPEND TuttiGrpc_LIBRARIES "${TuttiGrpc_${name}_LIBRARY}")
endforeach()
mark_as_advanced(TuttiGrpc_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TuttiGrpc
  REQUIRED_VARS TuttiGrpc_grpc++_LIBRARY TuttiGrpc_grpc_LIBRARY TuttiGrpc_gpr_LIBRARY
    TuttiGrpc_absl_synchronization_LIBRARY TuttiGrpc_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "gRPC's C++ library is needed (Debian: libgrpc++-dev)")

if(TuttiGrpc_FOUND AND NOT TARGET TuttiGrpc::grpc)
  add_library(TuttiGrpc::grpc INTERFACE IMPORTED GLOBAL)
  set_target_properties(TuttiGrpc::grpc PROPERTIES
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TuttiGrpc_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${TuttiGrpc_LIBRARIES}")
endif()
