// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/pass.h"

#include <utility>

#include "tutti/base/error.h"

namespace tutti::data {
namespace {

constexpr const char* kTag = "tutti position 1";

}  // namespace

template <class F>
auto Pass::keeping_errors(const F& fn) {
  if (error_ != nullptr) std::rethrow_exception(error_);
  begun_ = true;
  try {
    return fn();
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

Pass::Pass(NodePtr node)
    : node_(std::move(node)),
      iteration_(std::make_unique<Iteration>()),
      stream_(node_->iterate(*iteration_)) {}

bool Pass::next(Element& out) {
  return keeping_errors([&] { return stream_->next(out); });
}

std::string Pass::save() {
  return keeping_errors([&] {
    StateWriter state;
    state.tag(kTag);
    stream_->save(state);
    return state.take();
  });
}

void Pass::restore(std::string_view position) {
  if (begun_) {
    throw Error(ErrorCode::kFailedPrecondition,
                "Iterator::restore: this iterator has already been used. Create a new one with "
                "Dataset::iterator() and restore that.");
  }
  keeping_errors([&] {
    StateReader state(position);
    state.tag(kTag);
    stream_->restore(state);
    state.finish();
  });
}

}  // namespace tutti::data
