// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/operation.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::operation_test {

const std::vector<int64_t> kSizes = {3, 4};

Operation weight() {
  return {OperationKind::kAllReduce, "dense/weight", at::kFloat, kSizes, ReduceOp::kSum};
}

TEST(Fingerprint, DescribesAnOperation) {
  EXPECT_EQ(make_fingerprint(weight(), 1).describe(),
            "all_reduce(kSum) of float32[3, 4] \"dense/weight\"");
  EXPECT_EQ(make_fingerprint({.kind = OperationKind::kBarrier}, 1).describe(), "barrier");
  EXPECT_EQ(make_fingerprint({.kind = OperationKind::kAllGather, .dtype = at::kLong}, 1).describe(),
            "all_gather of int64[]");
  EXPECT_EQ(make_fingerprint({.kind = OperationKind::kBroadcast}, 1).describe(), "broadcast");
  EXPECT_EQ(make_fingerprint({.kind = OperationKind::kExchange, .name = "x"}, 1).describe(),
            "exchange \"x\"");
}

TEST(Fingerprint, IsEqualForEqualOperations) {
  const Fingerprint a = make_fingerprint(weight(), 7);
  const std::string name = "dense/weight";  // other memory
  const std::vector<int64_t> sizes = {3, 4};
  const Fingerprint b =
      make_fingerprint({OperationKind::kAllReduce, name, at::kFloat, sizes, ReduceOp::kSum}, 7);
  EXPECT_EQ(std::memcmp(&a, &b, sizeof a), 0);
}

TEST(Fingerprint, HasADifferentHashWhenAnythingDiffers) {
  std::set<uint64_t> hashes;
  size_t count = 0;
  const auto add = [&](const Operation& operation, uint64_t epoch) {
    hashes.insert(make_fingerprint(operation, epoch).hash);
    EXPECT_EQ(hashes.size(), ++count) << make_fingerprint(operation, epoch).describe();
  };
  add(weight(), 1);
  add(weight(), 2);
  for (const OperationKind kind : {OperationKind::kAllGather, OperationKind::kBroadcast,
                                   OperationKind::kBarrier, OperationKind::kExchange}) {
    Operation other = weight();
    other.kind = kind;
    add(other, 1);
  }
  Operation other = weight();
  other.op = ReduceOp::kMean;
  add(other, 1);
  other.op = c10::nullopt;
  add(other, 1);
  for (const auto& dtype : std::vector<c10::optional<at::ScalarType>>{at::kDouble, c10::nullopt}) {
    other = weight();
    other.dtype = dtype;
    add(other, 1);
  }
  for (const char* name :
       {"", "dense/weighs", "dense/weight ", "dense", "dense/we", "dense/we\1"}) {
    other = weight();
    other.name = name;
    add(other, 1);
  }
  other = weight();
  other.name = std::string_view("dense/weight\0", 13);  // a zero byte is a byte
  add(other, 1);
  other = weight();
  other.step = 7;
  add(other, 1);
  const std::vector<std::vector<int64_t>> all_sizes = {
      {4, 3}, {3}, {3, 4, 1}, {12}, {}, {3, 4, 0}, {0, 3, 4}, {3, -4}, {-3, 4}, {3, 4, 1, 1, 1}};
  for (const std::vector<int64_t>& sizes : all_sizes) {
    other = weight();
    other.sizes = sizes;
    add(other, 1);
  }
}

TEST(Fingerprint, LeavesOutTheStepOnRequest) {
  const auto hash = [](uint64_t step, bool must_share) {
    return make_fingerprint({.name = "x", .step = step, .must_share_step = must_share}, 1).hash;
  };
  EXPECT_EQ(hash(1, false), hash(2, false));
  EXPECT_NE(hash(1, true), hash(2, true));
}

TEST(Fingerprint, TruncatesWhatDoesNotFitButHashesAllOfIt) {
  const std::string prefix(Fingerprint::kMaxName, 'n');
  const std::vector<int64_t> sizes = {1, 2, 3, 4, 5};
  const std::vector<int64_t> others = {1, 2, 3, 4, 6};
  const Fingerprint a =
      make_fingerprint({.name = prefix + "a", .dtype = at::kInt, .sizes = sizes}, 1);
  const Fingerprint b =
      make_fingerprint({.name = prefix + "b", .dtype = at::kInt, .sizes = sizes}, 1);
  const Fingerprint c =
      make_fingerprint({.name = prefix + "a", .dtype = at::kInt, .sizes = others}, 1);
  EXPECT_EQ(a.describe(), "exchange of int32[1, 2, 3, 4, ...] \"" + prefix + "\"");
  EXPECT_EQ(a.describe(), b.describe());
  EXPECT_EQ(a.describe(), c.describe());
  EXPECT_NE(a.hash, b.hash);
  EXPECT_NE(a.hash, c.hash);
}

TEST(Fingerprint, DescribesUntrustedBytesSafely) {
  Fingerprint fingerprint;
  std::memset(static_cast<void*>(&fingerprint), 0xff, sizeof fingerprint);
  EXPECT_EQ(fingerprint.describe(), "an unknown operation \"" + std::string(48, '?') + "\"");
  for (int value = 0; value < 256; ++value) {
    std::memset(static_cast<void*>(&fingerprint), value, sizeof fingerprint);
    for (const char c : fingerprint.describe()) {
      EXPECT_TRUE(c >= 0x20 && c < 0x7f) << value;
    }
  }
  Fingerprint escape = make_fingerprint({.name = "\x1b[31mred\n"}, 1);
  EXPECT_EQ(escape.describe(), "exchange \"?[31mred?\"");
}

TEST(OperationLog, KeepsTheLast256) {
  OperationLog log;
  EXPECT_EQ(log.describe(), "");
  for (int i = 0; i < 300; ++i) {
    log.add(make_fingerprint({.name = "op" + std::to_string(i)}, 1));
  }
  const std::string text = log.describe();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 256);
  EXPECT_EQ(text.find("  44: exchange \"op44\"\n"), 0U) << text.substr(0, 100);
  EXPECT_TRUE(text.ends_with("  299: exchange \"op299\"\n"));
}

TEST(OperationLog, DescribesOneOperation) {
  OperationLog log;
  EXPECT_EQ(log.describe(0), "operation 0");
  for (int i = 0; i < 257; ++i) {
    log.add(make_fingerprint({.kind = OperationKind::kBarrier, .name = "b"}, 1));
  }
  EXPECT_EQ(log.describe(0), "operation 0");
  EXPECT_EQ(log.describe(1), "barrier \"b\" (operation 1)");
  EXPECT_EQ(log.describe(256), "barrier \"b\" (operation 256)");
  EXPECT_EQ(log.describe(257), "operation 257");
  EXPECT_EQ(log.describe(UINT64_MAX), "operation 18446744073709551615");
}

}  // namespace tutti::operation_test
