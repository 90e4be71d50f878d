// SPDX-License-Identifier: Apache-2.0
//
// Takes the place of join.cc, rendezvous/ and grpc/ in a build without gRPC.

#include "tutti/base/error.h"
#include "tutti/group/connect.h"
#include "tutti/group/join.h"

namespace tutti {

std::shared_ptr<RemoteLinks> make_remote_links(const GroupOptions&, const RemoteOptions&) {
  throw Error(ErrorCode::kUnimplemented,
              "make_remote_links: gRPC is not in this build, which connects workers through shared "
              "memory only. Configure with -DTUTTI_WITH_GRPC=ON.");
}

namespace internal {

JoinedWorkers join_workers(const WorkerRendezvousOptions& options) {
  throw Error(ErrorCode::kUnimplemented,
              message("MultiWorkerMirroredStrategy: the ", options.names.size(),
                      " workers find each other through gRPC, which is not in this build. "
                      "Configure with -DTUTTI_WITH_GRPC=ON."));
}

}  // namespace internal
}  // namespace tutti
