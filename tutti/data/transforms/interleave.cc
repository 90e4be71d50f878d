// SPDX-License-Identifier: Apache-2.0
//
// interleave: several datasets are open at a time and provide elements in turn. Only the consumer
// advances the cycle, so the order does not depend on threads. Reading an element of an open
// dataset and opening the next one are units of work, which the consumer does itself when it needs
// them, or threads do ahead of it.

#include <algorithm>
#include <deque>
#include <exception>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"
#include "tutti/data/internal/inner_passes.h"
#include "tutti/data/transforms.h"
#include "tutti/device/cpu_threads.h"

namespace tutti::data {
namespace {

constexpr int64_t kMaxCycle = 1 << 16;

// An open dataset. While it is busy, one thread uses the stream without a lock; the rest
// belongs to the mutex of the InterleaveStream.
struct Source {
  int64_t number = 0;
  Element element = {};  // the input element that it was opened for
  NodePtr node = nullptr;
  std::unique_ptr<Iteration> iteration = nullptr;
  std::unique_ptr<ElementStream> stream = nullptr;
  std::deque<Element> buffer = {};
  bool busy = false;
  bool ended = false;  // nothing follows the buffer, except the error
  std::exception_ptr error = nullptr;
};
using SourcePtr = std::shared_ptr<Source>;

class InterleaveStream final : public ElementStream {
 public:
  InterleaveStream(std::unique_ptr<ElementStream> input, const ExpandFn& fn,
                   const InnerPasses& passes, const InterleaveOptions& options)
      : input_(std::move(input)),
        fn_(fn),
        passes_(passes),
        block_length_(options.block_length),
        num_threads_(options.num_parallel_calls == kAutoParallel ? usable_cores()
                                                                 : options.num_parallel_calls),
        ordered_(options.ordered || num_threads_ == 0),
        capacity_(static_cast<size_t>(
            std::clamp<int64_t>(2 * std::min<int64_t>(block_length_, 8), 2, 16))),
        slots_(static_cast<size_t>(options.cycle_length)) {}

  ~InterleaveStream() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      room_.notify_all();
      changed_.notify_all();
    }
    threads_.clear();  // joins
  }

  bool next(Element& out) override {
    start();
    mutex_.lock();
    while (true) {
      const Outcome outcome = ordered_ ? take_in_turn(out) : take_ready(out);
      if (outcome == Outcome::kError) {
        const std::exception_ptr error = error_;  // stays
        stopping_ = true;
        room_.notify_all();
        changed_.notify_all();
        mutex_.unlock();
        std::rethrow_exception(error);
      }
      if (outcome != Outcome::kWait) {
        mutex_.unlock();
        return outcome == Outcome::kElement;
      }
      if (num_threads_ > 0) {
        changed_.wait(mutex_);
        continue;
      }
      const SourcePtr source = needed_;
      begin(source);
      mutex_.unlock();
      work_on(source);
      mutex_.lock();
    }
  }

  // Elements that were read ahead are part of the position; restoring recreates open datasets from
  // their input elements.
  void save(StateWriter& state) override {
    const MutexLock lock(mutex_);
    if (error_ != nullptr) std::rethrow_exception(error_);
    paused_ = true;
    while (busy_ > 0) changed_.wait(mutex_);
    paused_ = false;
    room_.notify_all();
    state.tag("interleave");
    passes_.save(state);
    state.number(opened_);
    state.number(static_cast<int64_t>(slots_.size()));
    state.number(static_cast<int64_t>(cycle_));
    state.number(block_);
    for (const SourcePtr& slot : slots_) {
      state.number(slot != nullptr ? 1 : 0);
      if (slot != nullptr) save_source(*slot, state);
    }
    state.number(static_cast<int64_t>(futures_.size()));
    for (const SourcePtr& source : futures_) save_source(*source, state);
    state.number(input_ended_ ? 1 : 0);
    input_->save(state);  // no thread reads it before this lock is released
  }

  void restore(StateReader& state) override {
    const MutexLock lock(mutex_);
    TUTTI_CHECK(threads_.empty());
    state.tag("interleave");
    passes_.restore(state);
    opened_ = state.count(INT64_MAX);
    const int64_t length = state.count(kMaxCycle);
    if (length != static_cast<int64_t>(slots_.size())) {
      throw Error(ErrorCode::kDataLoss,
                  message("Iterator::restore: the position belongs to a different pipeline: its "
                          "interleave has a cycle_length of ",
                          length, ", this one has ", slots_.size(), "."));
    }
    cycle_ = static_cast<size_t>(state.count(length - 1));
    block_ = state.count(block_length_ - 1);
    for (SourcePtr& slot : slots_) {
      if (state.count(1) == 1) slot = restore_source(state);
    }
    futures_.clear();
    for (int64_t left = state.count(INT32_MAX); left > 0; --left) {
      futures_.push_back(restore_source(state));
    }
    input_ended_ = state.count(1) == 1;
    input_->restore(state);
  }

 private:
  enum class Outcome { kElement, kEnd, kWait, kError };

  // ---- the consumer

  Outcome take_in_turn(Element& out) TUTTI_REQUIRES(mutex_) {
    while (true) {
      SourcePtr& slot = slots_[cycle_];
      if (slot != nullptr) {
        if (!slot->buffer.empty()) return deliver(out);
        if (slot->error != nullptr) return fail(*slot);
        if (!slot->ended) {
          needed_ = slot;
          return Outcome::kWait;
        }
        close_slot(slot);
        end_block();  // the slot gets a new dataset at its next turn
      } else if (!futures_.empty()) {
        fill_slot(slot);
      } else if (!input_ended_) {
        needed_ = nullptr;
        return Outcome::kWait;
      } else if (nothing_open()) {
        return Outcome::kEnd;
      } else {
        end_block();
      }
    }
  }

  Outcome take_ready(Element& out) TUTTI_REQUIRES(mutex_) {
    if (error_ != nullptr) return Outcome::kError;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const size_t index = (cycle_ + i) % slots_.size();
      SourcePtr& slot = slots_[index];
      while (slot != nullptr || !futures_.empty()) {
        if (slot == nullptr) fill_slot(slot);
        if (!slot->buffer.empty()) {
          if (i > 0) block_ = 0;
          cycle_ = index;
          return deliver(out);
        }
        if (slot->error != nullptr) return fail(*slot);
        if (!slot->ended) break;
        close_slot(slot);
      }
    }
    return input_ended_ && nothing_open() ? Outcome::kEnd : Outcome::kWait;
  }

  Outcome deliver(Element& out) TUTTI_REQUIRES(mutex_) {
    Source& source = *slots_[cycle_];
    out = std::move(source.buffer.front());
    source.buffer.pop_front();
    if (++block_ == block_length_) end_block();
    room_.notify_one();
    return Outcome::kElement;
  }

  Outcome fail(const Source& source) TUTTI_REQUIRES(mutex_) {
    error_ = source.error;
    return Outcome::kError;
  }

  void close_slot(SourcePtr& slot) TUTTI_REQUIRES(mutex_) {
    slot = nullptr;
    room_.notify_one();
  }

  void fill_slot(SourcePtr& slot) TUTTI_REQUIRES(mutex_) {
    slot = std::move(futures_.front());
    futures_.pop_front();
  }

  void end_block() TUTTI_REQUIRES(mutex_) {
    block_ = 0;
    cycle_ = (cycle_ + 1) % slots_.size();
  }

  bool nothing_open() const TUTTI_REQUIRES(mutex_) { return open_sources() == 0; }

  size_t open_sources() const TUTTI_REQUIRES(mutex_) {
    return futures_.size() + slots_.size() -
           static_cast<size_t>(std::count(slots_.begin(), slots_.end(), nullptr));
  }

  // ---- units of work: reading a source, or opening the next one (null)

  void start() {
    for (int i = static_cast<int>(threads_.size()); i < num_threads_; ++i) {
      threads_.push_back(std::make_unique<Thread>("tutti/interleave", [this] {
        const TorchThreadsScope one_thread(1);  // the parallelism is across these threads
        SourcePtr source;
        while (wait_for_work(source)) work_on(source);
      }));
    }
  }

  bool wait_for_work(SourcePtr& source) {
    const MutexLock lock(mutex_);
    while (!stopping_ && (paused_ || !choose(source))) room_.wait(mutex_);
    if (stopping_) return false;
    begin(source);
    return true;
  }

  // Chooses the emptiest buffer, searching from the consumer's position; opens a new dataset if no
  // buffer is empty.
  bool choose(SourcePtr& source) const TUTTI_REQUIRES(mutex_) {
    source = nullptr;
    const auto consider = [&](const SourcePtr& each) {
      if (each == nullptr || each->busy || each->ended || each->buffer.size() >= capacity_) return;
      if (source == nullptr || each->buffer.size() < source->buffer.size()) source = each;
    };
    for (size_t i = 0; i < slots_.size(); ++i) consider(slots_[(cycle_ + i) % slots_.size()]);
    for (const SourcePtr& each : futures_) consider(each);
    if (source != nullptr && source->buffer.empty()) return true;
    if (!input_ended_ && !input_busy_ &&
        open_sources() < slots_.size() + static_cast<size_t>(num_threads_)) {
      source = nullptr;
      return true;
    }
    return source != nullptr;
  }

  void begin(const SourcePtr& source) TUTTI_REQUIRES(mutex_) {
    ++busy_;
    (source != nullptr ? source->busy : input_busy_) = true;
  }

  void work_on(const SourcePtr& source) {
    if (source == nullptr) {
      open_next();
      return;
    }
    Element element;
    bool has = false;
    std::exception_ptr error;
    try {
      has = source->stream->next(element);
      if (!has) {
        source->stream.reset();
        passes_.stage().count_skipped(source->iteration->skipped());
      }
    } catch (...) {
      error = std::current_exception();
    }
    const MutexLock lock(mutex_);
    if (has) source->buffer.push_back(std::move(element));
    finish(*source, has, error);
  }

  void open_next() {
    const auto source = std::make_shared<Source>();
    std::exception_ptr error;
    bool has = false;
    try {
      has = input_->next(source->element);
    } catch (...) {
      error = std::current_exception();
    }
    {
      const MutexLock lock(mutex_);
      input_busy_ = false;
      input_ended_ = !has;
      if (!has && error == nullptr) {
        --busy_;
        changed_.notify_all();
        return;
      }
      source->busy = true;
      source->number = opened_++;
      futures_.push_back(source);
      room_.notify_one();
    }
    try {
      if (has) source->node = passes_.stage().measure([&] { return fn_(source->element); });
    } catch (...) {
      error = std::current_exception();
    }
    try {
      if (error == nullptr) begin_pass(*source);
    } catch (...) {
      error = std::current_exception();
    }
    const MutexLock lock(mutex_);
    finish(*source, error == nullptr, error);
  }

  void begin_pass(Source& source) {
    source.iteration = passes_.inner(source.number);
    source.stream = source.node->iterate(*source.iteration);
  }

  void finish(Source& source, bool goes_on, std::exception_ptr error) TUTTI_REQUIRES(mutex_) {
    --busy_;
    source.busy = false;
    source.ended = !goes_on;
    source.error = std::move(error);
    room_.notify_one();
    changed_.notify_all();
  }

  // ---- positions

  static void save_source(const Source& source, StateWriter& state) {
    if (source.error != nullptr) std::rethrow_exception(source.error);
    state.number(static_cast<int64_t>(source.buffer.size()));
    for (const Element& element : source.buffer) state.element(element);
    state.number(source.ended ? 1 : 0);
    if (source.ended) return;
    state.number(source.number);
    state.element(source.element);
    source.stream->save(state);
  }

  SourcePtr restore_source(StateReader& state) {
    auto source = std::make_shared<Source>();
    for (int64_t left = state.count(INT32_MAX); left > 0; --left) {
      source->buffer.push_back(state.element());
    }
    source->ended = state.count(1) == 1;
    if (source->ended) return source;
    source->number = state.count(INT64_MAX);
    source->element = state.element();
    source->node = passes_.stage().measure([&] { return fn_(source->element); });
    begin_pass(*source);
    source->stream->restore(state);
    return source;
  }

  std::unique_ptr<ElementStream> input_;
  const ExpandFn& fn_;
  InnerPasses passes_;
  const int64_t block_length_;
  const int num_threads_;
  const bool ordered_;
  const size_t capacity_;  // of a buffer

  Mutex mutex_;
  CondVar room_;                                            // there is work
  CondVar changed_;                                         // work was done
  std::vector<SourcePtr> slots_ TUTTI_GUARDED_BY(mutex_);   // the cycle
  std::deque<SourcePtr> futures_ TUTTI_GUARDED_BY(mutex_);  // opened before a slot is free
  size_t cycle_ TUTTI_GUARDED_BY(mutex_) = 0;
  int64_t block_ TUTTI_GUARDED_BY(mutex_) = 0;  // elements delivered from this slot in its turn
  SourcePtr needed_ TUTTI_GUARDED_BY(mutex_);   // the source the consumer waits for
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
  int64_t opened_ TUTTI_GUARDED_BY(mutex_) = 0;
  int busy_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool input_busy_ TUTTI_GUARDED_BY(mutex_) = false;
  bool input_ended_ TUTTI_GUARDED_BY(mutex_) = false;
  bool paused_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Thread>> threads_;  // last: they use all the above
};

class InterleaveNode final : public Node {
 public:
  InterleaveNode(NodePtr from, ExpandFn fn, const InterleaveOptions& options, PassCounter passes)
      : Node({std::move(from)}),
        fn_(std::move(fn)),
        options_(options),
        passes_(std::move(passes)) {}

  std::string_view name() const override { return "interleave"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<InterleaveNode>(std::move(inputs[0]), fn_, options_, passes_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<InterleaveStream>(input().iterate(iteration), fn_,
                                              InnerPasses(iteration, *this, *passes_), options_);
  }
  NodeTraits traits() const override { return {.in_order = in_order(), .expand = fn_}; }
  int64_t cardinality() const override { return input().cardinality() == 0 ? 0 : kUnknown; }

 private:
  NodePtr in_order() const {
    if (options_.ordered || options_.num_parallel_calls == 0) return nullptr;
    InterleaveOptions options = options_;
    options.ordered = true;
    return std::make_shared<InterleaveNode>(inputs()[0], fn_, options, passes_);
  }

  ExpandFn fn_;
  InterleaveOptions options_;
  PassCounter passes_;
};

}  // namespace

NodePtr make_interleave(NodePtr input, ExpandFn fn, const InterleaveOptions& options) {
  if (options.cycle_length < 1 || options.cycle_length > kMaxCycle) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset::interleave: cycle_length is ", options.cycle_length,
                        "; it must be between 1 and ", kMaxCycle, "."));
  }
  if (options.block_length < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset::interleave: block_length is ", options.block_length,
                        "; it must be 1 or more."));
  }
  if (options.num_parallel_calls < kAutoParallel) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset::interleave: num_parallel_calls is ", options.num_parallel_calls,
                        "; it must be 0 (the consumer's thread), positive, or kAutoParallel."));
  }
  return std::make_shared<InterleaveNode>(std::move(input), std::move(fn), options,
                                          make_pass_counter());
}

}  // namespace tutti::data
