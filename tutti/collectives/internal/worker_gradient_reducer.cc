// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/internal/worker_gradient_reducer.h"

#include <array>
#include <span>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nest/leaf.h"

namespace tutti::internal {
namespace {

constexpr std::chrono::seconds kLookAround{1};
constexpr std::chrono::milliseconds kLookAtReplicas{20};
// A layout that differs is shown in an error, unless it is very much larger.
constexpr size_t kMaxLayoutFactor = 8;
constexpr size_t kSomeBytes = 8 << 20;

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
                                             std::optional<std::chrono::milliseconds> timeout,
                                             Copies copies)
    : GradientReducer(std::move(buckets)),
      group_(std::move(group)),
      tree_(tree),
      timeout_(timeout),
      replicas_(static_cast<size_t>(tree.local_replicas())),
      states_(this->buckets().size()) {
  for (size_t b = 0; b < states_.size(); ++b) {
    states_[b].name = message("gradients ", b, ": ", this->buckets()[b].name);
    const at::ScalarType dtype = this->buckets()[b].dtype();
    const at::ScalarType inner = node_dtype(ReduceOp::kSum, dtype);
    const std::vector<at::Tensor>& memory = this->buckets()[b].memory;
    for (size_t r = 0; r < memory.size(); ++r) {
      if (memory[r].device().is_cpu() && copies != Copies::kAlways) continue;
      states_[b].host.push_back(group_->arena()->empty(memory[r].sizes(), dtype));
    }
    TUTTI_CHECK(states_[b].host.empty() || states_[b].host.size() == memory.size());
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

// Without this check, ranks whose layouts differ would add gradients of different parameters.
void WorkerGradientReducer::check_layout() {
  const std::string mine = layout_text(buckets());
  std::vector<std::string> all(static_cast<size_t>(group_->size()));
  Lane& lane = group_->lane(LaneKind::kGradients);
  Operation operation;
  operation.name = "layout of the gradients";
  lane.all_gather(
          operation, std::as_bytes(std::span(mine)),
          [&](int rank, size_t bytes) {
            check_size(rank, bytes, kMaxLayoutFactor * (mine.size() + kSomeBytes));
            std::string& place = all[static_cast<size_t>(rank)];
            place.resize(bytes);
            return std::as_writable_bytes(std::span(place));
          },
          lane.deadline(timeout_))
      ->wait();
  for (int r = 0; r < group_->size(); ++r) {
    const std::string& theirs = all[static_cast<size_t>(r)];
    if (theirs == mine) continue;
    size_t line = 0;
    while (line < buckets().size() && line_of(mine, line) == line_of(theirs, line)) ++line;
    throw Error(
        ErrorCode::kFailedPrecondition,
        message("DistributedOptimizer: the gradients of the workers are laid out differently: "
                "bucket ",
                line, " is ", line_of(mine, line), " on ", group_->name(group_->rank()), ", but ",
                line_of(theirs, line), " on ", group_->name(r),
                ". All workers must train the same model with the same options."));
  }
}

// Called before memory is allocated for what a worker sends.
void WorkerGradientReducer::check_size(int rank, size_t bytes, size_t limit) const {
  if (bytes <= limit) return;
  throw Error(
      ErrorCode::kFailedPrecondition,
      message("DistributedOptimizer: ", group_->name(rank), " sends ", bytes,
              " bytes as its layout, but ", group_->name(group_->rank()), " accepts at most ",
              limit, ". All workers must train the same model with the same options."));
}

// With several optimizers the order in which buckets become full may differ between workers; that
// of step() does not.
bool WorkerGradientReducer::may_begin_early() const {
  return group_->gradient_reducers().load(std::memory_order_relaxed) == 1;
}

const at::Tensor& WorkerGradientReducer::memory(size_t bucket, size_t replica) const {
  const std::vector<at::Tensor>& host = states_[bucket].host;
  return host.empty() ? buckets()[bucket].memory[replica] : host[replica];
}

// Each replica calls it on its own thread, so that its device has computed what is copied.
void WorkerGradientReducer::copy_to_host(size_t replica) {
  for (size_t b = 0; b < states_.size(); ++b) {
    if (states_[b].host.empty()) continue;
    states_[b].host[replica].copy_(buckets()[b].memory[replica]);
    states_[b].filled.fetch_add(1, std::memory_order_acq_rel);
  }
}

void WorkerGradientReducer::copy_from_host(size_t replica) {
  for (size_t b = 0; b < states_.size(); ++b) {
    if (states_[b].host.empty()) continue;
    buckets()[b].memory[replica].copy_(states_[b].host[replica]);
  }
}

void WorkerGradientReducer::ready(size_t, size_t bucket, void* place) {
  TUTTI_CHECK(place == nullptr);
  if (!states_[bucket].host.empty()) return;  // finish() copies it
  const size_t filled = states_[bucket].filled.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (filled == replicas_ && thread_ != nullptr && may_begin_early()) news_.bump();
}

void WorkerGradientReducer::help(size_t) {
  if (thread_ != nullptr || !may_begin_early() || failed_.load(std::memory_order_acquire)) return;
  if (!driver_.try_lock()) return;
  try {
    progress(Progress::kWithoutWaiting);
  } catch (...) {
    fail(std::current_exception());  // finish() throws it on all replicas
  }
  driver_.unlock();
}

bool WorkerGradientReducer::progress(Progress how) {
  while (next_ < states_.size()) {
    if (transfer_ == nullptr) {
      if (states_[next_].filled.load(std::memory_order_acquire) != replicas_) return false;
      start_bucket(next_);
      under_way_.store(true);
    }
    if (how == Progress::kToEnd) {
      transfer_->set_deadline(group_->lane(LaneKind::kGradients).deadline(timeout_));
      transfer_->wait();
    } else if (how == Progress::kWhileBackwardRuns) {
      while (!transfer_->wait_until(Deadline::after(kLookAtReplicas))) {
        const bool all_here = arrived_.load(std::memory_order_acquire) == replicas_;
        if (all_here || resetting_.load() || stopping_.load()) return false;
      }
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
                                 ? memory(b, static_cast<size_t>(nodes[i].begin - first))
                                 : states_[b].scratch[i];
    job.nodes.push_back(node.data_ptr());
  }
  for (size_t r = 0; r < replicas_; ++r) job.outputs.push_back(memory(b, r).data_ptr());
  const bool needs_nodes = !states_[b].scratch.empty() || nodes.size() < replicas_;
  if (needs_nodes) {
    job.prepare = [this, b, own_nodes = job.nodes](int64_t begin, int64_t end) {
      c10::SmallVector<const void*, 8> inputs;
      for (size_t r = 0; r < replicas_; ++r) inputs.push_back(memory(b, r).data_ptr());
      reduce_own_nodes(tree_, group_->rank(), ReduceOp::kSum, buckets()[b].dtype(), inputs,
                       own_nodes, begin, end);
    };
  }
  const std::array<int64_t, 1> sizes = {job.count};
  Operation operation;
  operation.name = states_[b].name;
  operation.sizes = sizes;
  // Backward and step() may be in different runs, and some workers may fill the bucket in a later
  // run than others. The note of the step detects workers in different steps.
  operation.must_share_step = false;
  Lane& lane = group_->lane(LaneKind::kGradients);
  // No deadline yet; the thread that waits for the transfer sets one.
  transfer_ = start_all_reduce(lane, tree_, std::move(job), operation, Deadline::forever());
}

bool WorkerGradientReducer::finish(size_t replica, ChunkFn) {
  const uint64_t step = steps_done_.load(std::memory_order_acquire);
  copy_to_host(replica);
  arrived_.fetch_add(1, std::memory_order_acq_rel);
  news_.bump();
  const auto over = [&] {
    return failed_.load(std::memory_order_acquire) ||
           steps_done_.load(std::memory_order_acquire) != step;
  };
  // The thread that drives has a deadline for each exchange; this one is later than all of them.
  // In floating point, which does not overflow for a timeout that means forever.
  const std::chrono::duration<double> timeout = timeout_.value_or(group_->options().timeout);
  const Deadline deadline = Deadline::after(static_cast<double>(states_.size() + 2) * timeout);
  if (thread_ == nullptr && replica == 0) {
    const auto all_here = [this] {
      return failed_.load(std::memory_order_acquire) ||
             arrived_.load(std::memory_order_acquire) == replicas_;
    };
    wait_until(all_here, deadline, "the other replicas of its worker");
    const MutexLock lock(driver_);
    try {
      if (!failed_.load(std::memory_order_acquire)) {
        TUTTI_CHECK(progress(Progress::kToEnd));
        clear();
      }
    } catch (...) {
      fail(std::current_exception());
    }
  }
  wait_until(over, deadline, "the sums of the gradients");
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(error_);
  copy_from_host(replica);
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
                      " waited too long for ", what,
                      ". Check what the other replicas are doing, or raise "
                      "communication_options.timeout."))));
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
  if (failing_.exchange(true)) return;
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
          TUTTI_CHECK(progress(Progress::kToEnd));
          clear();
          idle = false;
        } else {
          progress(Progress::kWhileBackwardRuns);
        }
      }
    } catch (...) {
      fail(std::current_exception());
    }
    if (idle) news_.wait(seen, WaitMode::kYield, Deadline::after(kLookAround));
  }
}

bool WorkerGradientReducer::reset() {
  resetting_.store(true);  // the thread that holds the lock may be waiting for others
  const MutexLock lock(driver_);
  resetting_.store(false);
  bool begun = transfer_ != nullptr || next_ > 0;
  for (const Bucket& state : states_) begun = begun || state.filled.load() > 0;
  // Other workers may have begun to sum what this one drops: all complete the step.
  const bool completes = begun && may_begin_early() && !group_->aborted() && !failed_.load();
  if (completes) {
    for (Bucket& state : states_) state.filled.store(replicas_);
    TUTTI_CHECK(progress(Progress::kToEnd));
  }
  transfer_ = nullptr;
  for (Bucket& state : states_) state.filled.store(0, std::memory_order_relaxed);
  next_ = 0;
  arrived_.store(0, std::memory_order_relaxed);
  return completes;
}

}  // namespace tutti::internal
