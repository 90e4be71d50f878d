// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/operation.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "tutti/base/error.h"
#include "tutti/base/hash.h"
#include "tutti/base/joined.h"
#include "tutti/nest/leaf.h"

namespace tutti {
namespace {

uint64_t hash_of(const Operation& operation, uint64_t epoch) {
  const auto op = operation.op ? static_cast<uint64_t>(*operation.op) + 1 : 0;
  const auto dtype = operation.dtype ? static_cast<uint64_t>(*operation.dtype) + 1 : 0;
  const uint64_t small = static_cast<uint64_t>(operation.kind) << 48 | op << 40 | dtype << 32;
  const uint64_t step = operation.must_share_step ? operation.step : 0;
  uint64_t hash = combined(combined(kHashSeed, epoch), step);
  hash = combined(hash, small | static_cast<uint32_t>(operation.sizes.size()));
  for (const int64_t size : operation.sizes) hash = combined(hash, static_cast<uint64_t>(size));
  size_t i = 0;
  for (; i + 8 <= operation.name.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, operation.name.data() + i, 8);
    hash = combined(hash, word);
  }
  uint64_t rest = 0;
  if (i < operation.name.size()) {
    std::memcpy(&rest, operation.name.data() + i, operation.name.size() - i);
  }
  return combined(combined(hash, rest), operation.name.size());
}

const char* kind_name(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllReduce:
      return "all_reduce";
    case OperationKind::kAllGather:
      return "all_gather";
    case OperationKind::kBroadcast:
      return "broadcast";
    case OperationKind::kBarrier:
      return "barrier";
    case OperationKind::kExchange:
      return "exchange";
  }
  return "an unknown operation";
}

// Untrusted bytes must not send control sequences to a terminal.
std::string printable(const char* text, size_t limit) {
  std::string result;
  for (size_t i = 0; i < limit && text[i] != '\0'; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    result += c >= 0x20 && c < 0x7f ? static_cast<char>(c) : '?';
  }
  return result;
}

}  // namespace

Fingerprint make_fingerprint(const Operation& operation, uint64_t epoch) {
  static constexpr Fingerprint kEmpty;  // copying it is faster than clearing each member
  Fingerprint result = kEmpty;
  result.hash = hash_of(operation, epoch);
  result.epoch = epoch;
  result.step = operation.step;
  result.kind = operation.kind;
  if (operation.op) result.op = static_cast<uint8_t>(*operation.op);
  if (operation.dtype) result.dtype = static_cast<uint8_t>(*operation.dtype);
  result.dims = static_cast<uint8_t>(std::min<size_t>(operation.sizes.size(), 255));
  for (size_t i = 0; i < operation.sizes.size() && i < Fingerprint::kMaxSizes; ++i) {
    result.sizes[i] = operation.sizes[i];
  }
  operation.name.copy(result.name.data(), Fingerprint::kMaxName);
  return result;
}

std::string Fingerprint::describe() const {
  std::string text = kind_name(kind);
  if (op <= static_cast<uint8_t>(ReduceOp::kProduct)) {
    text += message("(", static_cast<ReduceOp>(op), ")");
  }
  if (dtype != kNone) {
    const bool known = dtype < static_cast<uint8_t>(at::ScalarType::NumOptions);
    text += message(" of ", known ? dtype_name(static_cast<at::ScalarType>(dtype)) : "?", "[");
    text += joined(std::span(sizes).first(std::min<size_t>(dims, kMaxSizes)));
    text += dims > kMaxSizes ? ", ...]" : "]";
  }
  const std::string shown_name = printable(name.data(), kMaxName);
  if (!shown_name.empty()) text += " \"" + shown_name + "\"";
  return text;
}

std::string Fingerprint::describe_with_step() const {
  return step == 0 ? describe() : message(describe(), " in step ", step);
}

void OperationLog::add(const Fingerprint& fingerprint) {
  const uint64_t number = count_.load(std::memory_order_relaxed);
  std::array<uint64_t, kWords> words;
  std::memcpy(words.data(), &fingerprint, sizeof fingerprint);
  Ring* ring = ring_.load(std::memory_order_relaxed);
  if (ring == nullptr) {
    ring = new Ring();
    ring_.store(ring, std::memory_order_release);
  }
  for (size_t i = 0; i < kWords; ++i) {
    (*ring)[number % kKept][i].store(words[i], std::memory_order_relaxed);
  }
  count_.store(number + 1, std::memory_order_release);
}

Fingerprint OperationLog::entry(uint64_t number) const {
  const Ring& ring = *ring_.load(std::memory_order_acquire);  // there is an entry, so it is made
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) {
    words[i] = ring[number % kKept][i].load(std::memory_order_relaxed);
  }
  Fingerprint fingerprint;
  std::memcpy(static_cast<void*>(&fingerprint), words.data(), sizeof fingerprint);
  return fingerprint;
}

std::string OperationLog::describe() const {
  const uint64_t count = count_.load(std::memory_order_acquire);
  std::string text;
  for (uint64_t i = count > kKept ? count - kKept : 0; i < count; ++i) {
    text += message("  ", i, ": ", entry(i).describe_with_step(), "\n");
  }
  return text;
}

std::string OperationLog::describe(uint64_t number) const {
  const uint64_t count = count_.load(std::memory_order_acquire);
  if (number >= count || number + kKept < count) return message("operation ", number);
  return message(entry(number).describe_with_step(), " (operation ", number, ")");
}

}  // namespace tutti
