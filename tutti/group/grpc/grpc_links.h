// SPDX-License-Identifier: Apache-2.0
//
// Messages between ranks on different machines: for each other rank one authenticated connection,
// with a stream of byte buffers for each lane in each direction.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/group/connect.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/listener.h"

namespace tutti::internal {

class RemotePeer;

/// See RemoteLinks. Other ranks may open their streams as soon as it is made. Threads: as
/// RemoteLinks.
class GrpcLinks final : public RemoteLinks {
 public:
  struct Options {
    int rank = 0;
    uint64_t epoch = 0;
    std::vector<std::string> addresses = {};  ///< One per rank: where it listens.
    rpc::ChannelOptions channel = {};
  };

  GrpcLinks(std::shared_ptr<rpc::Listener> listener, Options options);
  /// Sends a goodbye, and gives the others a moment to do the same.
  ~GrpcLinks() override;
  GrpcLinks(const GrpcLinks&) = delete;
  GrpcLinks& operator=(const GrpcLinks&) = delete;

  void connect(const std::vector<int>& ranks, const Deadline& deadline) override;
  std::unique_ptr<Link> make_link(size_t lane, int rank) override;

 private:
  void await_streams(int rank, const Deadline& deadline);

  const std::shared_ptr<rpc::Listener> listener_;
  const Options options_;
  std::vector<std::shared_ptr<RemotePeer>> peers_;  // one per rank
  std::vector<int> connected_;
};

}  // namespace tutti::internal
