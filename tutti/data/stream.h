// SPDX-License-Identifier: Apache-2.0
//
// One pass over the elements of a node, or over their indices if the source supports random access:
// shuffling, sharding and skipping then touch no data.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/nest/element_codec.h"

namespace tutti::data {

/// Used by one thread at a time.
template <class Token>
class Stream {
 public:
  Stream() = default;
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// False at the end, and from then on.
  virtual bool next(Token& out) = 0;

  /// Skips up to n tokens and returns how many there were.
  virtual int64_t skip(int64_t n) {
    Token token;
    int64_t skipped = 0;
    while (skipped < n && next(token)) ++skipped;
    return skipped;
  }

  /// Writes the position as bytes; restore() on a new stream of the same node continues from there.
  virtual void save(StateWriter& state) = 0;
  virtual void restore(StateReader& state) = 0;
};

using ElementStream = Stream<Element>;
using IndexStream = Stream<int64_t>;
using IndexBatchStream = Stream<std::vector<int64_t>>;

inline void save_token(StateWriter& state, const Element& token) { state.element(token); }
inline void save_token(StateWriter& state, int64_t token) { state.number(token); }
inline void save_token(StateWriter& state, const std::vector<int64_t>& token) {
  state.number(static_cast<int64_t>(token.size()));
  for (const int64_t index : token) state.number(index);
}
inline void restore_token(StateReader& state, Element& token) { token = state.element(); }
inline void restore_token(StateReader& state, int64_t& token) { token = state.number(); }
inline void restore_token(StateReader& state, std::vector<int64_t>& token) {
  token.clear();
  for (int64_t left = state.count(INT32_MAX); left > 0; --left) token.push_back(state.number());
}

}  // namespace tutti::data
