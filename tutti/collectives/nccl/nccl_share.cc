// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_share.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tutti/base/error.h"
#include "tutti/collectives/reduction_tree.h"

namespace tutti::internal {
namespace {

constexpr auto kPollPause = std::chrono::microseconds(50);

// c10 cannot convert a stream to the handle that NCCL expects, except for the default
// stream, whose handle is null. So everything runs on the default stream of each device,
// after what is on the current stream, and the current stream continues after it.
class DefaultStreams {
 public:
  explicit DefaultStreams(std::vector<c10::Device> devices) : devices_(std::move(devices)) {
    const c10::impl::VirtualGuardImpl streams(devices_[0].type());
    for (const c10::Device& device : devices_) {
      current_.push_back(streams.getStream(device));
      defaults_.emplace_back(c10::Stream::DEFAULT, device);
      order(current_.back(), defaults_.back());
    }
    guard_.emplace(defaults_);
  }

  ~DefaultStreams() {
    // This is needed after a failure too: what was already queued must not write later than
    // the program expects. A device that cannot even do this has reported it before.
    try {
      for (size_t i = 0; i < devices_.size(); ++i) order(defaults_[i], current_[i]);
    } catch (const std::exception&) {
    }
  }

  DefaultStreams(const DefaultStreams&) = delete;
  DefaultStreams& operator=(const DefaultStreams&) = delete;

  c10::Event mark(size_t i) const {
    c10::Event event(devices_[i].type());
    event.record(defaults_[i]);
    return event;
  }

 private:
  static void order(const c10::Stream& before, const c10::Stream& after) {
    if (before == after) return;
    c10::Event event(before.device_type());
    event.record(before);
    event.block(after);
  }

  std::vector<c10::Device> devices_;
  std::vector<c10::Stream> current_;
  std::vector<c10::Stream> defaults_;
  std::optional<c10::MultiStreamGuard> guard_;
};

// Buffers of one replica for one pack. They may be freed as soon as all work is queued:
// LibTorch gives the memory only to later work of the same stream.
struct PackBuffers {
  at::Tensor own;       // the replica's elements: chunk j goes to replica j
  at::Tensor received;  // chunk r of every replica, where r is this replica
  at::Tensor reduced;
  at::Tensor gathered;
};

// Queues the work of replicas [first, last), pack by pack:
//
//   own --send chunk j to j--> received --tree--> reduced --all-gather--> gathered
class PackQueue {
 public:
  explicit PackQueue(const NcclShare& share)
      : batch_(share.batch), group_(share.group), first_(share.first), last_(share.last) {}

  void add(const NcclPack& pack) {
    std::vector<PackBuffers> buffers(last_ - first_);
    for_each(buffers, [&](size_t r, PackBuffers& each) { fill(pack, r, each); });
    exchange(pack, buffers);
    for_each(buffers, [&](size_t, PackBuffers& each) { reduce(pack, each); });
    gather(pack, buffers);
    for_each(buffers, [&](size_t r, PackBuffers& each) { hand_out(pack, r, each); });
  }

 private:
  template <class F>
  void for_each(std::vector<PackBuffers>& buffers, F&& fn) {
    for (size_t r = first_; r < last_; ++r) {
      const c10::DeviceGuard guard(group_.device(r));
      fn(r, buffers[r - first_]);
    }
  }

  int64_t padded(const NcclPack& pack) const {
    return pack.chunk * static_cast<int64_t>(batch_.replicas());
  }

  void fill(const NcclPack& pack, size_t r, PackBuffers& buffers) {
    const at::TensorOptions options = batch_.input(r, pack.parts[0].tensor).options();
    buffers.own = at::empty({padded(pack)}, options.requires_grad(false));
    buffers.received = at::empty({padded(pack)}, options.requires_grad(false));
    int64_t at = 0;
    for (const PackPart& part : pack.parts) {
      const at::Tensor flat = batch_.input(r, part.tensor).view(-1);
      buffers.own.narrow(0, at, part.numel()).copy_(flat.narrow(0, part.begin, part.numel()));
      at += part.numel();
    }
    buffers.own.narrow(0, at, padded(pack) - at).zero_();
  }

  void exchange(const NcclPack& pack, std::vector<PackBuffers>& buffers) {
    const size_t bytes = static_cast<size_t>(pack.chunk) * c10::elementSize(pack.dtype);
    NcclGroup::Calls calls(group_, first_, last_);
    for_each(buffers, [&](size_t r, PackBuffers& each) {
      auto* own = static_cast<std::byte*>(each.own.data_ptr());
      auto* received = static_cast<std::byte*>(each.received.data_ptr());
      for (size_t peer = 0; peer < batch_.replicas(); ++peer) {
        calls.send(r, own + peer * bytes, bytes, peer);
        calls.receive(r, received + peer * bytes, bytes, peer);
      }
    });
    calls.submit();
  }

  void reduce(const NcclPack& pack, PackBuffers& buffers) {
    const std::vector<at::Tensor> rows = buffers.received.split(pack.chunk);
    buffers.reduced = reduce_tree(batch_.op(), rows);
    buffers.gathered = at::empty({padded(pack)}, buffers.reduced.options());
  }

  void gather(const NcclPack& pack, std::vector<PackBuffers>& buffers) {
    const size_t bytes = static_cast<size_t>(pack.chunk) * c10::elementSize(pack.reduced_dtype);
    NcclGroup::Calls calls(group_, first_, last_);
    for_each(buffers, [&](size_t r, PackBuffers& each) {
      calls.all_gather(r, each.reduced.data_ptr(), each.gathered.data_ptr(), bytes);
    });
    calls.submit();
  }

  void hand_out(const NcclPack& pack, size_t r, const PackBuffers& buffers) {
    int64_t at = 0;
    for (const PackPart& part : pack.parts) {
      at::Tensor flat = batch_.output(r, part.tensor).view(-1);
      flat.narrow(0, part.begin, part.numel()).copy_(buffers.gathered.narrow(0, at, part.numel()));
      at += part.numel();
    }
  }

  const AllReduceBatch& batch_;
  NcclGroup& group_;
  size_t first_;
  size_t last_;
};

// Waits for the ends of packs, without trusting devices and peers to reach them.
class Completion {
 public:
  explicit Completion(const NcclShare& share)
      : plan_(share.plan), group_(share.group), team_(share.team), first_(share.first) {}

  /// Takes one event of each replica.
  void add_pack(std::vector<c10::Event> ends) { ends_.push_back(std::move(ends)); }

  void wait(const Deadline& deadline, std::chrono::milliseconds timeout) {
    for (size_t p = 0; p < ends_.size(); ++p) {
      for (;;) {
        const uint32_t seen = team_.news().load();
        team_.throw_if_failed();
        const size_t pending = first_pending(p);
        if (pending == ends_[p].size()) break;
        if (deadline.passed()) throw_late(p, first_ + pending, timeout);
        // Woken immediately when another member fails.
        team_.news().park(seen, Deadline::after(kPollPause));
      }
    }
  }

 private:
  size_t first_pending(size_t pack) {
    const std::vector<c10::Event>& ends = ends_[pack];
    for (size_t i = 0; i < ends.size(); ++i) group_.check_async_error(first_ + i);
    for (size_t i = 0; i < ends.size(); ++i) {
      if (!ends[i].query()) return i;
    }
    return ends.size();
  }

  [[noreturn]] void throw_late(size_t pack, size_t replica, std::chrono::milliseconds timeout) {
    throw Error(ErrorCode::kDeadlineExceeded,
                message("NcclAllReduce: ", describe_replica(replica, group_.device(replica)),
                        " has not finished pack ", pack + 1, " of ", plan_.packs.size(), " (",
                        plan_.packs[pack].bytes(), " bytes) within ", timeout.count(),
                        " ms. The communicators were aborted; the next call makes new ones. "
                        "CommunicationOptions::timeout sets the limit."));
  }

  const NcclPlan& plan_;
  NcclGroup& group_;
  NcclTeam& team_;
  size_t first_;
  std::vector<std::vector<c10::Event>> ends_;  // one list per pack
};

}  // namespace

void run_nccl_share(const NcclShare& share, const Deadline& deadline,
                    std::chrono::milliseconds timeout) {
  const at::NoGradGuard no_grad;
  const auto devices = share.plan.devices.begin();
  const DefaultStreams streams({devices + static_cast<std::ptrdiff_t>(share.first),
                                devices + static_cast<std::ptrdiff_t>(share.last)});
  PackQueue queue(share);
  Completion completion(share);
  for (const NcclPack& pack : share.plan.packs) {
    queue.add(pack);
    std::vector<c10::Event> ends;
    for (size_t i = 0; i < share.last - share.first; ++i) ends.push_back(streams.mark(i));
    completion.add_pack(std::move(ends));
  }
  completion.wait(deadline, timeout);
}

}  // namespace tutti::internal
