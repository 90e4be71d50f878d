// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/input_reader.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/device/device_scope.h"
#include "tutti/strategy/internal/tally.h"
#include "tutti/values/context_frame.h"

namespace tutti::internal {
namespace {

constexpr int64_t kFromFunction = 100;  // distinct from the values of AutoShardPolicy

void check_outside_replicas(const char* function) {
  const ContextFrame* frame = current_frame();
  if (frame == nullptr || frame->replica == nullptr) return;
  throw Error(ErrorCode::kFailedPrecondition,
              message("DistributedIterator::", function, ": called inside replica ",
                      frame->replica->replica_id_in_sync_group(),
                      ". Call it outside of run(), and pass what it returns to run()."));
}

data::Value value_without_rows(const data::Value& like) {
  if (const auto* tensor = std::get_if<at::Tensor>(&like)) {
    if (!tensor->defined()) return at::empty({0});
    return tensor->dim() == 0 ? at::zeros_like(*tensor) : tensor->slice(0, 0, 0).clone();
  }
  if (const auto* number = std::get_if<data::Number>(&like)) {
    data::Number zero = *number;
    zero.bits = {};
    return zero;
  }
  if (std::holds_alternative<std::string>(like)) return std::string();
  return std::vector<std::string>();
}

// Uses what is known before the first element: unknown dimensions are 0.
data::Value value_without_rows(const data::Value& blank, const data::ValueSpec& spec) {
  if (!std::holds_alternative<at::Tensor>(blank)) return value_without_rows(blank);
  std::vector<int64_t> shape = spec.shape.value_or(std::vector<int64_t>{0});
  for (int64_t& size : shape) size = std::max<int64_t>(size, 0);
  if (!shape.empty()) shape[0] = 0;
  return at::empty(shape, spec.dtype.value_or(at::kFloat)).zero_();
}

// Whether an element without rows can be made from the spec alone.
bool is_complete(const data::ElementSpec& specs) {
  if (!specs) return false;
  return std::all_of(specs->begin(), specs->end(), [](const data::ValueSpec& spec) {
    if (spec.kind == data::ValueSpec::Kind::kUnknown) return false;
    if (spec.kind != data::ValueSpec::Kind::kTensor) return true;
    return spec.dtype && spec.shape && !spec.shape->empty() &&
           std::all_of(spec.shape->begin() + 1, spec.shape->end(),
                       [](int64_t size) { return size >= 0; });
  });
}

int64_t rows_of(const data::Element& element) {
  for (const data::Value& value : element.values) {
    const auto* const tensor = std::get_if<at::Tensor>(&value);
    if (tensor != nullptr && tensor->defined() && tensor->dim() > 0) return tensor->size(0);
    const auto* const strings = std::get_if<std::vector<std::string>>(&value);
    if (strings != nullptr) return static_cast<int64_t>(strings->size());
  }
  return 0;
}

void move_to(data::Element& element, const c10::Device& device) {
  for (data::Value& value : element.values) {
    auto* const tensor = std::get_if<at::Tensor>(&value);
    if (tensor != nullptr && tensor->defined() && tensor->device() != device) {
      *tensor = tensor->to(device);
    }
  }
}

}  // namespace

InputReader::InputReader(std::shared_ptr<const InputSource> source, data::Element blank)
    : source_(std::move(source)),
      pass_(source_->strategy->begin_input_pass()),
      blank_(std::move(blank)) {
  const int replicas = source_->strategy->num_local_replicas();
  for (size_t i = 0; i < source_->pipelines.size(); ++i) {
    iterations_.push_back(
        std::make_unique<data::Iteration>(static_cast<uint64_t>(pass_), source_->seed));
  }
  if (source_->sharded) {
    steps_ = source_->sharded->iterate(*iterations_[0], replicas);
  } else if (source_->options.replication_mode == InputReplicationMode::kPerReplica) {
    steps_ = data::parallel_steps(source_->pipelines, iterations_);
  } else {
    steps_ = data::grouped_steps(*source_->pipelines[0], *iterations_[0], replicas);
  }
  const auto capacity = static_cast<size_t>(source_->options.per_replica_buffer_size);
  if (capacity > 0) {
    ahead_ = std::make_unique<data::ReadAhead<Ready>>("tutti/input", capacity,
                                                      [this](Ready& ready) { return read(ready); });
  }
}

InputReader::~InputReader() {
  dropped_.store(true);
  ahead_ = nullptr;  // joins its thread
  source_->strategy->workers().end_input_pass(pass_);
}

std::vector<data::StageStats> InputReader::stats() const {
  std::vector<data::StageStats> all;
  for (const auto& iteration : iterations_) {
    for (data::StageStats& each : iteration->stats()) all.push_back(std::move(each));
  }
  return all;
}

bool InputReader::next(std::vector<data::Element>& elements, int64_t& global_rows) {
  check_outside_replicas("get_next");
  Ready ready;
  if (ahead_ != nullptr) {
    if (!ahead_->next(ready)) return false;
  } else {
    if (error_ != nullptr) std::rethrow_exception(error_);
    try {
      if (!read(ready)) return false;
    } catch (...) {
      error_ = std::current_exception();  // an error ends the pass
      throw;
    }
  }
  elements = std::move(ready.elements);
  global_rows = ready.totals.rows;
  if (ready.totals.stop) source_->strategy->agree_to_stop();
  return true;
}

// Reads the next step, and derives what replicas get from it.
bool InputReader::read(Ready& ready) {
  if (ended_) return false;
  data::Step& step = ready.step;
  std::vector<data::Element>& elements = ready.elements;
  StrategyExtended& strategy = *source_->strategy;
  steps_->next(step);
  int64_t rows = 0;
  for (const std::optional<data::Element>& element : step.elements) {
    if (element) rows += rows_of(*element);
  }
  ready.totals = strategy.workers().add_up({.pass = pass_,
                                            .step = step_++,
                                            .local_replicas_with_data = step.with_data,
                                            .local_rows = rows,
                                            .stop = strategy.wants_to_stop(),
                                            .cancelled = &dropped_});
  if (ready.totals.replicas_with_data == 0) {
    ended_ = true;
    return false;
  }
  for (const std::optional<data::Element>& element : step.elements) {
    if (element && !has_seen_rows_) learn_from(*element);
  }
  // Do not check ahead_ here: it is already null while its thread ends.
  const bool reads_ahead = source_->options.per_replica_buffer_size > 0;
  const bool keeps_elements = step.keeps_elements && reads_ahead;
  elements.clear();
  for (size_t i = 0; i < static_cast<size_t>(strategy.num_local_replicas()); ++i) {
    if (i >= step.elements.size() || !step.elements[i]) {
      elements.push_back(element_without_rows());
    } else if (keeps_elements) {
      elements.push_back(*step.elements[i]);
    } else {
      elements.push_back(std::move(*step.elements[i]));
    }
    if (source_->options.fetch_to_device) {
      move_to(elements.back(), torch_device(strategy.worker_devices()[i]));
    }
  }
  return true;
}

void InputReader::learn_from(const data::Element& element) {
  has_seen_rows_ = true;
  without_rows_.emplace().structure = element.structure;
  for (const data::Value& value : element.values) {
    without_rows_->values.push_back(value_without_rows(value));
  }
}

// A worker that has not had a row yet uses the spec of the pipeline and, if that is incomplete,
// reads the first batch of the data that other workers share. It tries once: what cannot be read
// now cannot be read in the next step either.
const data::Element& InputReader::element_without_rows() {
  if (without_rows_) return *without_rows_;
  const data::ElementSpec specs = source_->pipelines[0]->spec();
  if (!is_complete(specs) && source_->sharded && source_->sharded->sample) learn_from_sample();
  if (without_rows_) return *without_rows_;
  data::Element& element = without_rows_.emplace();
  element.structure = blank_.structure;
  for (size_t i = 0; i < blank_.values.size(); ++i) {
    element.values.push_back(specs && specs->size() == blank_.values.size()
                                 ? value_without_rows(blank_.values[i], (*specs)[i])
                                 : value_without_rows(blank_.values[i]));
  }
  return element;
}

void InputReader::learn_from_sample() {
  try {
    data::Iteration iteration(static_cast<uint64_t>(pass_), source_->seed);
    data::Element first;
    if (source_->sharded->sample->iterate(iteration)->next(first)) learn_from(first);
  } catch (...) {
    log(LogLevel::kWarning,
        message("distribute_dataset: this worker has no rows, and could not read one to learn "
                "their shape: ",
                text_of(std::current_exception())));
  }
}

std::string InputReader::save() {
  check_outside_replicas("save");
  const StrategyExtended& strategy = *source_->strategy;
  data::StateWriter state;
  state.tag("tutti input position 1");
  state.number(source_->sharded ? static_cast<int64_t>(source_->sharded->policy) : kFromFunction);
  state.number(strategy.workers().size());
  state.number(strategy.workers().rank());
  state.number(strategy.num_local_replicas());
  state.number(pass_);
  if (ahead_ == nullptr) {
    steps_->save(state, {});
  } else {
    ahead_->save([&](const std::deque<Ready>& waiting, bool) {
      std::deque<data::Step> steps;
      for (const Ready& each : waiting) {
        if (each.step.with_data > 0) steps.push_back(each.step);
      }
      steps_->save(state, steps);
    });
  }
  return state.take();
}

void InputReader::restore(std::string_view position) {
  check_outside_replicas("restore");
  const StrategyExtended& strategy = *source_->strategy;
  if (ahead_ != nullptr ? ahead_->started() : step_ > 0) {
    throw Error(
        ErrorCode::kFailedPrecondition,
        "DistributedIterator::restore: this iterator has already been read from. Make a new "
        "one with DistributedDataset::iterator() and restore that.");
  }
  data::StateReader state(position);
  state.tag("tutti input position 1");
  const int64_t policy = state.number();
  const int64_t workers = state.number();
  const int64_t worker = state.number();
  const int64_t replicas = state.number();
  const int64_t pass = state.count(INT64_MAX - 1);
  const int64_t mine =
      source_->sharded ? static_cast<int64_t>(source_->sharded->policy) : kFromFunction;
  const auto is_global = [](int64_t value) {
    return value == static_cast<int64_t>(data::AutoShardPolicy::kData) ||
           value == static_cast<int64_t>(data::AutoShardPolicy::kBatch);
  };
  const bool same = policy == mine && workers == strategy.workers().size() &&
                    worker == strategy.workers().rank() &&
                    replicas == strategy.num_local_replicas();
  if (!same && !(is_global(policy) && is_global(mine))) {
    throw Error(
        ErrorCode::kFailedPrecondition,
        message("DistributedIterator::restore: the position was saved by worker ", worker, " of ",
                workers, " with ", replicas, " replicas and belongs to what that worker read ",
                "(its files, or what its function made); this is worker ",
                strategy.workers().rank(), " of ", strategy.workers().size(), " with ",
                strategy.num_local_replicas(),
                " replicas. Restore it in the same place, or shard by AutoShardPolicy::kData or "
                "kBatch, whose positions hold for any number of workers and replicas."));
  }
  steps_->restore(state);
  state.finish();
  source_->strategy->go_on_after_input_pass(pass);
}

void throw_end_of_input() {
  throw Error(ErrorCode::kNotFound,
              "DistributedIterator::get_next: the dataset has ended. Use get_next_as_optional(), "
              "which returns nullopt then.");
}

}  // namespace tutti::internal
