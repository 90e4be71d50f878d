// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/flat_state.h"

#include <algorithm>
#include <cstring>

#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include "tutti/train/optimizer/flat_kernels.h"

namespace tutti::internal {
namespace {

std::byte* at_element(const at::Tensor& flat, int64_t element) {
  return static_cast<std::byte*>(flat.data_ptr()) +
         element * static_cast<int64_t>(flat.element_size());
}

}  // namespace

FlatState::FlatState(FlatParameters& flat)
    : flat_(flat),
      states_(flat.layout().buffers.size()),
      masters_(flat.layout().buffers.size()),
      shares_(flat.layout().slots.size()) {
  for (size_t b = 0; b < masters_.size(); ++b) {
    const ParameterBuffer& buffer = flat.layout().buffers[b];
    if (buffer.has_master()) masters_[b] = arena_.empty({buffer.numel}, buffer.state);
  }
  for (size_t b = 0; b < masters_.size(); ++b) {
    const at::Tensor& values = flat_.values(0, b);
    if (!masters_[b].defined()) continue;
    convert(values.scalar_type(), values.data_ptr(), masters_[b].scalar_type(),
            masters_[b].data_ptr(), values.numel());
  }
}

bool FlatState::lacks_state(std::span<const UpdateRule> rules) const {
  return std::any_of(rules.begin(), rules.end(),
                     [&](const UpdateRule& rule) { return num_states(rule) > num_states_; });
}

void FlatState::prepare(std::span<const UpdateRule> rules, const std::vector<uint8_t>& live,
                        const std::vector<GradientChunk>& chunks, int64_t updates) {
  const c10::AutoGradMode no_grad(false);
  const ParameterLayout& layout = flat_.layout();
  const int before = num_states_;
  for (const UpdateRule& rule : rules) num_states_ = std::max(num_states_, num_states(rule));
  for (size_t b = 0; b < states_.size(); ++b) {
    for (int i = before; i < num_states_; ++i) {
      states_[b][i] = arena_.empty({layout.buffers[b].numel}, layout.buffers[b].state);
      states_[b][i].zero_();
    }
  }
  bool changed = num_states_ != before || pieces_.size() != chunks.size();
  for (size_t s = 0; s < layout.slots.size(); ++s) {
    const ParameterSlot& slot = layout.slots[s];
    for (int i = before; i < num_states(rules[slot.info.group]); ++i) {
      const double first = initial_state(rules[slot.info.group], i);
      if (first != 0) {
        states_[slot.buffer][i].narrow(0, slot.offset, slot.info.numel).fill_(first);
      }
    }
    Share& share = shares_[s];
    changed = changed || share.live != (live[s] != 0);
    if (share.live && live[s] == 0) share.left = updates;
    if (!share.live && live[s] != 0) share.missed += updates - share.left;
    share.live = live[s] != 0;
    share.ever = share.ever || share.live;
  }
  if (!changed) return;
  pieces_.assign(chunks.size(), {});
  for (const GradientChunk& chunk : chunks) {
    const ParameterBucket& bucket = layout.buckets[chunk.bucket];
    for (size_t s = bucket.first_slot; s < bucket.end_slot; ++s) {
      const ParameterSlot& slot = layout.slots[s];
      const int64_t begin = std::max(slot.offset, bucket.begin + chunk.begin);
      const int64_t end = std::min(slot.offset + slot.info.numel, bucket.begin + chunk.end);
      if (begin >= end || !shares_[s].live) continue;
      std::vector<Piece>& pieces = pieces_[chunk.index];
      // The piece extends over the padding between two slots, which is zero and stays so.
      if (!pieces.empty() && s > bucket.first_slot && pieces.back().group == slot.info.group &&
          pieces.back().missed == shares_[s].missed && shares_[s - 1].live) {
        pieces.back().end = end;
      } else {
        pieces.push_back({slot.buffer, s, slot.info.group, shares_[s].missed, begin, end});
      }
    }
  }
}

void FlatState::take_over(const FlatState& old) {
  const c10::AutoGradMode no_grad(false);
  num_states_ = old.num_states_;
  const ParameterLayout& layout = flat_.layout();
  const ParameterLayout& from = old.flat_.layout();
  for (size_t b = 0; b < states_.size(); ++b) {
    for (int i = 0; i < num_states_; ++i) {
      states_[b][i] = arena_.empty({layout.buffers[b].numel}, layout.buffers[b].state);
      states_[b][i].zero_();
    }
  }
  for (size_t s = 0; s < layout.slots.size(); ++s) {
    const ParameterSlot& slot = layout.slots[s];
    for (size_t o = 0; o < from.slots.size(); ++o) {
      const ParameterSlot& source = from.slots[o];
      if (source.info.parameter != slot.info.parameter) continue;
      shares_[s] = old.shares_[o];
      for (int i = 0; i < num_states_; ++i) {
        states_[slot.buffer][i]
            .narrow(0, slot.offset, slot.info.numel)
            .copy_(old.states_[source.buffer][i].narrow(0, source.offset, slot.info.numel));
      }
    }
  }
}

int64_t FlatState::update(const GradientChunk& chunk, const Step& step) {
  const double factor = step.factor;
  int64_t different = -1;
  for (const Piece& piece : pieces_[chunk.index]) {
    // Done before the first replica's parameters replace the others, while these are in a cache.
    if (step.check && different < 0) different = find_difference(piece);
    const ParameterBuffer& buffer = flat_.layout().buffers[piece.buffer];
    double remaining = factor;
    if (factor != 1 && buffer.gradient == buffer.dtype && buffer.gradient == buffer.state) {
      scale_gradients(piece, factor);
      remaining = 1;
    }
    if (buffer.state == at::kDouble) {
      update_piece<double>(piece, step.rules[piece.group], remaining, step.updates);
    } else {
      update_piece<float>(piece, step.rules[piece.group], remaining, step.updates);
    }
    // 16 bits have too little precision for the product before it is used.
    if (remaining != 1 && buffer.gradient == buffer.dtype) scale_gradients(piece, factor);
  }
  return different;
}

int64_t FlatState::find_difference(const Piece& piece) const {
  if (flat_.is_shared()) return -1;
  const at::Tensor& first = flat_.values(0, piece.buffer);
  const size_t element = first.element_size();
  const size_t bytes = static_cast<size_t>(piece.end - piece.begin) * element;
  for (size_t r = 1; r < flat_.replicas(); ++r) {
    const std::byte* const mine = at_element(flat_.values(r, piece.buffer), piece.begin);
    const std::byte* const other = at_element(first, piece.begin);
    if (same_bytes(mine, other, bytes)) continue;
    size_t byte = 0;
    while (mine[byte] == other[byte]) ++byte;
    const int64_t position = piece.begin + static_cast<int64_t>(byte / element);
    for (size_t s = 0; s < flat_.layout().slots.size(); ++s) {
      const ParameterSlot& slot = flat_.layout().slots[s];
      if (slot.buffer == piece.buffer && slot.offset <= position &&
          position < slot.offset + slot.info.numel) {
        return Difference{s, r}.code();
      }
    }
  }
  return -1;
}

// A gradient that lies elsewhere is alone in its bucket, so its piece does not extend beyond it.
std::byte* FlatState::gradient_of(size_t replica, const Piece& piece) const {
  const ParameterSlot& slot = flat_.layout().slots[piece.slot];
  const auto element =
      static_cast<int64_t>(c10::elementSize(flat_.layout().buffers[piece.buffer].gradient));
  return static_cast<std::byte*>(flat_.gradient_place(replica, piece.slot)) +
         (piece.begin - slot.offset) * element;
}

void FlatState::scale_gradients(const Piece& piece, double factor) const {
  for (size_t r = 0; r < flat_.replicas(); ++r) {
    scale(flat_.layout().buffers[piece.buffer].gradient, gradient_of(r, piece),
          piece.end - piece.begin, factor);
  }
}

template <class T>
void FlatState::update_piece(const Piece& piece, const UpdateRule& rule, double factor,
                             int64_t updates) {
  const ParameterBuffer& buffer = flat_.layout().buffers[piece.buffer];
  const int64_t count = piece.end - piece.begin;
  const at::Tensor& master = masters_[piece.buffer];
  UpdateSlice<T> slice;
  slice.count = count;
  slice.step = updates - piece.missed + 1;
  slice.gradient_factor = factor;
  std::byte* const first = at_element(flat_.values(0, piece.buffer), piece.begin);
  slice.parameter =
      reinterpret_cast<T*>(master.defined() ? at_element(master, piece.begin) : first);
  for (int i = 0; i < num_states(rule); ++i) {
    slice.state[i] = reinterpret_cast<T*>(at_element(states_[piece.buffer][i], piece.begin));
  }
  const std::byte* const gradient = gradient_of(0, piece);
  static thread_local std::vector<T> wide;  // of a chunk whose gradient has fewer bits
  if (buffer.gradient == buffer.state) {
    slice.gradient = reinterpret_cast<const T*>(gradient);
  } else {
    wide.resize(static_cast<size_t>(count));
    convert(buffer.gradient, gradient, buffer.state, wide.data(), count);
    slice.gradient = wide.data();
  }
  if (master.defined()) take_written(buffer.dtype, first, buffer.state, slice.parameter, count);
  apply(rule, slice);
  if (master.defined()) convert(buffer.state, slice.parameter, buffer.dtype, first, count);
  if (flat_.is_shared()) return;
  const size_t bytes = static_cast<size_t>(count) * c10::elementSize(buffer.dtype);
  for (size_t r = 1; r < flat_.replicas(); ++r) {
    std::memcpy(at_element(flat_.values(r, piece.buffer), piece.begin), first, bytes);
  }
}

std::vector<at::Tensor> FlatState::states_of(size_t parameter,
                                             const std::vector<UpdateRule>& rules) const {
  std::vector<at::Tensor> states;
  const ParameterLayout& layout = flat_.layout();
  for (size_t s = 0; s < layout.slots.size(); ++s) {
    const ParameterSlot& slot = layout.slots[s];
    if (slot.info.parameter != parameter || !shares_[s].ever) continue;
    for (int i = 0; i < num_states(rules[slot.info.group]); ++i) {
      states.push_back(states_[slot.buffer][i]
                           .narrow(0, slot.offset, slot.info.numel)
                           .clone()
                           .view(flat_.parameter(0, s).sizes()));
    }
  }
  return states;
}

size_t FlatState::bytes() const {
  size_t bytes = 0;
  for (const auto& states : states_) {
    for (const at::Tensor& state : states) bytes += state.defined() ? state.nbytes() : 0;
  }
  return bytes;
}

size_t FlatState::master_bytes() const {
  size_t bytes = 0;
  for (const at::Tensor& master : masters_) bytes += master.defined() ? master.nbytes() : 0;
  return bytes;
}

}  // namespace tutti::internal
