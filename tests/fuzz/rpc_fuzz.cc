// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as what a peer sends: frames of the handshake to both sides, and control messages.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/group/rendezvous/control_message.h"
#include "tutti/group/rendezvous/meeting_place.h"
#include "tutti/rpc/internal/handshake.h"

#include "tests/fuzz/expect_only_errors.h"

namespace {

using namespace tutti::internal;       // NOLINT
using namespace tutti::rpc::internal;  // NOLINT

constexpr std::string_view kSecret = "0123456789abcdef0123456789abcdef";

FrameBytes frame_at(std::string_view bytes, size_t offset) {
  FrameBytes frame = {};
  if (offset < bytes.size()) {
    const std::string_view part = bytes.substr(offset, frame.size());
    std::transform(part.begin(), part.end(), frame.begin(),
                   [](char letter) { return static_cast<std::byte>(letter); });
  }
  return frame;
}

/// Nobody gets in without the secret, whatever the bytes.
void feed_listener(std::string_view bytes) {
  for (const FrameStatus refusal : {FrameStatus::kOk, FrameStatus::kNeedsTls}) {
    ListenerHandshake handshake(kSecret, refusal);
    for (size_t offset = 0; offset < 3 * kFrameBytes; offset += kFrameBytes) {
      if (handshake.state() == ListenerHandshake::State::kRunning) {
        handshake.on_frame(frame_at(bytes, offset));
      }
    }
    if (handshake.state() == ListenerHandshake::State::kAccepted) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  feed_listener(bytes);
  tutti::test::expect_only_errors([&] {
    ClientHandshake handshake("peer:1", kSecret, "a test");
    handshake.on_challenge(frame_at(bytes, 0));
    handshake.on_verdict(frame_at(bytes, kFrameBytes));
    __builtin_trap();
  });
  tutti::test::expect_only_errors([&] { parse_member(bytes); });
  tutti::test::expect_only_errors([&] {
    std::string waiting_for;
    parse_answer(bytes, waiting_for);
  });
  tutti::printable(bytes);
  return 0;
}
