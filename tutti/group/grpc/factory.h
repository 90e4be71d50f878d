// SPDX-License-Identifier: Apache-2.0
//
// Makes the links between ranks on different machines; see grpc_links.h.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/group/connect.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/listener.h"

namespace tutti {

/// `addresses` has one for each rank: where its listener is. Peers may open their streams
/// immediately.
std::shared_ptr<RemoteLinks> make_grpc_links(std::shared_ptr<rpc::Listener> listener, int rank,
                                             uint64_t epoch, std::vector<std::string> addresses,
                                             const rpc::ChannelOptions& options);

}  // namespace tutti
