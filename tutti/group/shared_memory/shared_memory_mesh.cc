// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/shared_memory/shared_memory_mesh.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace tutti::internal {
namespace {

// Sentinel in place of the name of a socket; no name begins with it.
const std::string kNoSegment = "!";
constexpr uint64_t kHelloMagic = 0x736567316d656e74;

std::string table_text(const std::vector<bool>& table) {
  std::string text;
  for (const bool each : table) text += each ? '1' : '0';
  return text;
}

}  // namespace

struct SharedMemoryMesh::Hello {
  uint64_t magic;
  uint64_t epoch;
  int64_t rank;
};

SharedMemoryMesh::SharedMemoryMesh(const Options& options)
    : options_(options),
      sockets_(static_cast<size_t>(options.size)),
      peers_(sockets_.size()),
      segments_(sockets_.size()),
      reached_(sockets_.size()),
      reasons_(sockets_.size()) {
  try {
    segment_ =
        Segment::create(options.epoch, options.rank,
                        {options.lanes, static_cast<size_t>(options.size), options.segment_bytes});
    listener_.emplace(options.size + 8);
  } catch (const Error& error) {
    segment_ = nullptr;
    problem_ = error.what();
    while (problem_.ends_with('.')) problem_.pop_back();  // it becomes a part of sentences
  }
}

SharedMemoryMesh::~SharedMemoryMesh() {
  if (segment_ != nullptr) {
    segment_->set_failure(Segment::State::kLeft, ErrorCode::kUnavailable, "");
  }
}

void SharedMemoryMesh::connect(const GatherFn& gather, const Deadline& deadline) {
  const auto me = static_cast<size_t>(options_.rank);
  const std::vector<std::string> names =
      gather(segment_ != nullptr ? listener_->name() : kNoSegment + problem_);
  std::vector<bool> connected(names.size());
  for (size_t r = 0; r < names.size(); ++r) {
    if (segment_ == nullptr) reasons_[r] = "this rank has none: " + problem_;
    if (names[r].rfind(kNoSegment, 0) == 0 && r != me) {
      reasons_[r] = "it has none: " + names[r].substr(kNoSegment.size());
    }
    if (r >= me || !reasons_[r].empty()) continue;
    sockets_[r] = rpc::connect_locally(names[r]);
    connected[r] = sockets_[r].is_open();
    if (connected[r]) {
      send_segment(sockets_[r].get());
    } else {
      reasons_[r] = "its local socket cannot be reached";
    }
  }
  const std::vector<std::string> tables = gather(table_text(connected));
  std::vector<bool> expected(names.size());
  for (size_t r = me + 1; r < names.size(); ++r) {
    expected[r] = me < tables[r].size() && tables[r][me] == '1';
    if (!expected[r] && reasons_[r].empty())
      reasons_[r] = "it cannot reach the local socket of this rank";
  }
  accept_from(expected, deadline);
  for (size_t r = 0; r < me; ++r) {
    if (connected[r]) receive_segment(sockets_[r].get(), static_cast<int>(r), deadline);
  }
  std::vector<bool> mapped(names.size());
  for (size_t r = 0; r < names.size(); ++r) mapped[r] = segments_[r] != nullptr;
  const std::vector<std::string> results = gather(table_text(mapped));
  for (size_t r = 0; r < names.size(); ++r) {
    const bool theirs = me < results[r].size() && results[r][me] == '1';
    reached_[r] = mapped[r] && theirs;
    if (mapped[r] && !theirs && r != me) reasons_[r] = "it cannot map the memory of this rank";
    if (reached_[r]) peers_[r] = std::make_shared<PeerSocket>(sockets_[r].release());
  }
  listener_.reset();
}

void SharedMemoryMesh::send_segment(int socket) const {
  const Hello hello{kHelloMagic, options_.epoch, options_.rank};
  rpc::send_descriptor(socket, std::as_bytes(std::span(&hello, 1)), segment_->descriptor());
}

rpc::FileDescriptor SharedMemoryMesh::receive_descriptor(int socket, int* rank,
                                                         const Deadline& deadline) const {
  Hello hello{};
  rpc::FileDescriptor descriptor =
      rpc::receive_descriptor(socket, std::as_writable_bytes(std::span(&hello, 1)), deadline);
  if (hello.magic != kHelloMagic || hello.epoch != options_.epoch || hello.rank < 0 ||
      hello.rank >= options_.size) {
    return {};
  }
  *rank = static_cast<int>(hello.rank);
  return descriptor;
}

void SharedMemoryMesh::receive_segment(int socket, int rank, const Deadline& deadline) {
  int sender = -1;
  const rpc::FileDescriptor descriptor = receive_descriptor(socket, &sender, deadline);
  if (descriptor.is_open() && sender == rank) {
    map_segment(descriptor.get(), rank);
  } else {
    reasons_[static_cast<size_t>(rank)] = "it did not send its segment";
  }
}

void SharedMemoryMesh::map_segment(int descriptor, int rank) {
  try {
    segments_[static_cast<size_t>(rank)] =
        Segment::attach(descriptor, options_.epoch, rank, segment_->layout());
  } catch (const Error& error) {
    reasons_[static_cast<size_t>(rank)] = error.what();
  }
}

// Unrelated processes may connect too, but they do not know the epoch.
void SharedMemoryMesh::accept_from(const std::vector<bool>& expected, const Deadline& deadline) {
  auto left = std::count(expected.begin(), expected.end(), true);
  while (left > 0 && listener_.has_value()) {
    rpc::FileDescriptor socket = listener_->accept(deadline);
    if (!socket.is_open()) return;
    int rank = -1;
    const rpc::FileDescriptor descriptor = receive_descriptor(socket.get(), &rank, deadline);
    const auto index = static_cast<size_t>(rank);
    if (!descriptor.is_open() || !expected[index] || sockets_[index].is_open()) continue;
    map_segment(descriptor.get(), rank);
    send_segment(socket.get());
    sockets_[index] = std::move(socket);
    --left;
  }
}

std::unique_ptr<Link> SharedMemoryMesh::make_link(size_t lane, int rank) const {
  const auto index = static_cast<size_t>(rank);
  return std::make_unique<SharedMemoryLink>(segment_, segments_[index], lane, options_.rank, rank,
                                            peers_[index]);
}

}  // namespace tutti::internal
