// SPDX-License-Identifier: Apache-2.0
//
// map and filter. With threads, each thread reserves a place and takes the next run of input
// elements in one step, calls the function outside of all locks, and puts the results into its
// place. They are delivered in the order of the places, or as they get ready.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <list>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"
#include "tutti/data/transforms.h"
#include "tutti/device/cpu_threads.h"

namespace tutti::data {
namespace {

// The current exception of a function of the program, extended by the stage and the element. It
// keeps its type; if nothing can be added to it, the place is logged.
std::exception_ptr with_element(const char* stage, int64_t element, bool is_restored) {
  const auto where = [&] {
    return message("in ", stage, ", element ", element, " of its input, counted from ",
                   is_restored ? "the restored position" : "0");
  };
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context(where());
    return std::current_exception();
  } catch (const Error& error) {
    if (typeid(error) != typeid(Error)) return std::current_exception();
    return std::make_exception_ptr(Error(error.code(), message(error.what(), " (", where(), ")")));
  } catch (const std::exception& error) {
    log(LogLevel::kError, message("an exception ", where(), ": ", error.what()));
    return std::current_exception();
  } catch (...) {
    log(LogLevel::kError, message("an exception ", where()));
    return std::current_exception();
  }
}

class MapStream final : public ElementStream {
 public:
  MapStream(std::unique_ptr<ElementStream> input, const ElementFn& fn, Iteration::Stage& stage)
      : input_(std::move(input)), fn_(fn), stage_(stage) {}

  bool next(Element& out) override {
    if (!input_->next(out)) return false;
    const int64_t element = element_++;
    try {
      out = stage_.measure([&] { return fn_(std::move(out)); });
    } catch (...) {
      std::rethrow_exception(with_element("Dataset::map", element, is_restored_));
    }
    return true;
  }
  int64_t skip(int64_t n) override {
    const int64_t skipped = input_->skip(n);
    element_ += skipped;
    return skipped;
  }
  void save(StateWriter& state) override {
    state.tag("map");
    state.number(0);
    state.number(0);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("map");
    state.count(0);
    state.count(0);
    input_->restore(state);
    is_restored_ = true;
  }

 private:
  std::unique_ptr<ElementStream> input_;
  const ElementFn& fn_;
  Iteration::Stage& stage_;
  int64_t element_ = 0;
  bool is_restored_ = false;
};

// Handing an element from thread to thread costs more than a small function, so threads take runs
// of elements: as many as keep them busy for about this long.
constexpr std::chrono::microseconds kRunTime{1000};
constexpr size_t kLongestRun = 1024;

class ParallelMapStream final : public ElementStream {
 public:
  ParallelMapStream(std::unique_ptr<ElementStream> input, const ElementFn& fn,
                    Iteration::Stage& stage, int threads, bool ordered, bool may_wait)
      : input_(std::move(input)),
        fn_(fn),
        stage_(stage),
        num_threads_(threads),
        ordered_(ordered),
        longest_run_(may_wait ? 1 : kLongestRun),
        capacity_(2 * static_cast<size_t>(threads)) {}

  ~ParallelMapStream() override {
    dropped_.store(true, std::memory_order_relaxed);
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      room_.notify_all();
    }
    threads_.clear();  // joins
  }

  bool next(Element& out) override {
    while (next_ == taken_.size()) {
      if (error_ != nullptr) std::rethrow_exception(error_);
      if (!take_run()) return false;
    }
    out = std::move(taken_[next_++]);
    return true;
  }

  // Results that wait for the consumer are part of the position; pending ones are awaited.
  void save(StateWriter& state) override {
    const MutexLock lock(mutex_);
    paused_ = true;
    while (std::any_of(runs_.begin(), runs_.end(), [](const Run& each) { return !each.ready; })) {
      wait_for_change();
    }
    paused_ = false;
    room_.notify_all();
    if (error_ != nullptr) std::rethrow_exception(error_);
    size_t size = taken_.size() - next_;
    for (const Run& run : runs_) {
      if (run.error != nullptr) std::rethrow_exception(run.error);
      size += run.elements.size();
    }
    state.tag("map");
    state.number(static_cast<int64_t>(size));
    for (size_t i = next_; i < taken_.size(); ++i) state.element(taken_[i]);
    for (const Run& run : runs_) {
      for (const Element& element : run.elements) state.element(element);
    }
    state.number(ended_ ? 1 : 0);
    input_->save(state);  // no thread reads it before this lock is released
  }

  void restore(StateReader& state) override {
    const MutexLock lock(mutex_);
    TUTTI_CHECK(threads_.empty());
    state.tag("map");
    const int64_t size = state.count(INT32_MAX);
    for (int64_t i = 0; i < size; ++i) taken_.push_back(state.element());
    ended_ = state.count(1) == 1;
    input_->restore(state);
    is_restored_ = true;
  }

 private:
  struct Run {
    bool ready = false;
    std::vector<Element> elements = {};
    std::exception_ptr error = nullptr;  // error of the element after these
  };
  using RunPtr = std::list<Run>::iterator;

  void start() {
    for (int i = static_cast<int>(threads_.size()); i < num_threads_; ++i) {
      threads_.push_back(std::make_unique<Thread>("tutti/map", [this] { work(); }));
    }
  }

  RunPtr find_ready() TUTTI_REQUIRES(mutex_) {
    if (ordered_) return !runs_.empty() && runs_.front().ready ? runs_.begin() : runs_.end();
    return std::find_if(runs_.begin(), runs_.end(), [](const Run& run) { return run.ready; });
  }

  void wait_for_change() TUTTI_REQUIRES(mutex_) {
    consumer_waits_ = true;
    changed_.wait(mutex_);
    consumer_waits_ = false;
  }
  void notify_consumer() TUTTI_REQUIRES(mutex_) {
    if (!consumer_waits_) return;
    consumer_waits_ = false;  // its run is ready
    changed_.notify_all();
  }

  // Waits for results; false if there are no more.
  bool take_run() {
    start();
    const MutexLock lock(mutex_);
    while (true) {
      const RunPtr ready = find_ready();
      if (ready != runs_.end()) {
        taken_ = std::move(ready->elements);
        next_ = 0;
        error_ = ready->error;  // remains for all later calls
        runs_.erase(ready);
        if (error_ != nullptr) stopping_ = true;
        if (error_ != nullptr || (threads_wait_ && 2 * runs_.size() <= capacity_))
          room_.notify_all();
        return true;
      }
      if (ended_ && runs_.empty()) return false;
      wait_for_change();
    }
  }

  void work() {
    const TorchThreadsScope one_thread(1);  // the parallelism is across these threads
    RunPtr run;
    std::vector<Element> elements;
    while (true) {
      std::exception_ptr error;
      elements.clear();
      std::chrono::steady_clock::time_point begin;
      int64_t first = 0;
      {
        const MutexLock input_lock(input_mutex_);
        if (!reserve(run)) return;
        begin = std::chrono::steady_clock::now();
        const size_t wanted = run_length_.load(std::memory_order_relaxed);
        size_t pulled = 0;
        try {
          for (; pulled < wanted; ++pulled) {
            elements.emplace_back();
            if (!input_->next(elements.back())) break;
          }
        } catch (...) {
          error = std::current_exception();
        }
        elements.resize(pulled);
        first = std::exchange(pulled_, pulled_ + static_cast<int64_t>(pulled));
        if (pulled < wanted) end();
        if (elements.empty() && error == nullptr) {
          give_back(run);
          return;
        }
      }
      call(elements, first, error);
      const auto took = std::chrono::steady_clock::now() - begin;
      const MutexLock lock(mutex_);
      adapt(took);
      run->elements.swap(elements);
      run->error = error;
      run->ready = true;
      if (error != nullptr) ended_ = true;  // nothing after an error is needed
      notify_consumer();
    }
  }

  // Applies the function to all elements, or to those before the first error; `first` is the number
  // of the first one.
  void call(std::vector<Element>& elements, int64_t first, std::exception_ptr& error) {
    const auto begin = std::chrono::steady_clock::now();
    size_t done = 0;
    try {
      for (; done < elements.size() && !dropped_.load(std::memory_order_relaxed); ++done) {
        elements[done] = fn_(std::move(elements[done]));
      }
    } catch (...) {
      error = with_element("Dataset::map", first + static_cast<int64_t>(done), is_restored_);
    }
    stage_.add(static_cast<int64_t>(std::min(done + 1, elements.size())),
               std::chrono::steady_clock::now() - begin);
    elements.resize(done);
  }

  // Lengthens runs only while the consumer has to wait.
  void adapt(std::chrono::steady_clock::duration took) TUTTI_REQUIRES(mutex_) {
    const size_t length = run_length_.load(std::memory_order_relaxed);
    if (consumer_waits_ && took < kRunTime / 2) {
      run_length_.store(std::min(2 * length, longest_run_), std::memory_order_relaxed);
    } else if (took > 2 * kRunTime) {
      run_length_.store(std::max<size_t>(length / 2, 1), std::memory_order_relaxed);
    }
  }

  // Waits for room; false if there is nothing more to do.
  bool reserve(RunPtr& run) {
    const MutexLock lock(mutex_);
    while (!stopping_ && !ended_ && (paused_ || runs_.size() >= capacity_)) {
      threads_wait_ = true;
      room_.wait(mutex_);
      threads_wait_ = false;  // input_mutex_ admits one waiting thread at a time
    }
    if (stopping_ || ended_) return false;
    run = runs_.emplace(runs_.end());
    return true;
  }

  void end() {
    const MutexLock lock(mutex_);
    ended_ = true;
  }

  void give_back(RunPtr run) {
    const MutexLock lock(mutex_);
    runs_.erase(run);
    notify_consumer();
  }

  Mutex input_mutex_;  // taken before mutex_
  std::unique_ptr<ElementStream> input_;
  int64_t pulled_ TUTTI_GUARDED_BY(input_mutex_) = 0;
  bool is_restored_ = false;  // set before the threads start
  const ElementFn& fn_;
  Iteration::Stage& stage_;
  const int num_threads_;
  const bool ordered_;
  const size_t longest_run_;
  const size_t capacity_;  // in runs
  std::atomic<size_t> run_length_{1};
  std::atomic<bool> dropped_{false};  // unfinished runs are abandoned

  // Used by the consumer: results that it took and has not delivered yet.
  std::vector<Element> taken_;
  size_t next_ = 0;
  std::exception_ptr error_;

  Mutex mutex_;
  CondVar room_;
  CondVar changed_;
  std::list<Run> runs_ TUTTI_GUARDED_BY(mutex_);
  bool ended_ TUTTI_GUARDED_BY(mutex_) = false;
  bool paused_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  bool consumer_waits_ TUTTI_GUARDED_BY(mutex_) = false;
  bool threads_wait_ TUTTI_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Thread>> threads_;  // last: they use all the above
};

class MapNode final : public Node {
 public:
  MapNode(NodePtr from, ElementFn fn, const MapOptions& options)
      : Node({std::move(from)}), fn_(std::move(fn)), options_(options) {}

  std::string_view name() const override { return "map"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<MapNode>(std::move(inputs[0]), fn_, options_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    auto stream = input().iterate(iteration);
    if (options_.num_parallel_calls == 0) {
      return std::make_unique<MapStream>(std::move(stream), fn_, iteration.stage(*this));
    }
    const int threads =
        options_.num_parallel_calls == kAutoParallel ? usable_cores() : options_.num_parallel_calls;
    return std::make_unique<ParallelMapStream>(std::move(stream), fn_, iteration.stage(*this),
                                               threads, options_.ordered, input().may_wait());
  }
  int64_t cardinality() const override { return input().cardinality(); }
  NodeTraits traits() const override { return {.in_order = in_order()}; }

 private:
  NodePtr in_order() const {
    if (options_.ordered || options_.num_parallel_calls == 0) return nullptr;
    MapOptions ordered = options_;
    ordered.ordered = true;
    return std::make_shared<MapNode>(inputs()[0], fn_, ordered);
  }

  ElementFn fn_;
  MapOptions options_;
};

class FilterStream final : public ElementStream {
 public:
  FilterStream(std::unique_ptr<ElementStream> input, const PredicateFn& keep,
               Iteration::Stage& stage)
      : input_(std::move(input)), keep_(keep), stage_(stage) {}

  bool next(Element& out) override {
    while (input_->next(out)) {
      const int64_t element = element_++;
      try {
        if (stage_.measure([&] { return keep_(out); })) return true;
      } catch (...) {
        std::rethrow_exception(with_element("Dataset::filter", element, is_restored_));
      }
    }
    return false;
  }
  void save(StateWriter& state) override {
    state.tag("filter");
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("filter");
    input_->restore(state);
    is_restored_ = true;
  }

 private:
  std::unique_ptr<ElementStream> input_;
  const PredicateFn& keep_;
  Iteration::Stage& stage_;
  int64_t element_ = 0;
  bool is_restored_ = false;
};

class FilterNode final : public Node {
 public:
  FilterNode(NodePtr from, PredicateFn keep) : Node({std::move(from)}), keep_(std::move(keep)) {}

  std::string_view name() const override { return "filter"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<FilterNode>(std::move(inputs[0]), keep_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<FilterStream>(input().iterate(iteration), keep_,
                                          iteration.stage(*this));
  }
  int64_t cardinality() const override { return input().cardinality() == 0 ? 0 : kUnknown; }
  ElementSpec spec() const override { return input().spec(); }
  NodeTraits traits() const override { return {.batch_size = input().batch_size()}; }

 private:
  PredicateFn keep_;
};

}  // namespace

NodePtr make_map(NodePtr input, ElementFn fn, const MapOptions& options) {
  if (options.num_parallel_calls < kAutoParallel) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset::map: num_parallel_calls is ", options.num_parallel_calls,
                        "; it must be 0 (the consumer's thread), positive, or kAutoParallel."));
  }
  return std::make_shared<MapNode>(std::move(input), std::move(fn), options);
}

const Node& below_maps(const Node& node) {
  const Node* each = &node;
  while (dynamic_cast<const MapNode*>(each) != nullptr) each = each->inputs()[0].get();
  return *each;
}

NodePtr make_filter(NodePtr input, PredicateFn keep) {
  return std::make_shared<FilterNode>(std::move(input), std::move(keep));
}

}  // namespace tutti::data
