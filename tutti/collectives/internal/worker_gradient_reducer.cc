// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/internal/worker_gradient_reducer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nest/leaf.h"

namespace tutti::internal {
namespace {

constexpr std::chrono::seconds kLookAround{1};

std::string layout_text(const std::vector<GradientBucket>& buckets) {
  std::string text;
  for (const GradientBucket& bucket : buckets) {
    text +=
        message(dtype_name(bucket.dtype()), "[", bucket.numel(), "] from '", bucket.name, "'\n");
  }
  return text;
}

std::string line_of(const std::string& text, size_t line) {
  size_t begin = 0;
  for (size_t i = 0; i < line && begin != std::string::npos; ++i) {
    begin = text.find('\n', begin);
    if (begin != std::string::npos) ++begin;
  }
  if (begin == std::string::npos || begin >= text.size()) return "nothing more";
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

WorkerGradientReducer::WorkerGradientReducer(std::shared_ptr<WorkerGroup> group,
                                             const WorkerTree& tree,
                                             std::vector<GradientBucket> buckets,
                                             std::optional<std::chrono::milliseconds> timeout)
    : GradientReducer(std::move(buckets)),
      group_(std::move(group)),
      tree_(tree),
      timeout_(timeout),
      replicas_(static_cast<size_t>(tree.local_replicas())),
      states_(this->buckets().size()) {
  for (size_t b = 0; b < states_.size(); ++b) {
    const at::ScalarType dtype = this->buckets()[b].dtype();
    const at::ScalarType inner = node_dtype(ReduceOp::kSum, dtype);
    if (inner == dtype) continue;
    for (size_t i = 0; i < tree_.nodes(group_->rank()).size(); ++i) {
      states_[b].scratch.push_back(group_->arena()->empty({this->buckets()[b].numel()}, inner));
    }
  }
  check_layout();
  group_->gradient_reducers().fetch_add(1);
  if (group_->options().has_remote) {
    thread_ = std::make_unique<Thread>("tutti/gradients", [this] { thread_body(); });
  }
}

WorkerGradientReducer::~WorkerGradientReducer() {
  if (thread_ != nullptr && under_way_.load()) {
    group_->abort(ErrorCode::kCancelled, message("an optimizer of ", group_->name(group_->rank()),
                                                 " was dropped in the middle of a step."));
  }
  stopping_.store(true);
  news_.bump();
  thread_ = nullptr;
  group_->gradient_reducers().fetch_sub(1);
}

// Ranks whose layouts differ would add gradients of different parameters.
void WorkerGradientReducer::check_layout() {
  const std::string mine = layout_text(buckets());
  std::vector<std::string> all(static_cast<size_t>(group_->size()));
  Communicator& channel = group_->channel(GroupChannel::kGradients);
  Operation operation;
  operation.name = "layout of the gradients";
  channel
      .all_gather(
          operation, std::as_bytes(std::span(mine)),
          [&](int rank, size_t bytes) {
            std::string& place = all[static_cast<size_t>(rank)];
            place.resize(bytes);
            return std::as_writable_bytes(std::span(place));
          },
          channel.deadline(timeout_))
      ->wait();
  for (int r = 0; r < group_->size(); ++r) {
    const std::string& theirs = all[static_cast<size_t>(r)];
    if (theirs == mine) continue;
    size_t line = 0;
    while (line_of(mine, line) == line_of(theirs, line)) ++line;
    throw Error(
        ErrorCode::kFailedPrecondition,
        message("DistributedOptimizer: the gradients of the workers are not laid out alike: "
                "bucket ",
                line, " is ", line_of(mine, line), " on ", group_->name(group_->rank()), ", but ",
                line_of(theirs, line), " on ", group_->name(r),
                ". All workers must train the same model with the same options."));
  }
}

// With several optimizers the order in which buckets become full may differ between workers; that
// of step() does not.
bool WorkerGradientReducer::may_begin_early() const {
  return group_->gradient_reducers().load(std::memory_order_relaxed) == 1;
}

void WorkerGradientReducer::ready(size_t, size_t bucket, void* place) {
  TUTTI_CHECK(place == nullptr);
  const size_t filled = states_[bucket].filled.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (filled == replicas_ && thread_ != nullptr && may_begin_early()) news_.bump();
}

void WorkerGradientReducer::help(size_t) {
  if (thread_ != nullptr || !may_begin_early() || failed_.load(std::memory_order_acquire)) return;
  if (!driver_.try_lock()) return;
  try {
    progress(/*may_wait=*/false);
  } catch (...) {
    fail(std::current_exception());  // finish() throws it, where all replicas are
  }
  driver_.unlock();
}

bool WorkerGradientReducer::progress(bool may_wait) {
  while (next_ < states_.size()) {
    if (transfer_ == nullptr) {
      if (states_[next_].filled.load(std::memory_order_acquire) != replicas_) return false;
      start_bucket(next_);
      under_way_.store(true);
    }
    if (may_wait) {
      transfer_->wait();
    } else if (!transfer_->advance()) {
      return false;
    }
    transfer_ = nullptr;
    under_way_.store(false);
    ++next_;
  }
  return true;
}

void WorkerGradientReducer::start_bucket(size_t b) {
  const GradientBucket& bucket = buckets()[b];
  const std::span<const TreeNode> nodes = tree_.nodes(group_->rank());
  const int first = group_->rank() * tree_.local_replicas();
  WorkerReduction job;
  job.op = ReduceOp::kSum;
  job.dtype = bucket.dtype();
  job.count = bucket.numel();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const at::Tensor& node = states_[b].scratch.empty()
                                 ? bucket.memory[static_cast<size_t>(nodes[i].begin - first)]
                                 : states_[b].scratch[i];
    job.nodes.push_back(node.data_ptr());
  }
  for (const at::Tensor& memory : bucket.memory) job.outputs.push_back(memory.data_ptr());
  const bool needs_nodes = !states_[b].scratch.empty() || nodes.size() < replicas_;
  if (needs_nodes) {
    job.prepare = [this, b, nodes, first, memory = job.nodes](int64_t begin, int64_t end) {
      const GradientBucket& mine = buckets()[b];
      for (size_t i = 0; i < nodes.size(); ++i) {
        std::vector<const void*> inputs;
        for (int g = nodes[i].begin; g < nodes[i].end; ++g) {
          inputs.push_back(mine.memory[static_cast<size_t>(g - first)].data_ptr());
        }
        if (inputs.size() == 1 && inputs[0] == memory[i]) continue;
        reduce_to_node(ReduceOp::kSum, mine.dtype(), inputs, const_cast<void*>(memory[i]), begin,
                       end);
      }
    };
  }
  const std::string name = message("gradients ", b, ": ", bucket.name);
  const std::array<int64_t, 1> sizes = {job.count};
  Operation operation;
  operation.name = name;
  operation.sizes = sizes;
  Communicator& channel = group_->channel(GroupChannel::kGradients);
  transfer_ =
      start_all_reduce(channel, tree_, std::move(job), operation, channel.deadline(timeout_));
}

std::unique_ptr<Transfer> WorkerGradientReducer::start_flags() {
  all_flags_.resize(flags_.size() * static_cast<size_t>(group_->size()));
  const std::array<int64_t, 1> sizes = {static_cast<int64_t>(flags_.size())};
  Operation operation;
  operation.name = "flags of a step";
  operation.sizes = sizes;
  Communicator& channel = group_->channel(GroupChannel::kFlags);
  return channel.all_gather(
      operation, std::as_bytes(std::span(flags_)),
      [this](int rank, size_t) {
        return std::as_writable_bytes(std::span(all_flags_))
            .subspan(static_cast<size_t>(rank) * flags_.size(), flags_.size());
      },
      channel.deadline(timeout_));
}

// All local replicas are in finish(). The flags go ahead of what is left of the buckets, and are
// looked at after it, so that they cost no way of their own.
void WorkerGradientReducer::drive_to_end() {
  std::unique_ptr<Transfer> flags;
  if (!flags_.empty()) {
    flags = start_flags();
    flags->advance();
  }
  TUTTI_CHECK(progress(/*may_wait=*/true));
  if (flags == nullptr) return;
  flags->wait();
  for (size_t i = 0; i < all_flags_.size(); ++i) flags_[i % flags_.size()] |= all_flags_[i];
}

bool WorkerGradientReducer::finish(size_t replica, ChunkFn) {
  const uint64_t step = steps_done_.load(std::memory_order_acquire);
  arrived_.fetch_add(1, std::memory_order_acq_rel);
  news_.bump();
  const auto over = [&] {
    return failed_.load(std::memory_order_acquire) ||
           steps_done_.load(std::memory_order_acquire) != step;
  };
  // Whoever drives has deadlines of its own, one for each bucket.
  Communicator& channel = group_->channel(GroupChannel::kGradients);
  const Deadline deadline = Deadline::at(std::min(
      Deadline::Clock::time_point::max(),
      Deadline::Clock::now() + 2 * (channel.deadline(timeout_).when() - Deadline::Clock::now())));
  if (thread_ == nullptr && replica == 0) {
    const auto all_here = [this] {
      return failed_.load(std::memory_order_acquire) ||
             arrived_.load(std::memory_order_acquire) == replicas_;
    };
    wait_until(all_here, deadline, "the other replicas of its worker");
    const MutexLock lock(driver_);
    try {
      if (!failed_.load(std::memory_order_acquire)) {
        drive_to_end();
        clear();
      }
    } catch (...) {
      fail(std::current_exception());
    }
  }
  wait_until(over, deadline, "the sums of the gradients");
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(error_);
  return false;
}

void WorkerGradientReducer::wait_until(const std::function<bool()>& over, const Deadline& deadline,
                                       const char* what) {
  while (!over()) {
    const uint32_t seen = news_.load();
    if (over()) return;
    news_.wait(seen, group_->options().wait_mode, Deadline::after(kLookAround));
    if (!deadline.passed() || over()) continue;
    fail(std::make_exception_ptr(
        Error(ErrorCode::kDeadlineExceeded,
              message("DistributedOptimizer::step: a replica of ", group_->name(group_->rank()),
                      " waited too long for ", what, "."))));
  }
}

void WorkerGradientReducer::clear() {
  for (Bucket& state : states_) state.filled.store(0, std::memory_order_relaxed);
  next_ = 0;
  arrived_.store(0, std::memory_order_relaxed);
  steps_done_.fetch_add(1, std::memory_order_release);
  news_.bump();
}

void WorkerGradientReducer::fail(std::exception_ptr error) {
  if (failed_.load(std::memory_order_relaxed)) return;
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  news_.bump();
}

void WorkerGradientReducer::thread_body() {
  while (!stopping_.load()) {
    const uint32_t seen = news_.load();
    bool idle = true;
    try {
      const MutexLock lock(driver_);
      const bool all_here = arrived_.load(std::memory_order_acquire) == replicas_;
      if (!failed_.load(std::memory_order_acquire) && (all_here || may_begin_early())) {
        if (all_here) {
          drive_to_end();
          clear();
          idle = false;
        } else {
          progress(/*may_wait=*/true);
        }
      }
    } catch (...) {
      fail(std::current_exception());
    }
    if (idle) news_.wait(seen, WaitMode::kYield, Deadline::after(kLookAround));
  }
}

void WorkerGradientReducer::reset() {
  const MutexLock lock(driver_);
  bool begun = transfer_ != nullptr || next_ > 0;
  for (const Bucket& state : states_) begun = begun || state.filled.load() > 0;
  // Other workers may have begun to sum what this one drops: all go through the step, and drop it.
  if (begun && may_begin_early() && !group_->aborted() && !failed_.load()) {
    for (Bucket& state : states_) state.filled.store(replicas_);
    TUTTI_CHECK(progress(/*may_wait=*/true));
  }
  transfer_ = nullptr;
  for (Bucket& state : states_) state.filled.store(0, std::memory_order_relaxed);
  next_ = 0;
  arrived_.store(0, std::memory_order_relaxed);
}

}  // namespace tutti::internal
