// SPDX-License-Identifier: Apache-2.0
//
// shuffle: a buffer of elements or indices from which one is drawn at random.

#include <algorithm>
#include <atomic>
#include <string>
#include <type_traits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/internal/random.h"
#include "tutti/data/internal/token_node.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

int64_t bytes_of(const Element& element) {
  int64_t bytes = 64;
  for (const Value& value : element.values) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      if (tensor->defined()) bytes += static_cast<int64_t>(tensor->nbytes());
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      bytes += static_cast<int64_t>(text->size());
    } else if (const auto* strings = std::get_if<std::vector<std::string>>(&value)) {
      for (const std::string& line : *strings) bytes += static_cast<int64_t>(line.size()) + 8;
    }
  }
  return bytes;
}
// Indices are always stored.
int64_t bytes_of(int64_t) { return 0; }
int64_t bytes_of(const std::vector<int64_t>&) { return 0; }

template <class Token>
class ShuffleStream final : public Stream<Token> {
 public:
  using Restored = std::function<void(const Iteration::Order&)>;

  ShuffleStream(std::unique_ptr<Stream<Token>> input, int64_t buffer_size, bool reshuffle,
                const Iteration::Order& order, Restored restored, int64_t max_saved_bytes)
      : input_(std::move(input)),
        capacity_(static_cast<size_t>(buffer_size)),
        reshuffle_(reshuffle),
        order_(order),
        restored_(std::move(restored)),
        max_saved_bytes_(max_saved_bytes) {
    seed_random();
    if constexpr (kMayReplay) {
      StateWriter state;
      input_->save(state);
      beginning_ = state.take();
    }
  }

  bool next(Token& out) override {
    fill();
    if (buffer_.empty()) return false;
    const size_t i = draw();
    out = std::move(buffer_[i]);
    ++delivered_;
    if (!ended_ && input_->next(buffer_[i])) return true;
    ended_ = true;
    if (i + 1 < buffer_.size()) buffer_[i] = std::move(buffer_.back());
    buffer_.pop_back();
    return true;
  }

  void save(StateWriter& state) override {
    state.tag("shuffle");
    order_.save(state);
    state.number(delivered_);
    if constexpr (kMayReplay) state.text(beginning_);
    int64_t bytes = 0;
    for (const Token& token : buffer_) bytes += bytes_of(token);
    const bool stores = bytes <= max_saved_bytes_;
    state.number(stores ? 1 : 0);
    if (!stores) return;
    // The state before the draws that were made ahead, which are repeated.
    Random random = random_;
    if (next_draw_ < draws_.size()) {
      random = before_draws_;
      for (size_t k = 0; k < next_draw_; ++k) random.below(buffer_.size() + next_draw_ - k);
    }
    random.save(state);
    state.number(ended_ ? 1 : 0);
    state.number(static_cast<int64_t>(buffer_.size()));
    for (const Token& token : buffer_) save_token(state, token);
    input_->save(state);
  }

  void restore(StateReader& state) override {
    state.tag("shuffle");
    order_ = Iteration::Order::restore(state);
    restored_(order_);
    const int64_t delivered = state.count(INT64_MAX);
    if constexpr (kMayReplay) beginning_ = state.text();
    if (state.count(1) == 0) {
      replay(delivered);
      return;
    }
    delivered_ = delivered;
    random_.restore(state);
    ended_ = state.count(1) == 1;
    const int64_t size = state.count(static_cast<int64_t>(capacity_));
    for (int64_t i = 0; i < size; ++i) {
      buffer_.emplace_back();
      restore_token(state, buffer_.back());
    }
    input_->restore(state);
  }

 private:
  static constexpr size_t kDrawsAhead = 32;
  static constexpr bool kMayReplay = std::is_same_v<Token, Element>;

  void seed_random() {
    random_ = Random((reshuffle_ ? order_ : Iteration::Order{order_.seed, 0, 0}).mixed());
  }

  void replay(int64_t count) {
    seed_random();
    StateReader beginning(beginning_);
    input_->restore(beginning);
    beginning.finish();
    Token token;
    while (delivered_ < count && next(token)) {
    }
    if (delivered_ != count) {
      throw Error(ErrorCode::kDataLoss,
                  message("Iterator::restore: the position is after element ", count,
                          " of a shuffle, whose input ends after ", delivered_,
                          ". The input has changed since the position was saved."));
    }
  }

  // Once the input has ended, the buffer shrinks by one each time, so that draws can be made
  // ahead: a large buffer is not in the processor's cache.
  size_t draw() {
    if (!ended_) return random_.below(buffer_.size());
    if (next_draw_ == draws_.size()) {
      before_draws_ = random_;
      draws_.resize(std::min(kDrawsAhead, buffer_.size()));
      next_draw_ = 0;
      for (size_t k = 0; k < draws_.size(); ++k) {
        draws_[k] = random_.below(buffer_.size() - k);
        __builtin_prefetch(&buffer_[draws_[k]], 1);
      }
    }
    return draws_[next_draw_++];
  }

  void fill() {
    while (!ended_ && buffer_.size() < capacity_) {
      buffer_.emplace_back();
      if (input_->next(buffer_.back())) continue;
      buffer_.pop_back();
      ended_ = true;
    }
  }

  std::unique_ptr<Stream<Token>> input_;
  std::string beginning_;  // the first position of the input, with its orders
  const size_t capacity_;
  const bool reshuffle_;
  Iteration::Order order_;
  Restored restored_;
  const int64_t max_saved_bytes_;
  Random random_{0};
  Random before_draws_{0};
  std::vector<size_t> draws_;
  size_t next_draw_ = 0;
  std::vector<Token> buffer_;
  bool ended_ = false;
  int64_t delivered_ = 0;
};

class ShuffleNode final : public TokenNode<ShuffleNode> {
 public:
  ShuffleNode(NodePtr from, int64_t buffer_size, const ShuffleOptions& options, uint64_t seed,
              std::shared_ptr<std::atomic<uint64_t>> passes)
      : TokenNode(std::move(from)),
        buffer_size_(buffer_size),
        options_(options),
        seed_(seed),
        passes_(std::move(passes)) {}

  std::string_view name() const override { return "shuffle"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<ShuffleNode>(std::move(inputs[0]), buffer_size_, options_, seed_,
                                         passes_);
  }
  NodeTraits traits() const override {
    NodeTraits traits = TokenNode::traits();
    traits.reorders = true;
    return traits;
  }
  int64_t cardinality() const override { return input().cardinality(); }

  template <class Token>
  std::unique_ptr<Stream<Token>> stream(Iteration& iteration) const {
    const Iteration::Order order = iteration.next_order(*this, options_.seed, seed_, *passes_);
    return std::make_unique<ShuffleStream<Token>>(
        input_stream<Token>(iteration), buffer_size_, options_.reshuffle_each_iteration, order,
        [this, &iteration](const Iteration::Order& restored) {
          iteration.set_order(*this, restored, *passes_);
        },
        // A replay would see different elements.
        comes_in_any_order(input()) ? INT64_MAX : options_.max_saved_bytes);
  }

 private:
  int64_t buffer_size_;
  ShuffleOptions options_;
  uint64_t seed_;
  std::shared_ptr<std::atomic<uint64_t>> passes_;  // shared with rewritten pipelines
};

}  // namespace

NodePtr make_shuffle(NodePtr input, int64_t buffer_size, const ShuffleOptions& options) {
  if (buffer_size < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset::shuffle: buffer_size is ", buffer_size,
                        "; it must be 1 or more. The larger the buffer, the better the mixing."));
  }
  if (options.max_saved_bytes < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset::shuffle: max_saved_bytes is ", options.max_saved_bytes,
                        "; it must be 0 or more."));
  }
  return std::make_shared<ShuffleNode>(std::move(input), buffer_size, options,
                                       options.seed.value_or(random_seed()),
                                       std::make_shared<std::atomic<uint64_t>>(0));
}

}  // namespace tutti::data
