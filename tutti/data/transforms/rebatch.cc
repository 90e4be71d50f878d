// SPDX-License-Identifier: Apache-2.0
//
// Transforms that recut batches. rebatch recuts the stream of rows regardless of where batches
// ended; split cuts each batch into a fixed number of pieces.

#include <algorithm>
#include <deque>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

class RebatchStream final : public ElementStream {
 public:
  RebatchStream(std::unique_ptr<ElementStream> input, const std::vector<int64_t>& sizes,
                bool drop_remainder)
      : input_(std::move(input)), sizes_(sizes), drop_remainder_(drop_remainder) {}

  bool next(Element& out) override {
    const int64_t wanted = sizes_[next_size_];
    // An empty batch needs input, too: at its end there are no more batches.
    while (rows_ < std::max<int64_t>(wanted, 1) && fetch()) {
    }
    if (parts_.empty()) return false;
    if (drop_remainder_ && rows_ < wanted) return false;
    next_size_ = (next_size_ + 1) % sizes_.size();
    out = take(std::min(wanted, rows_));
    return true;
  }
  void save(StateWriter& state) override {
    state.tag("rebatch");
    state.number(static_cast<int64_t>(next_size_));
    state.number(static_cast<int64_t>(parts_.size()));
    for (const Element& part : parts_) state.element(part);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("rebatch");
    next_size_ = static_cast<size_t>(state.count(static_cast<int64_t>(sizes_.size()) - 1));
    parts_.clear();
    rows_ = 0;
    const int64_t count = state.count(INT32_MAX);
    for (int64_t i = 0; i < count; ++i) {
      parts_.push_back(state.element());
      rows_ += batch_rows("Iterator::restore", parts_.back());
    }
    input_->restore(state);
  }

 private:
  bool fetch() {
    Element batch;
    while (input_->next(batch)) {
      const int64_t rows = batch_rows("Dataset::rebatch", batch);
      if (rows == 0) continue;
      rows_ += rows;
      parts_.push_back(std::move(batch));
      return true;
    }
    return false;
  }

  // Returns the next `wanted` rows, which must have been fetched.
  Element take(int64_t wanted) {
    if (wanted == 0) return slice_batch(parts_.front(), 0, 0);
    std::vector<Element> taken;
    rows_ -= wanted;
    while (wanted > 0) {
      const int64_t here = batch_rows("Dataset::rebatch", parts_.front());
      if (here <= wanted) {
        taken.push_back(std::move(parts_.front()));
        parts_.pop_front();
        wanted -= here;
      } else {
        taken.push_back(slice_batch(parts_.front(), 0, wanted));
        parts_.front() = slice_batch(parts_.front(), wanted, here);
        wanted = 0;
      }
    }
    return taken.size() == 1 ? std::move(taken[0]) : concatenate_batches(taken);
  }

  std::unique_ptr<ElementStream> input_;
  const std::vector<int64_t>& sizes_;
  const bool drop_remainder_;
  size_t next_size_ = 0;
  std::deque<Element> parts_;
  int64_t rows_ = 0;  // in parts_
};

class RebatchNode final : public Node {
 public:
  RebatchNode(NodePtr from, std::vector<int64_t> sizes, bool drop_remainder)
      : Node({std::move(from)}), sizes_(std::move(sizes)), drop_remainder_(drop_remainder) {}

  std::string_view name() const override { return "rebatch"; }
  NodePtr with_inputs(std::vector<NodePtr> from) const override {
    return std::make_shared<RebatchNode>(std::move(from[0]), sizes_, drop_remainder_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<RebatchStream>(input().iterate(iteration), sizes_, drop_remainder_);
  }
  int64_t cardinality() const override {
    const int64_t batches = input().cardinality();
    return batches == 0 || batches == kInfinite ? batches : kUnknown;
  }
  ElementSpec spec() const override { return spec_with_rows(input().spec(), -1); }
  NodeTraits traits() const override {
    return {.batch_size = sizes_.size() == 1 ? std::optional(sizes_[0]) : std::nullopt};
  }

 private:
  std::vector<int64_t> sizes_;
  bool drop_remainder_;
};

class SplitStream final : public ElementStream {
 public:
  SplitStream(std::unique_ptr<ElementStream> input, int64_t pieces, bool even)
      : input_(std::move(input)), pieces_(pieces), even_(even), next_(pieces) {}

  bool next(Element& out) override {
    if (next_ == pieces_) {
      if (!input_->next(batch_)) return false;
      rows_ = batch_rows("distribute_dataset", batch_);
      next_ = 0;
    }
    const auto [begin, end] = piece_of(rows_, pieces_, next_++, even_);
    out = slice_batch(batch_, begin, end);
    return true;
  }
  void save(StateWriter& state) override {
    state.tag("split");
    state.number(next_);
    if (next_ < pieces_) state.element(batch_);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("split");
    next_ = state.count(pieces_);
    if (next_ < pieces_) {
      batch_ = state.element();
      rows_ = batch_rows("Iterator::restore", batch_);
    }
    input_->restore(state);
  }

 private:
  std::unique_ptr<ElementStream> input_;
  const int64_t pieces_;
  const bool even_;
  Element batch_;
  int64_t rows_ = 0;
  int64_t next_;  // piece of this batch
};

class SplitNode final : public Node {
 public:
  SplitNode(NodePtr from, int64_t pieces, bool even)
      : Node({std::move(from)}), pieces_(pieces), even_(even) {}

  std::string_view name() const override { return "split"; }
  NodePtr with_inputs(std::vector<NodePtr> from) const override {
    return std::make_shared<SplitNode>(std::move(from[0]), pieces_, even_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<SplitStream>(input().iterate(iteration), pieces_, even_);
  }
  int64_t cardinality() const override {
    const int64_t batches = input().cardinality();
    return batches < 0 ? batches : batches * pieces_;
  }
  ElementSpec spec() const override { return spec_with_rows(input().spec(), -1); }

 private:
  int64_t pieces_;
  bool even_;
};

}  // namespace

std::pair<int64_t, int64_t> piece_of(int64_t rows, int64_t pieces, int64_t piece, bool even) {
  if (!even) {
    const int64_t interval = (rows + pieces - 1) / pieces;
    return {std::min(rows, piece * interval), std::min(rows, (piece + 1) * interval)};
  }
  const int64_t small = rows / pieces;
  const int64_t larger = rows % pieces;  // pieces with an extra row
  const int64_t begin = piece * small + std::min(piece, larger);
  return {begin, begin + small + (piece < larger ? 1 : 0)};
}

ElementSpec spec_with_rows(ElementSpec specs, int64_t rows) {
  if (!specs) return specs;
  for (ValueSpec& spec : *specs) {
    if (spec.shape && !spec.shape->empty()) (*spec.shape)[0] = rows;
  }
  return specs;
}

NodePtr make_rebatch(NodePtr input, std::vector<int64_t> sizes, bool drop_remainder) {
  int64_t sum = 0;
  for (const int64_t size : sizes) {
    if (size < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("Dataset::rebatch: a size is ", size, "; it must be 0 or more."));
    }
    sum += size;
  }
  if (sum == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "Dataset::rebatch: no size is above 0. Give at least one positive size, or the "
                "dataset would never end.");
  }
  return std::make_shared<RebatchNode>(std::move(input), std::move(sizes), drop_remainder);
}

NodePtr make_split(NodePtr input, int64_t pieces, bool even) {
  TUTTI_CHECK(pieces > 0);
  return std::make_shared<SplitNode>(std::move(input), pieces, even);
}

}  // namespace tutti::data
