// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/connect.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/group/shared_memory/shared_memory_mesh.h"

namespace tutti {
namespace {

// On one machine, the chunks that are sent to all peers simultaneously should fit into a core's
// cache. Between machines, several larger chunks under way hide the latency.
constexpr size_t kNearChunkBytes = 256 << 10;
constexpr size_t kMinNearChunkBytes = 64 << 10;
constexpr size_t kRemoteChunkBytes = 1 << 20;
constexpr size_t kNearDepth = 2;
constexpr size_t kRemoteDepth = 4;

// Kept alive for the links, which are destroyed first.
struct Backends {
  std::unique_ptr<internal::SharedMemoryMesh> shared_memory;
  std::shared_ptr<RemoteLinks> remote;
};

size_t near_chunk_bytes(int ranks) {
  const auto peers = static_cast<size_t>(std::max(1, ranks - 1));
  return std::max(kMinNearChunkBytes, std::bit_floor(kNearChunkBytes / peers));
}

std::string describe_links(const std::vector<int>& near, const std::vector<int>& far,
                           const std::string& reason) {
  const char* const why = " (its memory can be mapped)";
  if (far.empty()) return near.empty() ? "nothing, it is alone" : message("shared memory", why);
  if (near.empty()) return message("grpc (", reason, ")");
  return message("shared memory for ranks ", joined(near), ", grpc for ranks ", joined(far), " (",
                 reason, ")");
}

}  // namespace

std::shared_ptr<WorkerGroup> make_group(const GroupOptions& options) {
  const auto size = static_cast<int>(options.names.size());
  if (options.rank < 0 || options.rank >= size || !options.gather) {
    throw Error(ErrorCode::kInvalidArgument,
                message("make_group: rank ", options.rank, " of ", size,
                        " is impossible, or there is no gather function. Set GroupOptions::rank, "
                        "names and gather."));
  }
  const Deadline deadline = Deadline::after(options.connect_timeout);
  const bool use_shared_memory = options.implementation != CommunicationImplementation::kGrpc;
  auto backends = std::make_shared<Backends>();
  backends->remote = options.remote;
  if (use_shared_memory) {
    backends->shared_memory =
        std::make_unique<internal::SharedMemoryMesh>(internal::SharedMemoryMesh::Options{
            options.rank, size, options.epoch, kLanes, options.segment_bytes});
    backends->shared_memory->connect(options.gather, deadline);
  }
  std::vector<int> near;
  std::vector<int> far;
  std::string reason = "asked for";
  for (int r = 0; r < size; ++r) {
    if (r == options.rank) continue;
    const bool reached = use_shared_memory && backends->shared_memory->reaches(r);
    (reached ? near : far).push_back(r);
    if (use_shared_memory && !reached)
      reason = message("rank ", r, ": ", backends->shared_memory->reason(r));
  }
  std::shared_ptr<Arena> shared;
  if (!near.empty())
    shared = std::make_shared<internal::SegmentArena>(backends->shared_memory->segment());
  if (!far.empty() && options.implementation == CommunicationImplementation::kHost) {
    throw Error(
        ErrorCode::kUnavailable,
        message("make_group: ", options.names[static_cast<size_t>(options.rank)],
                " cannot share memory with ", options.names[static_cast<size_t>(far[0])], ": ",
                reason,
                ". Use kAuto or kGrpc for workers on different machines or of other users."));
  }
  // Every rank must know which backends any rank uses, because all cut reductions equally.
  bool any_far = false;
  bool any_near = false;
  const auto has = [](const std::vector<int>& ranks) { return ranks.empty() ? '0' : '1'; };
  for (const std::string& each : options.gather(std::string{has(far), has(near)})) {
    any_far = any_far || each.starts_with('1');
    any_near = any_near || each.ends_with('1');
  }
  if (any_far) {
    if (options.remote == nullptr) {
      throw Error(ErrorCode::kUnavailable,
                  message("make_group: no transport connects all ranks: ", reason,
                          ". Set GroupOptions::remote for ranks on different machines."));
    }
    backends->remote->connect(far, deadline);
  }
  WorkerGroup::Links links(kLanes);
  for (size_t c = 0; c < kLanes; ++c) {
    links[c].resize(static_cast<size_t>(size));
    for (const int r : near)
      links[c][static_cast<size_t>(r)] = backends->shared_memory->make_link(c, r);
    for (const int r : far) links[c][static_cast<size_t>(r)] = backends->remote->make_link(c, r);
  }
  WorkerGroup::Options made;
  made.rank = options.rank;
  made.epoch = options.epoch;
  made.names = options.names;
  const auto threads = (near.size() + 1) * static_cast<size_t>(options.local_replicas);
  made.wait_mode =
      threads <= static_cast<size_t>(usable_cores()) ? WaitMode::kSpin : WaitMode::kYield;
  made.chunk_bytes = any_far ? kRemoteChunkBytes : near_chunk_bytes(size);
  if (any_near) made.chunk_bytes = std::min(made.chunk_bytes, internal::Segment::kStagedBytes);
  made.depth = any_far ? kRemoteDepth : kNearDepth;
  made.has_remote = any_far;
  made.timeout = options.timeout;
  made.warning = options.warning;
  made.description = describe_links(near, far, reason);
  return std::make_shared<WorkerGroup>(std::move(made), std::move(links), std::move(shared),
                                       std::move(backends));
}

}  // namespace tutti
