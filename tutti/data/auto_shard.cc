// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/auto_shard.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/data/internal/random.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

// Returns the graph with each node replaced by what fn returns for it, unless that is null.
template <class F>
NodePtr rewrite(const NodePtr& node, const F& fn) {
  if (NodePtr replaced = fn(*node)) return replaced;
  std::vector<NodePtr> inputs;
  bool changed = false;
  for (const NodePtr& input : node->inputs()) {
    inputs.push_back(rewrite(input, fn));
    changed = changed || inputs.back() != input;
  }
  return changed ? node->with_inputs(std::move(inputs)) : node;
}

NodePtr without_shuffles(const NodePtr& node) {
  return rewrite(node, [](const Node& each) -> NodePtr {
    return each.traits().reorders ? without_shuffles(each.inputs()[0]) : nullptr;
  });
}

// The elements of all workers, for reading one as a sample: without shuffles, which take time, and
// without caches, which hold what one worker reads.
NodePtr without_shuffles_and_caches(const NodePtr& node) {
  return rewrite(node, [](const Node& each) -> NodePtr {
    const NodeTraits traits = each.traits();
    const bool is_left_out = traits.reorders || traits.keeps_elements;
    return is_left_out ? without_shuffles_and_caches(each.inputs()[0]) : nullptr;
  });
}

// Workers that each keep a part of the same elements must have them in the same order.
NodePtr in_fixed_order(const NodePtr& node) {
  return rewrite(node, [](const Node& each) -> NodePtr {
    const NodePtr ordered = each.traits().in_order;
    return ordered ? ordered->with_inputs({in_fixed_order(ordered->inputs()[0])}) : nullptr;
  });
}

// Where the elements of a pipeline come from.
struct Origins {
  std::vector<const Node*> readers = {};    // sources that read files
  std::vector<const Node*> expanders = {};  // nodes that make a reader of each file name
  bool others = false;
};

void find_origins(const Node& node, Origins& origins);

// Whether reading the first element costs next to nothing.
bool is_cheap(const Node& node) {
  if (node.inputs().empty()) return node.indexed() != nullptr;
  return std::all_of(node.inputs().begin(), node.inputs().end(),
                     [](const NodePtr& input) { return is_cheap(*input); });
}

// Whether a node turns each element into a dataset that reads files. This calls its function with
// the first element; if it throws, it will throw again when the data are read. A node without
// elements qualifies.
bool expands_to_readers(const Node& node) {
  const NodeTraits traits = node.traits();
  if (!traits.expand || !is_cheap(*node.inputs()[0])) return false;
  try {
    Iteration iteration;
    const NodePtr names = without_shuffles(node.inputs()[0]);
    Element first;
    if (!names->iterate(iteration)->next(first)) return true;
    Origins origins;
    find_origins(*traits.expand(first), origins);
    return !origins.others;
  } catch (...) {
    return false;
  }
}

void find_origins(const Node& node, Origins& origins) {
  if (node.traits().files != nullptr) {
    origins.readers.push_back(&node);
  } else if (expands_to_readers(node)) {
    origins.expanders.push_back(&node);
  } else if (node.inputs().empty()) {
    origins.others = true;
  } else {
    for (const NodePtr& input : node.inputs()) find_origins(*input, origins);
  }
}

// The number of files that an expander opens, counted up to `most`.
int64_t count_files(const Node& expander, int64_t most) {
  Iteration iteration;
  return without_shuffles(expander.inputs()[0])->iterate(iteration)->skip(most);
}

// The number of files of the branch that has the fewest, up to `most`. A branch without files is
// empty on every worker and does not count.
int64_t fewest_files(const Origins& origins, int64_t most) {
  int64_t fewest = most;
  const auto count = [&](int64_t here) {
    if (here > 0) fewest = std::min(fewest, here);
  };
  for (const Node* reader : origins.readers) {
    count(static_cast<int64_t>(reader->traits().files->size()));
  }
  for (const Node* expander : origins.expanders) count(count_files(*expander, most));
  return fewest;
}

// If the shard came after a shuffle, the workers would no longer read disjoint sets of files.
NodePtr shard_below_shuffles(const NodePtr& node, const ShardRequest& request) {
  if (node->traits().reorders) {
    return node->with_inputs({shard_below_shuffles(node->inputs()[0], request)});
  }
  return make_shard(in_fixed_order(node), request.num_workers, request.worker);
}

NodePtr keep_own_files(const NodePtr& node, const Origins& origins, const ShardRequest& request) {
  return rewrite(node, [&](const Node& each) -> NodePtr {
    if (const NodeTraits traits = each.traits(); traits.files != nullptr) {
      std::vector<std::string> own;
      for (size_t i = 0; i < traits.files->size(); ++i) {
        if (static_cast<int64_t>(i) % request.num_workers == request.worker) {
          own.push_back((*traits.files)[i]);
        }
      }
      return traits.with_files(std::move(own));
    }
    if (std::find(origins.expanders.begin(), origins.expanders.end(), &each) !=
        origins.expanders.end()) {
      return each.with_inputs({shard_below_shuffles(each.inputs()[0], request)});
    }
    return nullptr;
  });
}

// The number of rows in every batch, if all batches are known to have the same number.
std::optional<int64_t> certain_batch_size(const Node& node) {
  const ElementSpec specs = node.spec();
  if (!specs || specs->empty()) return std::nullopt;
  std::optional<int64_t> rows;
  for (const ValueSpec& spec : *specs) {
    const bool known = spec.shape && !spec.shape->empty() && (*spec.shape)[0] >= 0;
    if (!known || (rows && *rows != (*spec.shape)[0])) return std::nullopt;
    rows = (*spec.shape)[0];
  }
  return rows;
}

// Reports early, if the spec tells, that elements cannot be cut.
void check_batched(const Node& node) {
  const ElementSpec specs = node.spec();
  for (size_t leaf = 0; specs && leaf < specs->size(); ++leaf) {
    const ValueSpec& spec = (*specs)[leaf];
    const bool has_rows =
        spec.kind == ValueSpec::Kind::kUnknown || spec.kind == ValueSpec::Kind::kStrings ||
        (spec.kind == ValueSpec::Kind::kTensor && !(spec.shape && spec.shape->empty()));
    if (has_rows) continue;
    throw Error(ErrorCode::kInvalidArgument,
                message("distribute_dataset: leaf ", leaf, " of an element of ", to_text(specs),
                        " has no rows. Call .batch(n) first."));
  }
}

// Divides G rows among N replicas, larger shares first, and lists the worker's own shares first.
std::vector<int64_t> shares(int64_t rows, const ShardRequest& request) {
  const int64_t replicas = request.num_workers * request.replicas_per_worker;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < replicas; ++i) {
    const auto [begin, end] = piece_of(rows, replicas, i, /*even=*/true);
    sizes.push_back(end - begin);
  }
  const auto first = static_cast<std::ptrdiff_t>(request.worker * request.replicas_per_worker);
  std::rotate(sizes.begin(), sizes.begin() + first, sizes.end());
  return sizes;
}

// "1st", "2nd", "3rd", "4th", ... "11th", ... "21st"
std::string ordinal(int64_t n) {
  const bool is_teen = n / 10 % 10 == 1;
  const int64_t digit = is_teen ? 0 : n % 10;
  return message(n, digit == 1 ? "st" : digit == 2 ? "nd" : digit == 3 ? "rd" : "th");
}

class Sharder {
 public:
  Sharder(NodePtr node, const ShardRequest& request)
      : node_(std::move(node)),
        request_(request),
        replicas_(request.num_workers * request.replicas_per_worker) {}

  ShardedPipeline run() {
    if (replicas_ > 1) check_batched(*node_);
    ShardedPipeline sharded = shard();
    if (request_.num_workers > 1) sharded.sample = without_shuffles_and_caches(node_);
    sharded.rows = certain_rows(sharded);
    return sharded;
  }

 private:
  ShardedPipeline shard() {
    switch (options_of(*node_).auto_shard_policy.value_or(AutoShardPolicy::kAuto)) {
      case AutoShardPolicy::kOff:
        return by_rows(node_, AutoShardPolicy::kOff,
                       "not sharded, as requested (kOff): every worker reads everything");
      case AutoShardPolicy::kFile:
        return by_file(/*required=*/true);
      case AutoShardPolicy::kData:
        return by_data("as requested", /*fell_back=*/false);
      case AutoShardPolicy::kHint:
        return by_hint();
      case AutoShardPolicy::kBatch:
        return by_batch();
      case AutoShardPolicy::kAuto:
        break;
    }
    return by_file(/*required=*/false);
  }

  // The rows of each replica if every batch is full. Workers that read different files, or
  // unsharded data, may reach their end before others do.
  std::optional<std::vector<int64_t>> certain_rows(const ShardedPipeline& sharded) const {
    if (!sharded.pieces && request_.num_workers > 1) return std::nullopt;
    const std::optional<int64_t> batch = certain_batch_size(*node_);
    if (!batch) return std::nullopt;
    const PieceOptions pieces = sharded.pieces.value_or(
        PieceOptions{replicas_, 0, 1, request_.replicas_per_worker, /*even=*/true});
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < pieces.count; ++i) {
      const auto [begin, end] =
          piece_of(*batch, pieces.pieces, pieces.first + i * pieces.stride, pieces.even);
      rows.push_back(end - begin);
    }
    return rows;
  }

  ShardedPipeline by_file(bool required) {
    Origins origins;
    find_origins(*node_, origins);
    const bool has_files = !origins.readers.empty() || !origins.expanders.empty();
    const bool only_files = has_files && !origins.others;
    const bool is_alone = request_.num_workers == 1;
    if (!only_files && !(required && is_alone)) {
      const std::string reason = has_files ? "not all of its elements are read file by file"
                                           : "its elements are not read file by file";
      if (required) refuse_files(reason);
      return by_data("because " + reason, has_files && !is_alone);
    }
    if (is_alone) {
      return by_rows(node_, AutoShardPolicy::kFile,
                     "sharded by file (kFile): the only worker reads everything");
    }
    const int64_t fewest = fewest_files(origins, request_.num_workers);
    int64_t files = 0;
    for (const Node* reader : origins.readers) {
      files += static_cast<int64_t>(reader->traits().files->size());
    }
    if (fewest < request_.num_workers) {
      const std::string reason = message("it reads ", fewest, fewest == 1 ? " file" : " files",
                                         ", too few for ", request_.num_workers, " workers");
      if (required) refuse_files(reason);
      return by_data("because " + reason, true);
    }
    const NodePtr node = keep_own_files(node_, origins, request_);
    if (origins.expanders.empty() && files == 0) {
      return by_rows(node, AutoShardPolicy::kFile,
                     "sharded by file (kFile): there are no files to read");
    }
    if (!origins.expanders.empty()) {
      return by_rows(
          node, AutoShardPolicy::kFile,
          message("sharded by file (kFile): there are files for each of ", request_.num_workers,
                  " workers, and this one reads every ", ordinal(request_.num_workers),
                  " file, starting with file ", request_.worker));
    }
    return by_rows(node, AutoShardPolicy::kFile,
                   message("sharded by file (kFile): there are ", files, " files for ",
                           request_.num_workers, " workers, and this one reads ", own_files(node)));
  }

  static std::string own_files(const NodePtr& node) {
    Origins origins;
    find_origins(*node, origins);
    size_t count = 0;
    std::string first;
    for (const Node* reader : origins.readers) {
      const std::vector<std::string>& files = *reader->traits().files;
      if (count == 0 && !files.empty()) first = files.front();
      count += files.size();
    }
    return message(count, count == 1 ? " of them, " : " of them, the first being ", first);
  }

  [[noreturn]] void refuse_files(const std::string& reason) const {
    throw Error(
        ErrorCode::kInvalidArgument,
        message("distribute_dataset: could not apply FILE based sharding: ", reason,
                ". Split the data into more files, or use AutoShardPolicy::kData or kAuto."));
  }

  // The element-wise rule.
  ShardedPipeline by_rows(NodePtr node, AutoShardPolicy policy, std::string explanation) {
    if (replicas_ > 1) {
      if (const std::optional<int64_t> rows = global_batch_size(*node); rows && *rows > 0) {
        node = make_rebatch(std::move(node), shares(*rows, request_), /*drop_remainder=*/false);
      } else {
        node = make_split(std::move(node), replicas_, request_.even_split);
      }
    }
    return {std::move(node), std::nullopt, policy, std::move(explanation), false};
  }

  ShardedPipeline by_data(const std::string& reason, bool fell_back) {
    const PieceOptions pieces{replicas_, request_.worker, request_.num_workers,
                              request_.replicas_per_worker, request_.even_split};
    return {in_fixed_order(node_), pieces, AutoShardPolicy::kData,
            message("sharded by data (kData), ", reason, ": ", own_pieces(pieces)), fell_back};
  }

  std::string own_pieces(const PieceOptions& pieces) const {
    if (request_.num_workers == 1) return "the only worker reads everything";
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < pieces.count; ++i) numbers.push_back(pieces.first + i * pieces.stride);
    return message("of the ", pieces.pieces, " pieces of each batch, this worker keeps ",
                   pieces.count == 1 ? "piece " : "pieces ", joined_with_and(numbers));
  }

  NodePtr fill_in_hints(const NodePtr& node) const {
    return rewrite(node, [&](const Node& each) -> NodePtr {
      if (!each.traits().is_shard_hint) return nullptr;
      return make_shard(in_fixed_order(fill_in_hints(each.inputs()[0])), request_.num_workers,
                        request_.worker);
    });
  }

  ShardedPipeline by_hint() {
    const NodePtr node = fill_in_hints(node_);
    return by_rows(node, AutoShardPolicy::kHint,
                   node == node_ ? "not sharded: kHint was requested, but the pipeline has no "
                                   "shard(kShardHint, ...), so every worker reads everything"
                                 : "sharded at shard(kShardHint, ...), as requested (kHint)");
  }

  ShardedPipeline by_batch() {
    const PieceOptions pieces{replicas_, request_.worker * request_.replicas_per_worker, 1,
                              request_.replicas_per_worker, request_.even_split};
    return {in_fixed_order(node_), pieces, AutoShardPolicy::kBatch,
            message("sharded by batch, as requested (kBatch): ", own_pieces(pieces)), false};
  }

  const NodePtr node_;
  const ShardRequest request_;
  const int64_t replicas_;
};

}  // namespace

std::optional<int64_t> global_batch_size(const Node& node) {
  const std::optional<int64_t> certain = certain_batch_size(node);
  return certain ? certain : node.batch_size();
}

NodePtr shard_elements(const NodePtr& node, int64_t num_workers, int64_t worker) {
  const ShardRequest request{num_workers, worker, 1};
  Origins origins;
  find_origins(*node, origins);
  const bool only_files =
      (!origins.readers.empty() || !origins.expanders.empty()) && !origins.others;
  if (only_files && fewest_files(origins, num_workers) >= num_workers) {
    return keep_own_files(node, origins, request);
  }
  return make_shard(in_fixed_order(node), num_workers, worker);
}

ShardedPipeline shard_pipeline(const NodePtr& node, const ShardRequest& request) {
  if (request.num_workers < 1 || request.worker < 0 || request.worker >= request.num_workers ||
      request.replicas_per_worker < 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        message("distribute_dataset: there is no worker ", request.worker, " of ",
                request.num_workers, " with ", request.replicas_per_worker, " replicas each."));
  }
  return Sharder(node, request).run();
}

std::unique_ptr<StepStream> ShardedPipeline::iterate(Iteration& iteration, int replicas) const {
  return pieces ? piece_steps(*node, iteration, *pieces)
                : grouped_steps(*node, iteration, replicas);
}

int64_t ShardedPipeline::cardinality(int replicas) const {
  const int64_t elements = node->cardinality();
  return pieces || elements < 0 ? elements : (elements + replicas - 1) / replicas;
}

uint64_t propose_seed() { return random_seed(); }

}  // namespace tutti::data
