// SPDX-License-Identifier: Apache-2.0
//
// Factories of source nodes. Programs call them through functions such as range() and
// from_tensor_slices() in dataset.h. Each checks its arguments (kInvalidArgument).

#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "tutti/data/node.h"

namespace tutti::data {

/// start, start + step, ... before stop.
NodePtr make_range(int64_t start, int64_t stop, int64_t step);

/// One element.
NodePtr make_tensors(Element element);

/// One element for each row.
NodePtr make_tensor_slices(Element rows);

/// `start` begins a pass and returns a function that yields its elements, one per call, then
/// nullopt. Restoring a position skips elements.
using Generator = std::function<std::optional<Element>()>;
NodePtr make_generator(std::function<Generator()> start);

}  // namespace tutti::data
