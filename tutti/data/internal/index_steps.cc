// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/internal/index_steps.h"

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/transforms.h"
#include "tutti/device/cpu_threads.h"

namespace tutti::data {
namespace {

// Rows of a random-access source, in the order of the indices in a queue.
class QueuedRowsStream final : public ElementStream {
 public:
  QueuedRowsStream(const Indexed& source, IndexQueue& queue) : source_(source), queue_(queue) {}

  bool next(Element& out) override {
    int64_t index = 0;
    if (!queue_.pop(index)) return false;
    out = source_.get(index);
    return true;
  }
  void save(StateWriter&) override { TUTTI_CHECK(false); }
  void restore(StateReader&) override { TUTTI_CHECK(false); }

 private:
  const Indexed& source_;
  IndexQueue& queue_;
};

class QueuedRowsNode final : public Node {
 public:
  QueuedRowsNode(const Indexed& source, IndexQueue& queue) : source_(source), queue_(queue) {}

  std::string_view name() const override { return "queued rows"; }
  NodePtr with_inputs(std::vector<NodePtr>) const override { return shared_from_this(); }
  std::unique_ptr<ElementStream> iterate(Iteration&) const override {
    return std::make_unique<QueuedRowsStream>(source_, queue_);
  }
  // A map that waited for a full run of rows would hold back requested ones.
  NodeTraits traits() const override { return {.may_wait = true}; }

 private:
  const Indexed& source_;
  IndexQueue& queue_;
};

// The maps above `bottom`, over a different source.
NodePtr maps_over(const Node& node, const Node& bottom, NodePtr source) {
  if (&node == &bottom) return source;
  return node.with_inputs({maps_over(*node.inputs()[0], bottom, std::move(source))});
}

NodePtr mapped_rows_of(const Node& rows, IndexQueue& queue) {
  const Node& bottom = below_maps(rows);
  return maps_over(rows, bottom, std::make_shared<QueuedRowsNode>(*bottom.indexed(), queue));
}

// As many as map() has in flight, so that its threads never wait for the plan.
constexpr size_t kMostPlans = 64;
int64_t rows_to_plan() { return 4 * static_cast<int64_t>(usable_cores()); }

}  // namespace

void IndexQueue::push(int64_t index) {
  const MutexLock lock(mutex_);
  indices_.push_back(index);
  changed_.notify_one();
}

void IndexQueue::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool IndexQueue::pop(int64_t& index) {
  const MutexLock lock(mutex_);
  while (indices_.empty() && !closed_) changed_.wait(mutex_);
  if (indices_.empty()) return false;
  index = indices_.front();
  indices_.pop_front();
  return true;
}

IndexSteps::IndexSteps(NodePtr node, const Node& rows, Iteration& iteration,
                       const PieceOptions& options)
    : node_(std::move(node)),
      rows_(rows),
      source_(*below_maps(rows).indexed()),
      mapped_(&below_maps(rows) != &rows),
      options_(options),
      batches_(node_->iterate_index_batches(iteration)) {
  StateWriter state;
  batches_->save(state);
  beginning_ = state.take();
  if (mapped_) {
    own_rows_ = mapped_rows_of(rows_, queue_);
    mapped_rows_ = own_rows_->iterate(iteration);
  }
}

// Threads of a map may be waiting for an index.
IndexSteps::~IndexSteps() { queue_.close(); }

bool IndexSteps::next(Step& out) {
  out = {};
  if (plans_.empty() && !plan_step()) return false;
  while (mapped_ && planned_rows_ < rows_to_plan() && plans_.size() < kMostPlans && plan_step()) {
  }
  const Plan plan = std::move(plans_.front());
  plans_.pop_front();
  for (const std::vector<int64_t>& indices : plan.pieces) {
    out.elements.push_back(read_piece(indices));
    if (!without_rows_ && out.elements.back()) {
      without_rows_ = slice_batch(*out.elements.back(), 0, 0);
    }
  }
  for (std::optional<Element>& element : out.elements) {
    if (!element) element = piece_without_rows(plan.any_index);
  }
  out.with_data = static_cast<int>(options_.count);
  ++steps_;
  return true;
}

bool IndexSteps::plan_step() {
  if (ended_) return false;
  std::vector<int64_t> batch;
  if (!batches_->next(batch)) {
    ended_ = true;
    queue_.close();
    return false;
  }
  Plan plan;
  plan.any_index = batch.at(0);
  for (int64_t i = 0; i < options_.count; ++i) {
    const auto [begin, end] = piece_of(static_cast<int64_t>(batch.size()), options_.pieces,
                                       options_.first + i * options_.stride, options_.even);
    plan.pieces.emplace_back(batch.begin() + begin, batch.begin() + end);
    planned_rows_ += end - begin;
    if (!mapped_) continue;
    for (int64_t row = begin; row < end; ++row) queue_.push(batch[static_cast<size_t>(row)]);
  }
  plans_.push_back(std::move(plan));
  return true;
}

std::optional<Element> IndexSteps::read_piece(const std::vector<int64_t>& indices) {
  planned_rows_ -= static_cast<int64_t>(indices.size());
  if (!mapped_) return source_.get_batch(indices);
  if (indices.empty()) return std::nullopt;
  std::vector<Element> rows(indices.size());
  for (Element& row : rows) TUTTI_CHECK(mapped_rows_->next(row));
  return batch_elements(rows);
}

// The result of the functions for a row is known only after calling them.
Element IndexSteps::piece_without_rows(int64_t any_index) {
  if (!without_rows_) {
    IndexQueue queue;
    queue.push(any_index);
    queue.close();
    Iteration iteration;
    const NodePtr node = mapped_rows_of(rows_, queue);
    std::vector<Element> row(1);
    TUTTI_CHECK(node->iterate(iteration)->next(row[0]));
    without_rows_ = slice_batch(batch_elements(row), 0, 0);
  }
  return *without_rows_;
}

void IndexSteps::save(StateWriter& state, const std::deque<Step>& ahead) {
  state.tag("index steps");
  state.text(beginning_);
  state.number(steps_ - static_cast<int64_t>(ahead.size()));
}

void IndexSteps::restore(StateReader& state) {
  state.tag("index steps");
  beginning_ = state.text();
  steps_ = state.count(INT64_MAX);
  StateReader beginning(beginning_);
  batches_->restore(beginning);
  beginning.finish();
  const int64_t found = batches_->skip(steps_);
  if (found != steps_) {
    throw Error(ErrorCode::kDataLoss, message("Iterator::restore: the position is after step ",
                                              steps_, ", but the dataset ends after ", found,
                                              ". It has changed since the position was saved."));
  }
}

}  // namespace tutti::data
