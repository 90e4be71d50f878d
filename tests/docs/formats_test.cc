// SPDX-License-Identifier: Apache-2.0
//
// The bytes on the pages of docs/formats/ are those that the code writes. On a page, the line
// before such a block is `<!-- bytes: name -->`, or `<!-- text: name -->` for text.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <torch/torch.h>

#include "tutti/files/tf_record_file.h"
#include "tutti/group/grpc/remote_peer.h"
#include "tutti/group/operation.h"
#include "tutti/group/rendezvous/meeting_place.h"
#include "tutti/group/shared_memory/segment.h"
#include "tutti/nest/element_codec.h"
#include "tutti/rpc/internal/handshake.h"
#include "tutti/tutti.h"

namespace tutti::docs_formats_test {

using rpc::internal::ClientHandshake;
using rpc::internal::FrameBytes;
using rpc::internal::FrameKind;
using rpc::internal::FrameStatus;
using rpc::internal::ListenerHandshake;

constexpr const char* kDocumentedSecret = "0123456789abcdef";

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The block of a page after the line `<!-- mark -->`.
std::string block(const std::string& page, const std::string& mark) {
  const auto root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  const std::string text = read_file(root / "docs" / "formats" / page);
  const std::string before = "<!-- " + mark + " -->\n```text\n";
  const size_t begin = text.find(before);
  if (begin == std::string::npos) {
    ADD_FAILURE() << page << " has no block after <!-- " << mark << " -->";
    return "";
  }
  const size_t first = begin + before.size();
  return text.substr(first, text.find("```", first) - first);
}

// The bytes of a block; each line begins with the offset of its first byte.
std::string documented(const std::string& page, const std::string& name) {
  std::istringstream lines(block(page, "bytes: " + name));
  std::string bytes;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    size_t offset = 0;
    words >> std::hex >> offset;
    EXPECT_EQ(offset, bytes.size()) << page << ": " << line;
    for (unsigned byte = 0; words >> byte;) bytes += static_cast<char>(byte);
  }
  return bytes;
}

// As the pages have it, so that a block that differs can be replaced.
std::string dump(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    char word[24];
    std::snprintf(word, sizeof word, "%04zx ", at);
    text += word;
    for (const char each : bytes.substr(at, 16)) {
      std::snprintf(word, sizeof word, " %02x", static_cast<unsigned char>(each));
      text += word;
    }
    text += '\n';
  }
  return text;
}

void expect_documented(const std::string& page, const std::string& name, std::string_view bytes) {
  EXPECT_EQ(dump(documented(page, name)), dump(bytes)) << page << ": " << name;
}

template <class T>
std::string_view view_of(const T& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Formats, TfRecord) {
  const auto path = std::filesystem::path(testing::TempDir()) / "tutti_documented.tfrecord";
  {
    data::TfRecordWriter writer(path.string());
    writer.write("tutti");
    writer.close();
  }
  expect_documented("tfrecord.md", "record", read_file(path));
  std::filesystem::remove(path);
}

TEST(Formats, Element) {
  data::Element element;
  element.values.emplace_back(torch::tensor({1.0F, 2.0F}));
  element.values.emplace_back(std::string("ab"));
  data::StateWriter state;
  state.element(element);
  expect_documented("position.md", "element", state.take());
}

TEST(Formats, PositionOfADataset) {
  auto iterator = data::range(5).iterator();
  iterator.next();
  iterator.next();
  expect_documented("position.md", "position", iterator.save());
}

TEST(Formats, PositionOfADistributedDataset) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  auto iterator = strategy.distribute_dataset(data::range(8).batch(4)).iterator();
  iterator.get_next();
  expect_documented("position.md", "distributed", iterator.save());
}

FrameBytes frame(std::string_view bytes) {
  FrameBytes result = {};
  EXPECT_EQ(bytes.size(), result.size());
  std::memcpy(result.data(), bytes.data(), std::min(bytes.size(), result.size()));
  return result;
}

// What the page says of the bytes 16 to 47 of a proof and of a verdict.
std::string proof(const std::string& label, std::string_view hello, std::string_view challenge) {
  const std::string text = label + std::string(hello) + std::string(challenge);
  std::string result(32, '\0');
  HMAC(EVP_sha256(), kDocumentedSecret, static_cast<int>(std::strlen(kDocumentedSecret)),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(result.data()), nullptr);
  return result;
}

TEST(Formats, FramesOfTheHandshake) {
  rpc::internal::Frame each{.kind = FrameKind::kHello};
  for (size_t i = 0; i < each.payload.size(); ++i) each.payload[i] = std::byte(i);
  const FrameBytes hello = rpc::internal::pack(each);
  expect_documented("connection.md", "hello", view_of(hello));
  each.kind = FrameKind::kChallenge;
  for (size_t i = 0; i < each.payload.size(); ++i) each.payload[i] = std::byte(32 + i);
  const FrameBytes challenge = rpc::internal::pack(each);
  expect_documented("connection.md", "challenge", view_of(challenge));
  const std::string documented_proof = documented("connection.md", "proof");
  const std::string documented_verdict = documented("connection.md", "verdict");
  EXPECT_EQ(rpc::internal::unpack(frame(documented_proof))->kind, FrameKind::kProof);
  EXPECT_EQ(rpc::internal::unpack(frame(documented_verdict))->kind, FrameKind::kVerdict);
  EXPECT_EQ(documented_proof.substr(16, 32),
            proof("tutti rpc 1: client", view_of(hello), view_of(challenge)));
  EXPECT_EQ(documented_verdict.substr(16, 32),
            proof("tutti rpc 1: server", view_of(hello), view_of(challenge)));
}

TEST(Formats, ProofsOfTheHandshakeAreWhatThePageSays) {
  ClientHandshake client("host:1", kDocumentedSecret, "the test");
  ListenerHandshake listener(kDocumentedSecret, FrameStatus::kOk);
  const FrameBytes challenge = listener.on_frame(client.hello()).value();
  const FrameBytes answer = client.on_challenge(challenge);
  const FrameBytes verdict = listener.on_frame(answer).value();
  const auto covered = [&](const std::string& label) {
    return proof(label, view_of(client.hello()), view_of(challenge));
  };
  EXPECT_EQ(view_of(answer).substr(16, 32), covered("tutti rpc 1: client"));
  EXPECT_EQ(view_of(verdict).substr(16, 32), covered("tutti rpc 1: server"));
}

TEST(Formats, CallToken) {
  EXPECT_EQ(block("connection.md", "text: token"),
            rpc::internal::call_token(kDocumentedSecret, "/tutti/rendezvous.join") + "\n");
}

TEST(Formats, Join) {
  const internal::Member member{.rank = 1,
                                .world = 2,
                                .job = "j",
                                .instance = "12-34",
                                .address = "b:4321",
                                .facts = {{"v", "1"}},
                                .info = {}};
  EXPECT_EQ(block("rendezvous.md", "text: join"), internal::print_member(member) + "\n");
}

TEST(Formats, MessageOfAGroup) {
  const std::array<int64_t, 2> sizes = {3, 4};
  const Operation operation{.kind = OperationKind::kAllReduce,
                            .name = "dense/weight",
                            .dtype = at::kFloat,
                            .sizes = sizes,
                            .op = ReduceOp::kSum,
                            .step = 7};
  Fingerprint fingerprint = make_fingerprint(operation, 0x0123456789abcdef);
  fingerprint.number = 5;
  const MessageHead head{.hash = fingerprint.hash, .sequence = 9, .total = 12, .tag = 0};
  const internal::WireHead wire =
      internal::make_wire_head(internal::WireHead::Kind::kData, head, fingerprint);
  expect_documented("group.md", "wire", {reinterpret_cast<const char*>(&wire), sizeof wire});
}

TEST(Formats, LayoutOfASegment) {
  const internal::Segment::Layout layout{.lanes = 4, .ranks = 2, .bytes = size_t{64} << 20};
  EXPECT_EQ(layout.consumed_offset(3, 1), 4096U + 64U * (3 * 2 + 1));
  EXPECT_EQ(layout.ring_offset(0, 0), 8192U);
  EXPECT_EQ(layout.ring_bytes(), 4198400U);
  EXPECT_EQ(layout.ring_offset(3, 1), 8192U + 4198400U * (3 * 2 + 1));
  EXPECT_EQ(layout.tensors_offset(), 33595392U);
  EXPECT_EQ(offsetof(internal::RingSlot, head), 8U);
  EXPECT_EQ(offsetof(internal::RingSlot, bytes), 40U);
  EXPECT_EQ(offsetof(internal::RingSlot, offset), 64U);
  EXPECT_EQ(offsetof(internal::RingSlot, fingerprint), 72U);
}

TEST(Formats, HeaderOfASegment) {
  const auto segment =
      internal::Segment::create(11, 1, {.lanes = 4, .ranks = 2, .bytes = size_t{64} << 20});
  segment->set_failure(internal::Segment::State::kAborted, ErrorCode::kDataLoss, "why");
  const auto number = [&](size_t offset, auto value) {
    std::memcpy(&value, segment->data() + offset, sizeof value);
    return static_cast<uint64_t>(value);
  };
  EXPECT_EQ(std::memcmp(segment->data(), "ttuttoi1", 8), 0);
  EXPECT_EQ(number(8, uint64_t{}), 11U);
  EXPECT_EQ(number(16, uint64_t{}), 1U);
  EXPECT_EQ(number(24, uint64_t{}), size_t{64} << 20);
  EXPECT_EQ(number(64, uint32_t{}), 1U);  // the bell, which rang
  EXPECT_EQ(number(128, uint32_t{}), 0U);
  EXPECT_EQ(number(192, uint32_t{}), 2U);
  EXPECT_EQ(number(196, uint32_t{}), 7U);
  EXPECT_STREQ(reinterpret_cast<const char*>(segment->data() + 200), "why");
}

}  // namespace tutti::docs_formats_test
