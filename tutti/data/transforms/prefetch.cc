// SPDX-License-Identifier: Apache-2.0
//
// prefetch: a thread that stays up to n elements ahead of the consumer.

#include <deque>
#include <exception>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

class PrefetchStream final : public ElementStream {
 public:
  PrefetchStream(std::unique_ptr<ElementStream> input, size_t capacity)
      : input_(std::move(input)), capacity_(capacity) {}

  ~PrefetchStream() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      room_.notify_all();
    }
    thread_.reset();  // joins
  }

  bool next(Element& out) override {
    if (thread_ == nullptr) {
      thread_ = std::make_unique<Thread>("tutti/prefetch", [this] { work(); });
    }
    mutex_.lock();
    while (buffer_.empty() && !ended_) changed_.wait(mutex_);
    if (!buffer_.empty()) {
      out = std::move(buffer_.front());
      buffer_.pop_front();
      room_.notify_one();
      mutex_.unlock();
      return true;
    }
    const std::exception_ptr error = error_;
    mutex_.unlock();
    if (error != nullptr) std::rethrow_exception(error);
    return false;
  }

  void save(StateWriter& state) override {
    const MutexLock lock(mutex_);
    paused_ = true;
    while (reading_) changed_.wait(mutex_);
    paused_ = false;
    room_.notify_all();
    if (error_ != nullptr) std::rethrow_exception(error_);
    state.tag("prefetch");
    state.number(static_cast<int64_t>(buffer_.size()));
    for (const Element& element : buffer_) state.element(element);
    state.number(ended_ ? 1 : 0);
    input_->save(state);  // the thread does not read before this lock is released
  }

  void restore(StateReader& state) override {
    const MutexLock lock(mutex_);
    TUTTI_CHECK(thread_ == nullptr);
    state.tag("prefetch");
    const int64_t size = state.count(INT32_MAX);
    for (int64_t i = 0; i < size; ++i) buffer_.push_back(state.element());
    ended_ = state.count(1) == 1;
    input_->restore(state);
  }

 private:
  void work() {
    while (true) {
      {
        const MutexLock lock(mutex_);
        while (!stopping_ && !ended_ && (paused_ || buffer_.size() >= capacity_)) {
          room_.wait(mutex_);
        }
        if (stopping_ || ended_) return;
        reading_ = true;
      }
      Element element;
      bool has = false;
      std::exception_ptr error;
      try {
        has = input_->next(element);
      } catch (...) {
        error = std::current_exception();
      }
      const MutexLock lock(mutex_);
      reading_ = false;
      if (has) buffer_.push_back(std::move(element));
      ended_ = !has;
      error_ = error;
      changed_.notify_all();
    }
  }

  std::unique_ptr<ElementStream> input_;
  const size_t capacity_;
  Mutex mutex_;
  CondVar room_;
  CondVar changed_;
  std::deque<Element> buffer_ TUTTI_GUARDED_BY(mutex_);
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
  bool reading_ TUTTI_GUARDED_BY(mutex_) = false;
  bool ended_ TUTTI_GUARDED_BY(mutex_) = false;
  bool paused_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;  // last: it uses all the above
};

class PrefetchNode final : public Node {
 public:
  PrefetchNode(NodePtr from, int64_t buffer_size)
      : Node({std::move(from)}), buffer_size_(buffer_size) {}

  std::string_view name() const override { return "prefetch"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<PrefetchNode>(std::move(inputs[0]), buffer_size_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    if (buffer_size_ == 0) return input().iterate(iteration);
    return std::make_unique<PrefetchStream>(input().iterate(iteration),
                                            static_cast<size_t>(buffer_size_));
  }
  // Whoever asks for indices stays ahead on a thread of their own.
  const Node* batched_rows() const override { return input().batched_rows(); }
  std::unique_ptr<IndexBatchStream> iterate_index_batches(Iteration& iteration) const override {
    return input().iterate_index_batches(iteration);
  }
  int64_t cardinality() const override { return input().cardinality(); }
  ElementSpec spec() const override { return input().spec(); }
  std::optional<int64_t> batch_size() const override { return input().batch_size(); }

 private:
  int64_t buffer_size_;
};

}  // namespace

NodePtr make_prefetch(NodePtr input, int64_t buffer_size) {
  if (buffer_size < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset::prefetch: buffer_size is ", buffer_size,
                        "; it must be 0 (none) or more."));
  }
  return std::make_shared<PrefetchNode>(std::move(input), buffer_size);
}

}  // namespace tutti::data
