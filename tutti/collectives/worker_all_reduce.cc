// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/worker_all_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/util/SmallVector.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// Up to this size every rank sends its nodes to every other rank: one exchange instead of two.
constexpr size_t kWholeBytes = Link::kCopiedBytes;
// Size of the memory for results that several peers read: so large that a part of it has left their
// caches when it is written again, which is several times faster.
constexpr size_t kResultsBytes = 2 << 20;
// From this size on, memory that peers can read is not copied. Below it, both ranks have it in
// their caches, and writing what a different core has read takes longer than a copy.
constexpr int64_t kDirectBytes = 512 << 10;
// Parts begin at cache lines.
constexpr int64_t kLineElements = 64;

enum class Phase : uint8_t { kGather, kSpread };

struct Range {
  int64_t begin;
  int64_t end;
};

// Messages are sent and received in a fixed order: gather for the first `depth` blocks, then spread
// and gather in turns. A cursor is a position in this order.
struct Cursor {
  int64_t gathers = 0;
  int64_t spreads = 0;

  Phase phase(int64_t blocks, int64_t depth) const {
    return gathers < blocks && gathers < spreads + depth ? Phase::kGather : Phase::kSpread;
  }
  bool at_end(int64_t blocks) const { return gathers == blocks && spreads == blocks; }
};

class AllReduceTransfer : public Transfer {
 public:
  AllReduceTransfer(Lane& lane, const WorkerTree& tree, WorkerReduction&& reduction,
                    const Operation& operation, Deadline deadline)
      : Transfer(lane, operation, deadline),
        tree_(tree),
        job_(std::move(reduction)),
        me_(lane.rank()),
        workers_(lane.size()),
        in_bytes_(c10::elementSize(node_dtype(job_.op, job_.dtype))),
        out_bytes_(c10::elementSize(job_.dtype)),
        inputs_(tree.tree().nodes().size()) {}

 protected:
  const std::byte* node(size_t i, int64_t begin) const {
    return static_cast<const std::byte*>(job_.nodes[i]) + static_cast<size_t>(begin) * in_bytes_;
  }

  // The addresses of the nodes of all ranks, shifted so that element `begin` is at its index.
  void collect_inputs(int64_t begin, int64_t count) {
    for (int r = 0; r < workers_; ++r) {
      const size_t first = tree_.first_node(r);
      const size_t nodes = tree_.nodes(r).size();
      const std::byte* from = nullptr;
      if (r != me_) {
        const Incoming* const incoming = lane_.peek(r, fingerprint_);
        check_message(r, *incoming, nodes * static_cast<size_t>(count) * in_bytes_);
        from = incoming->bytes.data();
      }
      for (size_t i = 0; i < nodes; ++i) {
        inputs_[first + i] =
            r == me_ ? node(i, begin) : from + i * static_cast<size_t>(count) * in_bytes_;
      }
    }
  }

  // Element `begin` is written to its index in the outputs, and to the beginning of `also`.
  void reduce(int64_t begin, int64_t count, std::span<void* const> outputs, void* also = nullptr) {
    collect_inputs(begin, count);
    c10::SmallVector<void*, 8> shifted;
    for (void* output : outputs) {
      shifted.push_back(static_cast<std::byte*>(output) + static_cast<size_t>(begin) * out_bytes_);
    }
    if (also != nullptr) shifted.push_back(also);
    tree_.tree().reduce(job_.op, job_.dtype,
                        std::span<const void* const>(inputs_.data(), inputs_.size()),
                        std::span<void* const>(shifted.data(), shifted.size()), 0, count);
  }

  // Numbers of elements are not in the fingerprint, unless the caller gave sizes, and messages of
  // different ones may have equal sizes. A peer of our own build then sends what the plan says;
  // memory is at stake if it does not.
  void check_message(int rank, const Incoming& incoming, size_t bytes) {
    const bool same_count = incoming.head.total == static_cast<uint64_t>(job_.count);
    if (same_count && incoming.bytes.size() == bytes) return;
    WorkerGroup& group = lane_.group();
    const std::string text =
        same_count ? message(" sent ", incoming.bytes.size(), " bytes where ", bytes,
                             " were expected by ", group.name(me_), ".")
                   : message(" reduces ", incoming.head.total, " elements, but ", group.name(me_),
                             " reduces ", job_.count, " elements. Sizes must agree.");
    group.abort(ErrorCode::kInvalidArgument,
                message(fingerprint_.describe(), ": ", group.name(rank), text));
    group.throw_if_aborted();
  }

  void post(int rank, uint64_t tag, Link::Pieces pieces, Link::Use use) {
    lane_.post(rank, fingerprint_, tag, static_cast<uint64_t>(job_.count), pieces, use);
  }

  void post_nodes(int rank, int64_t begin, int64_t count, Link::Use use) {
    c10::SmallVector<std::span<const std::byte>, 4> pieces;
    for (size_t i = 0; i < job_.nodes.size(); ++i) {
      pieces.push_back({node(i, begin), static_cast<size_t>(count) * in_bytes_});
    }
    post(rank, 0, Link::Pieces(pieces.data(), pieces.size()), use);
  }

  int first_without_message() {
    for (int r = 0; r < workers_; ++r) {
      if (r != me_ && lane_.peek(r, fingerprint_) == nullptr) return r;
    }
    return kDone;
  }

  void pop_all() {
    for (int r = 0; r < workers_; ++r) {
      if (r != me_) lane_.pop(r);
    }
  }

  int first_not_drained() {
    for (int r = 0; r < workers_; ++r) {
      if (r != me_ && !lane_.link(r).drained()) return r;
    }
    return kDone;
  }

  const WorkerTree& tree_;
  const WorkerReduction job_;
  const int me_;
  const int workers_;
  const size_t in_bytes_;
  const size_t out_bytes_;

 private:
  c10::SmallVector<const void*, 16> inputs_;
};

// Every rank sends all its nodes to every other rank in one message, which is copied, and every
// rank finishes the tree.
class WholeTransfer final : public AllReduceTransfer {
 public:
  WholeTransfer(Lane& lane, const WorkerTree& tree, WorkerReduction&& reduction,
                const Operation& operation, Deadline deadline)
      : AllReduceTransfer(lane, tree, std::move(reduction), operation, deadline),
        posted_(static_cast<size_t>(workers_)) {}

 private:
  int try_advance() override {
    if (!prepared_ && job_.prepare) job_.prepare(0, job_.count);
    prepared_ = true;
    const int blocked = post_all();
    if (!taken_) {
      if (blocked != kDone) return blocked;  // an output may be a node that was not sent yet
      const int missing = first_without_message();
      if (missing != kDone) return missing;
      reduce(0, job_.count, job_.outputs);
      pop_all();
      taken_ = true;
    }
    return kDone;
  }

  int post_all() {
    int blocked = kDone;
    for (int r = 0; r < workers_; ++r) {
      bool& posted = posted_[static_cast<size_t>(r)];
      if (r == me_ || posted) continue;
      if (lane_.link(r).room() > 0) {
        post_nodes(r, 0, job_.count, Link::Use::kCopyFirst);
        posted = true;
      } else {
        blocked = r;
      }
    }
    return blocked;
  }

  c10::SmallVector<bool, 8> posted_;
  bool prepared_ = false;
  bool taken_ = false;
};

class BlockTransfer final : public AllReduceTransfer {
 public:
  BlockTransfer(Lane& lane, const WorkerTree& tree, WorkerReduction&& reduction,
                const Operation& operation, Deadline deadline)
      : AllReduceTransfer(lane, tree, std::move(reduction), operation, deadline),
        depth_(static_cast<int64_t>(lane.group().options().depth)),
        use_(job_.count * static_cast<int64_t>(out_bytes_) < kDirectBytes
                 ? Link::Use::kCopyFirst
                 : Link::Use::kReadInPlace),
        posts_(static_cast<size_t>(workers_)) {
    const auto part =
        static_cast<int64_t>(lane.group().options().chunk_bytes / (in_bytes_ * tree.max_nodes()));
    const int64_t most = std::max(part / kLineElements, int64_t{1}) * kLineElements * workers_;
    blocks_ = (job_.count + most - 1) / most;
    block_elements_ = rounded_up((job_.count + blocks_ - 1) / blocks_, kLineElements * workers_);
    posts_[static_cast<size_t>(me_)] = {blocks_, blocks_};
    choose_results(lane);
  }

 private:
  static int64_t rounded_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
  }

  Range block(int64_t b) const {
    return {std::min(job_.count, b * block_elements_),
            std::min(job_.count, (b + 1) * block_elements_)};
  }

  // The part of one owner. The last block may be short.
  Range part(int64_t b, int owner) const {
    const Range whole = block(b);
    const int64_t size =
        rounded_up((whole.end - whole.begin + workers_ - 1) / workers_, kLineElements);
    return {std::min(whole.end, whole.begin + owner * size),
            std::min(whole.end, whole.begin + (owner + 1) * size)};
  }

  // Results in private memory are copied once for each peer on this machine, so with several peers
  // they are reduced into memory that all can read.
  void choose_results(Lane& lane) {
    int near = 0;
    for (int r = 0; r < workers_; ++r) {
      if (r == me_ || !lane.link(r).shares_memory()) continue;
      if (use_ == Link::Use::kReadInPlace && lane.link(r).reaches(job_.outputs[0])) return;
      ++near;
    }
    result_bytes_ = static_cast<size_t>(block_elements_ / workers_) * out_bytes_;
    if (near < 2 || result_bytes_ == 0) return;
    kept_ = std::max(2 * depth_, static_cast<int64_t>(kResultsBytes / result_bytes_));
    results_ = lane.scratch(result_bytes_ * static_cast<size_t>(kept_));
    first_kept_ = static_cast<int64_t>(fingerprint_.number) * blocks_;
  }

  // Where the reduced part of a block lies for the others. Two blocks `depth` apart may be read
  // simultaneously: a rank that has sent the spread of block b has taken that of b - depth from
  // every rank. So a rank that reduces block b, after all spreads of b - depth, knows that no rank
  // reads b - 2 * depth any more.
  std::byte* result(int64_t b) const {
    if (results_ == nullptr) {
      return static_cast<std::byte*>(job_.outputs[0]) +
             static_cast<size_t>(part(b, me_).begin) * out_bytes_;
    }
    return results_ + static_cast<size_t>((first_kept_ + b) % kept_) * result_bytes_;
  }

  int try_advance() override {
    int blocked = post_all();
    while (!taken_.at_end(blocks_)) {
      const int missing = first_without_message();
      if (missing != kDone) return missing;
      if (taken_.phase(blocks_, depth_) == Phase::kGather) {
        take_gather(taken_.gathers);
        ++taken_.gathers;
      } else {
        take_spread(taken_.spreads);
        ++taken_.spreads;
      }
      blocked = post_all();
    }
    return blocked != kDone ? blocked : first_not_drained();
  }

  int post_all() {
    int blocked = kDone;
    for (int r = 0; r < workers_; ++r) {
      if (!post_to(r)) blocked = r;
    }
    return blocked;
  }

  // Returns true when there is nothing to send to the rank at the moment.
  bool post_to(int rank) {
    Cursor& at = posts_[static_cast<size_t>(rank)];
    while (!at.at_end(blocks_)) {
      const bool gather = at.phase(blocks_, depth_) == Phase::kGather;
      if (!gather && at.spreads >= taken_.gathers) return true;  // not reduced yet
      if (lane_.link(rank).room() == 0) return false;
      if (gather) {
        prepare(at.gathers);
        const Range theirs = part(at.gathers, rank);
        // A result overwrites a node only after the owner of that part has read the node.
        post_nodes(rank, theirs.begin, theirs.end - theirs.begin, use_);
        ++at.gathers;
      } else {
        const Range mine = part(at.spreads, me_);
        const std::span<const std::byte> piece(
            result(at.spreads), static_cast<size_t>(mine.end - mine.begin) * out_bytes_);
        post(rank, 1, Link::Pieces(&piece, 1),
             results_ == nullptr ? use_ : Link::Use::kReadInPlace);
        ++at.spreads;
      }
    }
    return true;
  }

  void prepare(int64_t b) {
    if (b < prepared_) return;
    prepared_ = b + 1;
    if (job_.prepare) job_.prepare(block(b).begin, block(b).end);
  }

  void take_gather(int64_t b) {
    prepare(b);
    const Range mine = part(b, me_);
    reduce(mine.begin, mine.end - mine.begin, job_.outputs,
           results_ != nullptr ? result(b) : nullptr);
    pop_all();
  }

  void take_spread(int64_t b) {
    for (int r = 0; r < workers_; ++r) {
      if (r == me_) continue;
      const Incoming* const incoming = lane_.peek(r, fingerprint_);
      const Range theirs = part(b, r);
      const size_t bytes = static_cast<size_t>(theirs.end - theirs.begin) * out_bytes_;
      check_message(r, *incoming, bytes);
      for (void* output : job_.outputs) {
        if (bytes == 0) continue;
        std::memcpy(
            static_cast<std::byte*>(output) + static_cast<size_t>(theirs.begin) * out_bytes_,
            incoming->bytes.data(), bytes);
      }
      lane_.pop(r);
    }
  }

  const int64_t depth_;
  const Link::Use use_;
  int64_t blocks_ = 0;
  int64_t block_elements_ = 0;
  int64_t prepared_ = 0;
  Cursor taken_;
  c10::SmallVector<Cursor, 8> posts_;
  std::byte* results_ = nullptr;  // memory for kept_ blocks; null: peers read the output
  size_t result_bytes_ = 0;
  int64_t kept_ = 0;
  int64_t first_kept_ = 0;  // continues from one reduction to the next
};

}  // namespace

WorkerTree::WorkerTree(int workers, int local_replicas) : local_(local_replicas) {
  TUTTI_CHECK(workers > 0 && local_replicas > 0);
  const int all = workers * local_replicas;
  std::vector<TreeNode> nodes;
  first_node_.push_back(0);
  for (int w = 0; w < workers; ++w) {
    const std::vector<TreeNode> own =
        maximal_nodes(all, w * local_replicas, (w + 1) * local_replicas);
    nodes.insert(nodes.end(), own.begin(), own.end());
    first_node_.push_back(nodes.size());
    max_nodes_ = std::max(max_nodes_, own.size());
  }
  tree_ = std::make_unique<NodeTree>(all, std::move(nodes));
}

std::span<const TreeNode> WorkerTree::nodes(int worker) const {
  const size_t first = first_node(worker);
  return std::span(tree_->nodes()).subspan(first, first_node(worker + 1) - first);
}

void reduce_own_nodes(const WorkerTree& tree, int worker, ReduceOp op, at::ScalarType dtype,
                      c10::ArrayRef<const void*> inputs, c10::ArrayRef<const void*> nodes,
                      int64_t begin, int64_t end) {
  const std::span<const TreeNode> own = tree.nodes(worker);
  const int first = worker * tree.local_replicas();
  for (size_t i = 0; i < own.size(); ++i) {
    const auto from = static_cast<size_t>(own[i].begin - first);
    const auto count = static_cast<size_t>(own[i].end - own[i].begin);
    if (count == 1 && nodes[i] == inputs[from]) continue;
    reduce_to_node(op, dtype, std::span<const void* const>(inputs.data() + from, count),
                   const_cast<void*>(nodes[i]), begin, end);
  }
}

std::unique_ptr<Transfer> start_all_reduce(Lane& lane, const WorkerTree& tree,
                                           WorkerReduction reduction, Operation operation,
                                           Deadline deadline) {
  TUTTI_CHECK(tree.workers() == lane.size() && !reduction.outputs.empty() &&
              reduction.nodes.size() == tree.nodes(lane.rank()).size());
  operation.kind = OperationKind::kAllReduce;
  operation.op = reduction.op;
  operation.dtype = reduction.dtype;
  const size_t bytes = static_cast<size_t>(reduction.count) *
                       c10::elementSize(node_dtype(reduction.op, reduction.dtype)) *
                       tree.max_nodes();
  if (bytes <= kWholeBytes) {
    return std::make_unique<WholeTransfer>(lane, tree, std::move(reduction), operation, deadline);
  }
  return std::make_unique<BlockTransfer>(lane, tree, std::move(reduction), operation, deadline);
}

}  // namespace tutti
