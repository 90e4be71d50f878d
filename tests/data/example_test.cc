// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/formats/example.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/damage.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensors.h"

namespace tutti::data {
namespace {

using test::bit_equal;
using test::from_hex;
using test::scalar;
using test::tensor;
using Strings = std::vector<std::string>;

constexpr std::string_view kGolden =
    "0a1f0a110a0178120c120a0a080000c03f000000c00a0a0a017912051a030a0107";

// Encodes fields directly, to write what the builder never writes.
std::string field(int number, const std::string& bytes) {
  std::string text(1, static_cast<char>(number << 3 | 2));
  const size_t size = bytes.size();
  if (size < 0x80) return text + static_cast<char>(size) + bytes;
  return text + static_cast<char>(0x80 | (size & 0x7f)) + static_cast<char>(size >> 7) + bytes;
}
std::string example_of(const std::string& entries) { return field(1, entries); }
std::string entry(const std::string& name, const std::string& feature) {
  return field(1, field(1, name) + field(2, feature));
}
std::string int64s(const std::string& packed) { return field(3, field(1, packed)); }

TEST(ExampleBuilder, WritesTheKnownBytes) {
  ExampleBuilder builder;
  builder.floats("x", {1.5f, -2.0f}).int64s("y", {7});
  EXPECT_EQ(builder.finish(), from_hex(kGolden));
  EXPECT_EQ(builder.finish(), from_hex("0a00")) << "it begins anew";
}

TEST(ExampleBuilder, TakesTensorsOfAnyDtype) {
  const at::Tensor grid = tensor({1, 2, 3, 4, 5, 6}).reshape({2, 3}).t();
  const std::string bytes = ExampleBuilder()
                                .tensor("half", grid.to(at::kHalf))
                                .tensor("double", grid.to(at::kDouble))
                                .tensor("byte", grid.to(at::kByte))
                                .tensor("bool", grid.gt(2))
                                .finish();
  ParsedExample example = ExampleSpec()
                              .fixed<float>("half", {3, 2})
                              .fixed<float>("double", {6})
                              .fixed<int64_t>("byte", {6})
                              .fixed<int64_t>("bool", {6})
                              .parse(bytes);
  EXPECT_TRUE(
      bit_equal(example.tensor("half"), tensor({1.f, 4.f, 2.f, 5.f, 3.f, 6.f}).reshape({3, 2})));
  EXPECT_TRUE(bit_equal(example.tensor("double"), tensor({1.f, 4.f, 2.f, 5.f, 3.f, 6.f})));
  EXPECT_TRUE(bit_equal(example.tensor("byte"), tensor<int64_t>({1, 4, 2, 5, 3, 6})));
  EXPECT_TRUE(bit_equal(example.tensor("bool"), tensor<int64_t>({0, 1, 0, 1, 1, 1})));
  EXPECT_TUTTI_ERROR(ExampleBuilder().tensor("x", at::Tensor()), ErrorCode::kInvalidArgument,
                     "feature \"x\"", "an undefined tensor");
}

TEST(ExampleSpec, ReadsTheKnownBytes) {
  const ExampleSpec spec = ExampleSpec().fixed<int64_t>("y").fixed<float>("x", {2});
  ParsedExample example = spec.parse(from_hex(kGolden));
  EXPECT_EQ(example.size(), 2u);
  EXPECT_TRUE(bit_equal(example.tensor("y"), scalar<int64_t>(7)));
  EXPECT_TRUE(bit_equal(example.tensor("x"), tensor({1.5f, -2.0f})));
  EXPECT_EQ(spec.slot("x"), 1u);
  EXPECT_TRUE(bit_equal(example.tensor(1), tensor({1.5f, -2.0f})));
}

TEST(ExampleSpec, ReadsEveryKindOfFeature) {
  constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();
  const std::string bytes = ExampleBuilder()
                                .floats("image", {1, 2, 3, 4, 5, 6})
                                .int64s("ids", {1, -1, 300, kSmallest})
                                .bytes("name", "a")
                                .strings("tags", {"one", "", "three"})
                                .strings("corners", {"a", "b", "c", "d"})
                                .floats("none", {})
                                .bytes("unknown", "x")
                                .finish();
  const ExampleSpec spec = ExampleSpec()
                               .fixed<float>("image", {2, 3})
                               .variable<int64_t>("ids")
                               .bytes("name")
                               .variable<std::string>("tags")
                               .fixed<std::string>("corners", {2, 2})
                               .variable<float>("none")
                               .fixed<float>("none_of_three", {0, 3}, 1.f);
  ParsedExample example = spec.parse(bytes);
  EXPECT_TRUE(
      bit_equal(example.tensor("image"), tensor({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}).reshape({2, 3})));
  EXPECT_TRUE(bit_equal(example.tensor("ids"), tensor<int64_t>({1, -1, 300, kSmallest})));
  EXPECT_EQ(example.bytes("name"), "a");
  EXPECT_EQ(example.strings("tags"), (Strings{"one", "", "three"}));
  EXPECT_EQ(example.strings("corners"), (Strings{"a", "b", "c", "d"}));
  EXPECT_EQ(example.tensor("none").sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(example.tensor("none_of_three").sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(to_text(spec.element_spec()),
            "(float32[2, 3], int64[-1], string, strings, strings, float32[-1], float32[0, 3])");
}

TEST(ExampleSpec, BytesMayHoldZeros) {
  const std::string zeros("a\0b", 3);
  EXPECT_EQ(ExampleSpec().bytes("z").parse(ExampleBuilder().bytes("z", zeros).finish()).bytes("z"),
            zeros);
}

TEST(ExampleSpec, MissingFeaturesTakeTheDefault) {
  const ExampleSpec spec = ExampleSpec()
                               .fixed<int64_t>("label", {}, 5)
                               .fixed<float>("x", {2}, 0.5f)
                               .bytes("name", "nobody")
                               .fixed<std::string>("names", {2}, "n")
                               .variable<int64_t>("ids")
                               .variable<std::string>("tags");
  // A feature without a kind counts as missing, too.
  for (const std::string& bytes :
       {std::string(), example_of(""), example_of(entry("label", "") + entry("ids", ""))}) {
    ParsedExample example = spec.parse(bytes);
    EXPECT_TRUE(bit_equal(example.tensor("label"), scalar<int64_t>(5)));
    EXPECT_TRUE(bit_equal(example.tensor("x"), tensor({0.5f, 0.5f})));
    EXPECT_EQ(example.bytes("name"), "nobody");
    EXPECT_EQ(example.strings("names"), (Strings{"n", "n"}));
    EXPECT_EQ(example.tensor("ids").numel(), 0);
    EXPECT_EQ(example.strings("tags"), Strings{});
    example.tensor("x").fill_(9);
  }
}

TEST(ExampleSpec, AcceptsUnpackedListsAndMixtures) {
  // 08 05: field 1 as a varint; 0d: as four bytes.
  const std::string integers = field(3, from_hex("0805 0807") + field(1, from_hex("0809")));
  const std::string floats = field(2, from_hex("0d0000c03f") + field(1, from_hex("000000c0")));
  ParsedExample example = ExampleSpec().variable<int64_t>("i").fixed<float>("f", {2}).parse(
      example_of(entry("i", integers) + entry("f", floats)));
  EXPECT_TRUE(bit_equal(example.tensor("i"), tensor<int64_t>({5, 7, 8, 9})));
  EXPECT_TRUE(bit_equal(example.tensor("f"), tensor({1.5f, -2.0f})));
}

TEST(ExampleSpec, TheLastOfEqualKeysWins) {
  const ExampleSpec spec = ExampleSpec().variable<int64_t>("i");
  const std::string first = entry("i", int64s("\x01\x02"));
  const std::string second = entry("i", int64s("\x03"));
  const at::Tensor last = tensor<int64_t>({3});
  EXPECT_TRUE(bit_equal(spec.parse(example_of(first + second)).tensor(0), last));
  EXPECT_TRUE(bit_equal(spec.parse(example_of(first) + example_of(second)).tensor(0), last));
}

TEST(ExampleSpec, MergesPartsOfOneFeature) {
  const ExampleSpec spec = ExampleSpec().variable<int64_t>("i");
  const at::Tensor both = tensor<int64_t>({1, 2});
  const std::string one = int64s("\x01");
  const std::string two = int64s("\x02");
  EXPECT_TRUE(bit_equal(spec.parse(example_of(entry("i", one + two))).tensor(0), both));
  const std::string twice = field(1, field(1, "i") + field(2, one) + field(2, two));
  EXPECT_TRUE(bit_equal(spec.parse(example_of(twice)).tensor(0), both));
  // If the kinds differ, the last one counts.
  const std::string other = field(2, field(1, std::string(4, '\0')));
  EXPECT_TRUE(bit_equal(spec.parse(example_of(entry("i", one + other + two))).tensor(0),
                        tensor<int64_t>({2})));
}

TEST(ExampleSpec, SkipsUnknownFieldsAndGroups) {
  const std::string unknown =
      from_hex("2001 290102030405060708 2d01020304 320178 3b 0801 43 44 3c");
  const std::string list = unknown + field(1, "\x07") + unknown;
  const std::string feature = unknown + field(3, list);
  const std::string pair = unknown + field(2, feature) + unknown + field(1, "i");
  const std::string bytes = unknown + example_of(unknown + field(1, pair)) + unknown;
  EXPECT_TRUE(
      bit_equal(ExampleSpec().fixed<int64_t>("i").parse(bytes).tensor(0), scalar<int64_t>(7)));
}

TEST(ExampleSpec, ABatchIsTheStackOfItsExamples) {
  const ExampleSpec spec = ExampleSpec()
                               .fixed<float>("x", {2, 1})
                               .fixed<int64_t>("y", {}, -5)
                               .bytes("s", "none")
                               .fixed<std::string>("t", {2});
  Strings rows;
  for (int64_t i = 0; i < 5; ++i) {
    ExampleBuilder builder;
    builder.floats("x", {0.5f * static_cast<float>(i), -1.f}).strings("t", {"a", "b"});
    if (i % 2 == 0) builder.int64s("y", {i}).bytes("s", std::to_string(i));
    rows.push_back(builder.finish());
  }
  ParsedExample batch = spec.parse_batch(rows);
  EXPECT_EQ(batch.tensor("x").sizes(), at::IntArrayRef({5, 2, 1}));
  EXPECT_TRUE(bit_equal(batch.tensor("y"), tensor<int64_t>({0, -5, 2, -5, 4})));
  EXPECT_EQ(batch.strings("s"), (Strings{"0", "none", "2", "none", "4"}));
  EXPECT_EQ(batch.strings("t").size(), 10u);
  for (int64_t i = 0; i < 5; ++i) {
    ParsedExample one = spec.parse(rows[static_cast<size_t>(i)]);
    EXPECT_TRUE(bit_equal(batch.tensor("x").select(0, i), one.tensor("x")));
  }
  EXPECT_EQ(spec.parse_batch(Strings{}).tensor("x").sizes(), at::IntArrayRef({0, 2, 1}));
  rows[3] = ExampleBuilder().floats("x", {1}).finish();
  EXPECT_TUTTI_ERROR(spec.parse_batch(rows), ErrorCode::kInvalidArgument, "feature \"x\"",
                     "found 1.", "(In example 3 of 5.)");
  EXPECT_TUTTI_ERROR(ExampleSpec(spec).variable<float>("v").parse_batch(rows),
                     ErrorCode::kFailedPrecondition, "feature \"v\" has a variable length");
}

TEST(ExampleSpec, ErrorsNameTheFeature) {
  const std::string bytes =
      ExampleBuilder().floats("x", {1, 2, 3}).int64s("y", {1}).strings("s", {"a", "b"}).finish();
  EXPECT_TUTTI_ERROR(ExampleSpec().fixed<float>("x", {2, 2}).parse(bytes),
                     ErrorCode::kInvalidArgument,
                     "ExampleSpec::parse: feature \"x\": expected 4 float32 values (shape (2, 2)), "
                     "found 3.");
  EXPECT_TUTTI_ERROR(ExampleSpec().fixed<float>("y").parse(bytes), ErrorCode::kInvalidArgument,
                     "feature \"y\": expected 1 float32 value (shape ()), found int64 values.");
  EXPECT_TUTTI_ERROR(ExampleSpec().variable<int64_t>("x").parse(bytes), ErrorCode::kInvalidArgument,
                     "feature \"x\": expected int64 values, found float32 values.");
  EXPECT_TUTTI_ERROR(ExampleSpec().fixed<float>("z", {3}).parse(bytes), ErrorCode::kInvalidArgument,
                     "feature \"z\": expected 3 float32 values (shape (3,)), but the feature is "
                     "missing");
  EXPECT_TUTTI_ERROR(ExampleSpec().bytes("s").parse(bytes), ErrorCode::kInvalidArgument,
                     "feature \"s\": expected 1 bytes value (shape ()), found 2.");
}

TEST(ExampleSpec, ChecksItsArguments) {
  EXPECT_TUTTI_ERROR(ExampleSpec().bytes("x").fixed<float>("x"), ErrorCode::kInvalidArgument,
                     "two features \"x\"");
  EXPECT_TUTTI_ERROR(ExampleSpec().fixed<float>("x", {2, -1}), ErrorCode::kInvalidArgument,
                     "feature \"x\"", "(2, -1)", "variable<T>()");
  ParsedExample example = ExampleSpec().fixed<float>("x", {}, 1.f).bytes("y", "").parse("");
  EXPECT_TUTTI_ERROR(example.tensor("z"), ErrorCode::kNotFound, "no feature \"z\"", "x, y");
  EXPECT_TUTTI_ERROR(example.tensor(2), ErrorCode::kNotFound, "no slot 2");
  EXPECT_TUTTI_ERROR(example.bytes("x"), ErrorCode::kInvalidArgument, "feature \"x\"",
                     "cannot be read as bytes", "fixed 1 float32 value");
}

TEST(ExampleSpec, CopiesAreIndependent) {
  ExampleSpec one = ExampleSpec().fixed<int64_t>("a", {}, 1);
  ExampleSpec two = one;
  two.fixed<int64_t>("b", {}, 2);
  EXPECT_EQ(one.size(), 1u);
  EXPECT_EQ(two.size(), 2u);
}

TEST(ExampleSpec, FindsFeaturesAmongMany) {
  ExampleSpec spec;
  ExampleBuilder builder;
  for (int64_t i = 0; i < 50; ++i) {
    spec.fixed<int64_t>("feature" + std::to_string(i));
    builder.int64s("feature" + std::to_string(49 - i), {49 - i});
  }
  ParsedExample example = spec.parse(builder.finish());
  for (int64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(example.tensor(static_cast<size_t>(i)).item<int64_t>(), i);
  }
}

TEST(ExampleSpec, MalformedBytesAreDataLoss) {
  const ExampleSpec spec = ExampleSpec().variable<int64_t>("i").variable<float>("f");
  const auto refuses = [&](const std::string& bytes, std::string_view where) {
    EXPECT_TUTTI_ERROR(spec.parse(bytes), ErrorCode::kDataLoss, "not a valid tf.train.Example",
                       where);
  };
  refuses("\x01", "outermost");                     // field number 0
  refuses("\x0a", "outermost");                     // no length
  refuses("\x0a\x05x", "outermost");                // too short
  refuses(std::string(11, '\xff'), "outermost");    // an endless varint
  refuses("\x0c", "outermost");                     // the end of a group that never began
  refuses(from_hex("0b 14"), "outermost");          // the end of a different group
  refuses(std::string(1000, '\x0b'), "outermost");  // nested groups
  refuses(example_of("\x0a\x05"), "list of features");
  refuses(example_of(field(1, "\x0a\x05")), "entry");
  refuses(example_of(entry("i", "\x1a\x05")), "in feature \"i\"");
  refuses(example_of(entry("i", int64s("\x80"))), "in feature \"i\"");
  refuses(example_of(entry("i", int64s(std::string(10, '\x80') + '\x01'))), "in feature \"i\"");
  refuses(example_of(entry("f", field(2, field(1, "123")))), "in feature \"f\"");
}

TEST(ExampleSpec, DamageNeverReadsOutOfBounds) {
  const std::string bytes = ExampleBuilder()
                                .floats("f", {1, 2, 3})
                                .int64s("i", {1, 1000, -1})
                                .strings("s", {"a", "bcd"})
                                .finish();
  const ExampleSpec spec =
      ExampleSpec().variable<float>("f").variable<int64_t>("i").variable<std::string>("s");
  const auto parse = [&](const std::string& damaged) { spec.parse(damaged); };
  EXPECT_EQ(test::truncate_everywhere(bytes, parse), bytes.size() - 1)
      << "an empty string is an Example without features";
  EXPECT_GT(test::damage_at_random(bytes, 5000, parse), 2000u);
}

}  // namespace
}  // namespace tutti::data
