// SPDX-License-Identifier: Apache-2.0
//
// Transforms that pick elements by their position: take, skip, shard, repeat.

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/internal/inner_passes.h"
#include "tutti/data/internal/token_node.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

[[noreturn]] void refuse(const char* function, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, message("Dataset::", function, ": ", reason));
}

template <class Token>
class TakeStream final : public Stream<Token> {
 public:
  TakeStream(std::unique_ptr<Stream<Token>> input, int64_t count)
      : input_(std::move(input)), left_(count) {}

  bool next(Token& out) override {
    if (left_ == 0 || !input_->next(out)) return false;
    --left_;
    return true;
  }
  int64_t skip(int64_t n) override {
    const int64_t skipped = input_->skip(std::min(n, left_));
    left_ -= skipped;
    return skipped;
  }
  void save(StateWriter& state) override {
    state.tag("take");
    state.number(left_);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("take");
    left_ = state.count(left_);
    input_->restore(state);
  }

 private:
  std::unique_ptr<Stream<Token>> input_;
  int64_t left_;
};

class TakeNode final : public TokenNode<TakeNode> {
 public:
  TakeNode(NodePtr from, int64_t count) : TokenNode(std::move(from)), count_(count) {}

  std::string_view name() const override { return "take"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<TakeNode>(std::move(inputs[0]), count_);
  }
  int64_t cardinality() const override { return at_most(input().cardinality(), count_); }

  template <class Token>
  std::unique_ptr<Stream<Token>> stream(Iteration& iteration) const {
    return std::make_unique<TakeStream<Token>>(input_stream<Token>(iteration), count_);
  }

 private:
  int64_t count_;
};

template <class Token>
class SkipStream final : public Stream<Token> {
 public:
  SkipStream(std::unique_ptr<Stream<Token>> input, int64_t count)
      : input_(std::move(input)), left_(count) {}

  bool next(Token& out) override {
    pass_over();
    return input_->next(out);
  }
  int64_t skip(int64_t n) override {
    pass_over();
    return input_->skip(n);
  }
  void save(StateWriter& state) override {
    state.tag("skip");
    state.number(left_);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("skip");
    left_ = state.count(left_);
    input_->restore(state);
  }

 private:
  void pass_over() {
    if (left_ > 0) input_->skip(std::exchange(left_, 0));
  }

  std::unique_ptr<Stream<Token>> input_;
  int64_t left_;
};

class SkipNode final : public TokenNode<SkipNode> {
 public:
  SkipNode(NodePtr from, int64_t count) : TokenNode(std::move(from)), count_(count) {}

  std::string_view name() const override { return "skip"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<SkipNode>(std::move(inputs[0]), count_);
  }
  int64_t cardinality() const override {
    const int64_t all = input().cardinality();
    return all < 0 ? all : std::max<int64_t>(0, all - count_);
  }

  template <class Token>
  std::unique_ptr<Stream<Token>> stream(Iteration& iteration) const {
    return std::make_unique<SkipStream<Token>>(input_stream<Token>(iteration), count_);
  }

 private:
  int64_t count_;
};

// Element i of the input belongs to shard i mod num_shards.
template <class Token>
class ShardStream final : public Stream<Token> {
 public:
  ShardStream(std::unique_ptr<Stream<Token>> input, int64_t num_shards, int64_t index)
      : input_(std::move(input)), before_(index), num_shards_(num_shards) {}

  bool next(Token& out) override {
    if (!input_skip()) return false;
    return input_->next(out);
  }
  void save(StateWriter& state) override {
    state.tag("shard");
    state.number(before_);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("shard");
    before_ = state.count(num_shards_);
    input_->restore(state);
  }

 private:
  bool input_skip() {
    const int64_t gap = std::exchange(before_, num_shards_ - 1);
    return gap == 0 || input_->skip(gap) == gap;
  }

  std::unique_ptr<Stream<Token>> input_;
  int64_t before_;  // elements of other shards before the next one
  int64_t num_shards_;
};

class ShardNode final : public TokenNode<ShardNode> {
 public:
  ShardNode(NodePtr from, int64_t num_shards, int64_t index)
      : TokenNode(std::move(from)), num_shards_(num_shards), index_(index) {}

  std::string_view name() const override { return "shard"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<ShardNode>(std::move(inputs[0]), num_shards_, index_);
  }
  int64_t cardinality() const override {
    const int64_t all = input().cardinality();
    if (num_shards_ == kShardHint) return all == 0 ? 0 : kUnknown;
    return all < 0 ? all : (all + num_shards_ - 1 - index_) / num_shards_;
  }

  NodeTraits traits() const override {
    NodeTraits traits = TokenNode::traits();
    traits.arguments = message("(", num_shards_, ", ", index_, ")");
    traits.is_shard_hint = num_shards_ == kShardHint;
    return traits;
  }

  template <class Token>
  std::unique_ptr<Stream<Token>> stream(Iteration& iteration) const {
    if (num_shards_ == kShardHint) {
      refuse("shard",
             "shard(kShardHint, ...) can only be read through distribute_dataset with "
             "AutoShardPolicy::kHint, which fills in the number of workers.");
    }
    return std::make_unique<ShardStream<Token>>(input_stream<Token>(iteration), num_shards_,
                                                index_);
  }

 private:
  int64_t num_shards_;
  int64_t index_;
};

// Runs one pass over the input after the other. A pass without elements ends it.
template <class Token>
class RepeatStream final : public Stream<Token> {
 public:
  using Make = std::function<std::unique_ptr<Stream<Token>>(Iteration&)>;

  // The first pass begins immediately, because what it draws is part of the position.
  RepeatStream(Make make, int64_t count, const InnerPasses& passes)
      : make_(std::move(make)), passes_(passes), left_(count) {
    begin_pass();
  }

  bool next(Token& out) override {
    while (begin_pass()) {
      if (input_->next(out)) {
        empty_ = false;
        return true;
      }
      end_pass();
    }
    return false;
  }
  int64_t skip(int64_t n) override {
    int64_t skipped = 0;
    while (skipped < n && begin_pass()) {
      const int64_t here = input_->skip(n - skipped);
      if (here > 0) empty_ = false;
      skipped += here;
      if (skipped < n) end_pass();
    }
    return skipped;
  }
  void save(StateWriter& state) override {
    state.tag("repeat");
    passes_.save(state);
    state.number(left_);
    state.number(number_);
    state.number(empty_ ? 1 : 0);
    state.number(input_ != nullptr ? 1 : 0);
    if (input_ != nullptr) input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("repeat");
    passes_.restore(state);
    left_ = state.number();
    number_ = state.count(INT64_MAX);
    empty_ = state.count(1) == 1;
    const bool reading = state.count(1) == 1;
    // The constructor has already begun the first pass.
    if (number_ == 0 && reading) {
      input_->restore(state);
      return;
    }
    input_.reset();
    if (reading) {
      make_input();
      input_->restore(state);
    }
  }

 private:
  bool begin_pass() {
    if (input_ != nullptr) return true;
    if (left_ == 0) return false;
    if (left_ > 0) --left_;
    make_input();
    empty_ = true;
    return true;
  }
  void end_pass() {
    input_.reset();
    ++number_;
    if (empty_) left_ = 0;
  }
  // The first pass has the orders that there would be without repeat().
  void make_input() {
    if (number_ > 0) iteration_ = passes_.again(number_);
    input_ = make_(number_ > 0 ? *iteration_ : passes_.iteration());
  }

  Make make_;
  InnerPasses passes_;
  int64_t left_;        // passes after this one; -1: forever
  int64_t number_ = 0;  // of this pass
  bool empty_ = true;
  std::unique_ptr<Iteration> iteration_;  // outlives the stream
  std::unique_ptr<Stream<Token>> input_;
};

class RepeatNode final : public TokenNode<RepeatNode> {
 public:
  RepeatNode(NodePtr from, int64_t count, PassCounter passes)
      : TokenNode(std::move(from)), count_(count), passes_(std::move(passes)) {}

  std::string_view name() const override { return "repeat"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<RepeatNode>(std::move(inputs[0]), count_, passes_);
  }
  int64_t cardinality() const override {
    const int64_t all = input().cardinality();
    if (count_ == 0 || all == 0) return 0;
    if (count_ < 0) return all == kUnknown ? kUnknown : kInfinite;
    return all < 0 ? all : all * count_;
  }

  template <class Token>
  std::unique_ptr<Stream<Token>> stream(Iteration& iteration) const {
    return std::make_unique<RepeatStream<Token>>(
        [this, self = shared_from_this()](Iteration& inner) { return input_stream<Token>(inner); },
        count_, InnerPasses(iteration, *this, *passes_));
  }

 private:
  int64_t count_;
  PassCounter passes_;
};

constexpr int64_t kAll = INT64_MAX;

}  // namespace

NodePtr make_take(NodePtr input, int64_t count) {
  if (count < -1)
    refuse("take", message("the count is ", count, "; it must be 0 or more, or -1 for all."));
  return std::make_shared<TakeNode>(std::move(input), count == -1 ? kAll : count);
}

NodePtr make_skip(NodePtr input, int64_t count) {
  if (count < -1)
    refuse("skip", message("the count is ", count, "; it must be 0 or more, or -1 for all."));
  if (count == -1) return make_take(std::move(input), 0);  // empty even for an infinite dataset
  return std::make_shared<SkipNode>(std::move(input), count);
}

NodePtr make_shard(NodePtr input, int64_t num_shards, int64_t index) {
  if (num_shards != kShardHint && (num_shards < 1 || index < 0 || index >= num_shards)) {
    refuse("shard", message("there is no shard ", index, " of ", num_shards,
                            "; the index must be at least 0 and less than the number of shards."));
  }
  return std::make_shared<ShardNode>(std::move(input), num_shards, index);
}

NodePtr make_repeat(NodePtr input, int64_t count) {
  if (count < -1)
    refuse("repeat",
           message("the count is ", count, "; it must be 0 or more, or -1 to repeat forever."));
  return std::make_shared<RepeatNode>(std::move(input), count, make_pass_counter());
}

}  // namespace tutti::data
