// SPDX-License-Identifier: Apache-2.0
//
// One pass over a pipeline, without the type of its elements; Iterator<T> adds it.

#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/node.h"
#include "tutti/data/stream.h"

namespace tutti::data {

/// Used by one thread at a time. An error ends the pass: every later next() and save()
/// throws it again.
class Pass {
 public:
  explicit Pass(NodePtr node);
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  bool next(Element& out);
  std::string save();
  void restore(std::string_view position);
  std::vector<StageStats> stats() const { return iteration_->stats(); }

 private:
  template <class F>
  auto keeping_errors(const F& fn);

  NodePtr node_;
  std::unique_ptr<Iteration> iteration_;  // outlives the streams
  std::unique_ptr<ElementStream> stream_;
  std::exception_ptr error_;
  bool begun_ = false;
};

}  // namespace tutti::data
