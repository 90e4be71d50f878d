// SPDX-License-Identifier: Apache-2.0
//
// Describes what a rank believes it is doing. The description travels with the data, so that ranks
// that disagree detect it before anything is combined, and errors say which rank did what.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Optional.h>

#include "tutti/values/reduce_op.h"

namespace tutti {

enum class OperationKind : uint8_t {
  kAllReduce,
  kAllGather,
  kBroadcast,
  kBarrier,
  kExchange,
};

/// An operation that is requested of a lane. `name` is of a variable or a call, for diagnostics.
struct Operation {
  OperationKind kind = OperationKind::kExchange;
  std::string_view name = {};
  c10::optional<at::ScalarType> dtype = c10::nullopt;
  c10::IntArrayRef sizes = {};  ///< Those that are equal on all ranks.
  c10::optional<ReduceOp> op = c10::nullopt;
  uint64_t step = 0;            ///< The training step; 0 stands for that of the group.
  bool must_share_step = true;  ///< If false, ranks may do it in different steps.
};

/// The same in a fixed size, with a hash of all that must be equal. Trivially copyable: its bytes
/// are sent, between processes with the same byte order. Names and sizes that do not fit are
/// truncated; the hash covers all of them. A plain value.
struct Fingerprint {
  static constexpr size_t kMaxSizes = 4;
  static constexpr size_t kMaxName = 48;
  static constexpr uint8_t kNone = 0xff;

  uint64_t hash = 0;
  uint64_t epoch = 0;
  uint64_t number = 0;  ///< Counts the operations of a lane; not part of the hash.
  uint64_t step = 0;    ///< Tells a rank that left out a step from one that is late.
  OperationKind kind = OperationKind::kExchange;
  uint8_t op = kNone;
  uint8_t dtype = kNone;
  uint8_t dims = 0;
  uint32_t reserved = 0;
  std::array<int64_t, kMaxSizes> sizes = {};
  std::array<char, kMaxName> name = {};

  /// `all_reduce(kSum) of float32[3, 4] "dense/weight"`. Safe for untrusted bytes.
  std::string describe() const;
  /// Returns the same with " in step 7", if there are steps.
  std::string describe_with_step() const;
};
static_assert(sizeof(Fingerprint) == 120);

Fingerprint make_fingerprint(const Operation& operation, uint64_t epoch);

/// The last operations of a lane, for error messages. One thread adds; any thread may read, and may
/// see a part of an operation that is just being added.
class OperationLog {
 public:
  static constexpr size_t kKept = 256;

  OperationLog() = default;
  ~OperationLog() { delete ring_.load(); }
  OperationLog(const OperationLog&) = delete;
  OperationLog& operator=(const OperationLog&) = delete;

  void add(const Fingerprint& fingerprint);

  /// Returns one line for each operation that is kept, the latest last.
  std::string describe() const;

  /// Returns one of them, or only its number if it is not kept any more.
  std::string describe(uint64_t number) const;

 private:
  static constexpr size_t kWords = sizeof(Fingerprint) / sizeof(uint64_t);

  Fingerprint entry(uint64_t number) const;

  using Ring = std::array<std::array<std::atomic<uint64_t>, kWords>, kKept>;

  std::atomic<Ring*> ring_{nullptr};  // made by the first operation
  std::atomic<uint64_t> count_{0};
};

}  // namespace tutti
