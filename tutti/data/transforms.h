// SPDX-License-Identifier: Apache-2.0
//
// Factories of transform nodes. Programs call them through Dataset<T> in dataset.h. Each checks its
// arguments (kInvalidArgument). The nodes are in transforms/.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/data/node.h"
#include "tutti/data/options.h"

namespace tutti::data {

using ElementFn = std::function<Element(Element&&)>;
using PredicateFn = std::function<bool(const Element&)>;
using ExpandFn = std::function<NodePtr(Element)>;

NodePtr make_take(NodePtr input, int64_t count);  // -1: all
NodePtr make_skip(NodePtr input, int64_t count);  // -1: all
NodePtr make_shard(NodePtr input, int64_t num_shards, int64_t index);
NodePtr make_repeat(NodePtr input, int64_t count);  // -1: forever
NodePtr make_shuffle(NodePtr input, int64_t buffer_size, const ShuffleOptions& options);
NodePtr make_batch(NodePtr input, int64_t size, const BatchOptions& options);
NodePtr make_padded_batch(NodePtr input, int64_t size, const PaddedBatchOptions& options);
NodePtr make_unbatch(NodePtr input);

/// Batches of sizes[0], sizes[1], ... rows, starting over after the last.
NodePtr make_rebatch(NodePtr input, std::vector<int64_t> sizes, bool drop_remainder);

/// Splits each batch into `pieces` elements; see piece_of().
NodePtr make_split(NodePtr input, int64_t pieces, bool even);

/// The rows [begin, end) of a piece. By default every piece has rows / pieces rows, rounded up,
/// until they run out (4 over 3: 2, 2, 0); even pieces differ by one at most (2, 1, 1).
std::pair<int64_t, int64_t> piece_of(int64_t rows, int64_t pieces, int64_t piece, bool even);

/// The spec of a batch with a different number of rows (-1: unknown).
ElementSpec spec_with_rows(ElementSpec specs, int64_t rows);

NodePtr make_map(NodePtr input, ElementFn fn, const MapOptions& options);

/// The first node at or below this one that is not a map.
const Node& below_maps(const Node& node);

NodePtr make_filter(NodePtr input, PredicateFn keep);
NodePtr make_flat_map(NodePtr input, ExpandFn fn);
NodePtr make_interleave(NodePtr input, ExpandFn fn, const InterleaveOptions& options);
NodePtr make_prefetch(NodePtr input, int64_t buffer_size);
NodePtr make_enumerate(NodePtr input, int64_t start);
NodePtr make_zip(std::vector<NodePtr> inputs);
NodePtr make_concatenate(std::vector<NodePtr> inputs);
NodePtr make_sample(std::vector<NodePtr> inputs, std::vector<double> weights,
                    const SampleOptions& options);
NodePtr make_cache(NodePtr input);                    // in memory
NodePtr make_cache(NodePtr input, std::string path);  // in a file
NodePtr make_options(NodePtr input, const DatasetOptions& options);

/// The options that apply to a pipeline; those nearest to its end win.
DatasetOptions options_of(const Node& node);

}  // namespace tutti::data
