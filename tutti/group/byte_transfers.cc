// SPDX-License-Identifier: Apache-2.0
//
// The operations of a lane that only move bytes. All share one implementation: it sends bytes to
// some ranks and receives bytes from some ranks, in as many messages as the links need.

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/group/worker_group.h"

namespace tutti {
namespace {

constexpr uint64_t kMaxTotalBytes = uint64_t{1} << 40;

using Bytes = std::span<const std::byte>;

class ByteTransfer final : public Transfer {
 public:
  ByteTransfer(Lane& lane, const Operation& operation, Deadline deadline,
               std::vector<Lane::Outgoing> outgoing, std::vector<int> sources, Lane::PlaceFn place)
      : Transfer(lane, operation, deadline), place_(std::move(place)) {
    for (const auto& each : outgoing) out_.push_back({each.rank, each.bytes, 0, false});
    for (const int rank : sources) in_.push_back({rank, {}, 0, false, false});
  }

 private:
  struct Out {
    int rank;
    Bytes bytes;
    size_t sent;
    bool all_posted;
  };
  struct In {
    int rank;
    std::span<std::byte> bytes;
    size_t received;
    bool placed;
    bool done;
  };

  int try_advance() override {
    int missing = kDone;
    for (Out& each : out_) {
      if (!send(each)) missing = each.rank;
    }
    for (In& each : in_) {
      if (!each.done && !receive(each)) missing = each.rank;
    }
    return missing;
  }

  bool send(Out& out) {
    Link& link = lane_.link(out.rank);
    while (!out.all_posted) {
      const size_t room = link.room();
      if (room == 0) return false;
      const Bytes piece = out.bytes.subspan(out.sent, std::min(room, out.bytes.size() - out.sent));
      lane_.post(out.rank, fingerprint_, 0, out.bytes.size(), Link::Pieces(&piece, 1));
      out.sent += piece.size();
      out.all_posted = out.sent == out.bytes.size();
    }
    return link.drained();
  }

  // Memory is allocated before the bytes arrive, so a wrong total could exhaust it.
  void check_total(int rank, uint64_t total) {
    if (total <= kMaxTotalBytes) return;
    WorkerGroup& group = lane_.group();
    group.abort(ErrorCode::kInvalidArgument,
                tutti::message(fingerprint_.describe(), ": ", group.name(rank), " announces ",
                               total, " bytes; more than ", kMaxTotalBytes, " are refused."));
    group.throw_if_aborted();
  }

  bool receive(In& in) {
    while (const Incoming* message = lane_.peek(in.rank, fingerprint_)) {
      if (!in.placed) {
        check_total(in.rank, message->head.total);
        in.bytes = place_(in.rank, message->head.total);
        in.placed = true;
      }
      const Bytes bytes = message->bytes;
      if (message->head.total != in.bytes.size() || bytes.size() > in.bytes.size() - in.received) {
        WorkerGroup& group = lane_.group();
        group.abort(ErrorCode::kInvalidArgument,
                    tutti::message(fingerprint_.describe(), ": ", group.name(in.rank), " sends ",
                                   message->head.total, " bytes, but ", group.name(lane_.rank()),
                                   " expects ", in.bytes.size(), ". Sizes must agree."));
        group.throw_if_aborted();
      }
      if (!bytes.empty()) std::memcpy(in.bytes.data() + in.received, bytes.data(), bytes.size());
      in.received += bytes.size();
      lane_.pop(in.rank);
      if (in.received == in.bytes.size()) {
        in.done = true;
        return true;
      }
    }
    return false;
  }

  std::vector<Out> out_;
  std::vector<In> in_;
  Lane::PlaceFn place_;
};

}  // namespace

std::unique_ptr<Transfer> Lane::exchange(const Operation& operation, std::vector<Outgoing> outgoing,
                                         std::vector<Expected> expected, Deadline deadline) {
  std::vector<int> sources;
  const auto check = [this](int peer) {
    if (peer >= 0 && peer < size() && peer != rank()) return;
    throw Error(ErrorCode::kInvalidArgument,
                message("Lane: rank ", rank(), " cannot exchange bytes with rank ", peer, " of ",
                        size(), "."));
  };
  for (const Outgoing& each : outgoing) check(each.rank);
  for (const Expected& each : expected) {
    check(each.rank);
    sources.push_back(each.rank);
  }
  auto place = [expected = std::move(expected)](int rank, size_t) {
    const auto found = std::find_if(expected.begin(), expected.end(),
                                    [rank](const Expected& each) { return each.rank == rank; });
    return found->bytes;
  };
  return std::make_unique<ByteTransfer>(*this, operation, deadline, std::move(outgoing),
                                        std::move(sources), std::move(place));
}

std::unique_ptr<Transfer> Lane::all_gather(Operation operation, Bytes mine, PlaceFn place,
                                           Deadline deadline) {
  operation.kind = OperationKind::kAllGather;
  const std::span<std::byte> own = place(rank(), mine.size());
  TUTTI_CHECK(own.size() == mine.size());
  if (!mine.empty() && own.data() != mine.data()) {
    std::memcpy(own.data(), mine.data(), mine.size());
  }
  std::vector<Outgoing> outgoing;
  std::vector<int> sources;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    outgoing.push_back({r, mine});
    sources.push_back(r);
  }
  return std::make_unique<ByteTransfer>(*this, operation, deadline, std::move(outgoing),
                                        std::move(sources), std::move(place));
}

std::unique_ptr<Transfer> Lane::broadcast(Operation operation, int root, std::span<std::byte> bytes,
                                          Deadline deadline) {
  operation.kind = OperationKind::kBroadcast;
  if (root < 0 || root >= size()) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Lane::broadcast: there is no rank ", root, "; there are ", size(), "."));
  }
  std::vector<Outgoing> outgoing;
  std::vector<Expected> expected;
  if (root == rank()) {
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) outgoing.push_back({r, bytes});
    }
  } else {
    expected.push_back({root, bytes});
  }
  return exchange(operation, std::move(outgoing), std::move(expected), deadline);
}

std::unique_ptr<Transfer> Lane::barrier(Operation operation, Deadline deadline) {
  operation.kind = OperationKind::kBarrier;
  std::vector<Outgoing> outgoing;
  std::vector<Expected> expected;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    outgoing.push_back({r, {}});
    expected.push_back({r, {}});
  }
  return exchange(operation, std::move(outgoing), std::move(expected), deadline);
}

}  // namespace tutti
