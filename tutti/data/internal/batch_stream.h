// SPDX-License-Identifier: Apache-2.0
//
// What batch and padded_batch share.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/node.h"
#include "tutti/data/stream.h"

namespace tutti::data {

/// How many batches `elements` make, which may be kInfinite or kUnknown.
inline int64_t count_batches(int64_t elements, int64_t size, bool drop_remainder) {
  if (elements < 0) return elements;
  return drop_remainder ? elements / size : (elements + size - 1) / size;
}

/// Whether no batch can have fewer rows than the others.
inline bool batches_are_full(int64_t elements, int64_t size, bool drop_remainder) {
  return drop_remainder || elements == kInfinite || (elements >= 0 && elements % size == 0);
}

/// Batches of tokens: elements to be stacked, or indices. Threads: as Stream.
template <class Token, class Batch>
class BatchStream final : public Stream<Batch> {
 public:
  using Make = std::function<Batch(std::vector<Token>&)>;

  BatchStream(std::string_view tag, std::unique_ptr<Stream<Token>> input, int64_t size,
              bool drop_remainder, Make make)
      : tag_(tag),
        input_(std::move(input)),
        size_(size),
        drop_remainder_(drop_remainder),
        make_(std::move(make)) {}

  bool next(Batch& out) override {
    tokens_.clear();
    while (static_cast<int64_t>(tokens_.size()) < size_) {
      tokens_.emplace_back();
      if (input_->next(tokens_.back())) continue;
      tokens_.pop_back();
      break;
    }
    if (tokens_.empty()) return false;
    if (drop_remainder_ && static_cast<int64_t>(tokens_.size()) < size_) return false;
    out = make_(tokens_);
    return true;
  }
  int64_t skip(int64_t n) override {
    int64_t batches = 0;
    while (batches < n) {
      const int64_t skipped = input_->skip(size_);
      if (skipped == 0 || (skipped < size_ && drop_remainder_)) break;
      ++batches;
    }
    return batches;
  }
  void save(StateWriter& state) override {
    state.tag(tag_);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag(tag_);
    input_->restore(state);
  }

 private:
  const std::string_view tag_;  // the name of the node
  std::unique_ptr<Stream<Token>> input_;
  const int64_t size_;
  const bool drop_remainder_;
  const Make make_;
  std::vector<Token> tokens_;
};

}  // namespace tutti::data
