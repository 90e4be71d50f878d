// SPDX-License-Identifier: Apache-2.0
//
// What a rank believes it is doing. The description travels with the data, so that ranks that do
// not do the same thing notice before anything is combined, and can say who did what.

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
  kSend,
};

/// What is asked of a lane. `name` is that of a variable or a call, for people.
struct Operation {
  OperationKind kind = OperationKind::kExchange;
  std::string_view name = {};
  c10::optional<at::ScalarType> dtype = c10::nullopt;
  c10::IntArrayRef sizes = {};  ///< Of what all ranks have alike.
  c10::optional<ReduceOp> op = c10::nullopt;
  uint64_t step = 0;            ///< Of training; 0 stands for the one that the group is in.
  bool must_share_step = true;  ///< Ranks may do it in different steps, if not.
};

/// The same in fixed size, with a hash of all that must be equal. Trivially copyable: it is sent as
/// it is, between processes of one kind of machine. Names and ranks of tensors that do not fit are
/// cut; the hash covers them whole.
struct Fingerprint {
  static constexpr size_t kMaxSizes = 4;
  static constexpr size_t kMaxName = 48;
  static constexpr uint8_t kNone = 0xff;

  uint64_t hash = 0;
  uint64_t epoch = 0;
  uint64_t number = 0;  ///< Which operation of its lane it is; not part of the hash.
  uint64_t step = 0;    ///< A rank that leaves out a step must not be taken for one that is late.
  OperationKind kind = OperationKind::kExchange;
  uint8_t op = kNone;
  uint8_t dtype = kNone;
  uint8_t dims = 0;
  uint32_t reserved = 0;
  std::array<int64_t, kMaxSizes> sizes = {};
  std::array<char, kMaxName> name = {};

  /// `all_reduce(kSum) of float32[3, 4] "dense/weight"`. Safe for bytes from anywhere.
  std::string describe() const;
  /// The same with " in step 7", if there are steps.
  std::string describe_with_step() const;
};
static_assert(sizeof(Fingerprint) == 120);

Fingerprint make_fingerprint(const Operation& operation, uint64_t epoch);

/// The last operations of a lane, for error messages. One thread adds; any may look, and sees an
/// operation that is just being added in parts.
class OperationLog {
 public:
  static constexpr size_t kKept = 256;

  OperationLog() = default;
  ~OperationLog() { delete ring_.load(); }
  OperationLog(const OperationLog&) = delete;
  OperationLog& operator=(const OperationLog&) = delete;

  void add(const Fingerprint& fingerprint);

  /// One line for each operation that is kept, the latest last.
  std::string describe() const;

  /// One of them, or only its number if it is kept no more.
  std::string describe(uint64_t number) const;

 private:
  static constexpr size_t kWords = sizeof(Fingerprint) / sizeof(uint64_t);

  Fingerprint entry(uint64_t number) const;

  using Ring = std::array<std::array<std::atomic<uint64_t>, kWords>, kKept>;

  std::atomic<Ring*> ring_{nullptr};  // made by the first operation
  std::atomic<uint64_t> count_{0};
};

}  // namespace tutti
