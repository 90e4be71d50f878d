// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as messages of a group over the network: the first byte says how long each is, the
// second where it is cut into pieces, as the network may do. What is a message keeps its bytes on
// the way through a mailbox, and whatever operation it names can be described.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/group/grpc/remote_peer.h"
#include "tutti/rpc/message.h"

#include "tests/fuzz/expect_only_errors.h"

namespace {

using tutti::internal::Mailbox;
using tutti::internal::WireHead;

void take(Mailbox& box, std::span<const std::byte> bytes, size_t cut) {
  const auto owner = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  const std::span<const std::byte> all(*owner);
  cut = std::min(cut, all.size());
  const tutti::rpc::Message message({all.first(cut), all.subspan(cut)}, owner);
  std::array<std::byte, sizeof(WireHead)> first;
  tutti::test::expect_only_errors([&] {
    message.copy_to(0, first);
    const std::optional<WireHead> head = tutti::internal::parse_wire_head(first);
    if (!head) return;
    if (head->fingerprint.describe().empty()) std::abort();
    if (head->kind != WireHead::Kind::kData) return;
    box.add(*head, message);
    const Mailbox::Received* const received = box.front();
    if (received == nullptr || received->size != all.size() - sizeof(WireHead)) std::abort();
    if (std::memcmp(received->bytes.get(), all.data() + sizeof(WireHead), received->size) != 0) {
      std::abort();
    }
    box.pop();
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t length = data[0] + size_t{1};
  const size_t cut = data[1];
  std::span<const std::byte> rest = std::as_bytes(std::span(data + 2, size - 2));
  Mailbox box;
  while (!rest.empty()) {
    const size_t taken = std::min(length, rest.size());
    take(box, rest.first(taken), cut);
    rest = rest.subspan(taken);
  }
  return 0;
}
