// SPDX-License-Identifier: Apache-2.0
//
// Finds the ranks on this machine and maps their segments: each rank offers its segment through a
// local socket, and a rank that can receive and map it is on the same machine.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/group/shared_memory/segment.h"
#include "tutti/group/shared_memory/shared_memory_link.h"
#include "tutti/rpc/shared_memory/local_socket.h"

namespace tutti::internal {

/// Gives the text of every rank to every rank; all ranks call it together.
using GatherFn = std::function<std::vector<std::string>(const std::string& mine)>;

/// The segments of a group, as one rank sees them. Not thread-safe; the links do not depend on it.
class SharedMemoryMesh {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    uint64_t epoch = 0;
    size_t lanes = 0;
    size_t segment_bytes = size_t{16} << 30;
  };

  explicit SharedMemoryMesh(const Options& options);
  ~SharedMemoryMesh();
  SharedMemoryMesh(const SharedMemoryMesh&) = delete;
  SharedMemoryMesh& operator=(const SharedMemoryMesh&) = delete;

  /// All ranks call it together. Afterwards reaches() is known.
  void connect(const GatherFn& gather, const Deadline& deadline);

  /// Whether the rank is on this machine. The answer is the same on both ranks.
  bool reaches(int rank) const { return reached_[static_cast<size_t>(rank)]; }
  /// Why it is not; empty if it is.
  const std::string& reason(int rank) const { return reasons_[static_cast<size_t>(rank)]; }

  std::unique_ptr<Link> make_link(size_t lane, int rank) const;
  /// Null if the system provides no shared memory: then no rank is reached.
  const std::shared_ptr<Segment>& segment() const { return segment_; }

 private:
  struct Hello;

  void accept_from(const std::vector<bool>& expected, const Deadline& deadline);
  void send_segment(int socket) const;
  void receive_segment(int socket, int rank, const Deadline& deadline);
  rpc::FileDescriptor receive_descriptor(int socket, int* rank, const Deadline& deadline) const;
  void map_segment(int descriptor, int rank);

  const Options options_;
  std::shared_ptr<Segment> segment_;
  std::string problem_;                         // why there is no segment
  std::optional<rpc::LocalListener> listener_;  // until all are connected
  std::vector<rpc::FileDescriptor> sockets_;    // one per rank, until the links own them
  std::vector<std::shared_ptr<const PeerSocket>> peers_;
  std::vector<std::shared_ptr<const Segment>> segments_;
  std::vector<bool> reached_;
  std::vector<std::string> reasons_;
};

}  // namespace tutti::internal
