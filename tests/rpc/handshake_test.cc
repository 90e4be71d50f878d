// SPDX-License-Identifier: Apache-2.0
//
// The proof of the job secret, frame by frame: either side accepts only the right bytes.

#include "tutti/rpc/internal/handshake.h"

#include <algorithm>
#include <cstddef>

#include <gtest/gtest.h>

#include "tests/rpc/rpc_fixture.h"
#include "tests/support/expect_error.h"

namespace tutti::rpc::handshake_test {

using namespace tutti::rpc::test;  // NOLINT
using internal::ClientHandshake;
using internal::FrameBytes;
using internal::FrameKind;
using internal::FrameStatus;
using internal::kNonceBytes;
using internal::ListenerHandshake;

constexpr size_t kPayload = 16;  // The nonce or the proof begins here.

// Both sides, up to the client's proof.
struct Exchange {
  Exchange() {
    challenge = listener.on_frame(client.hello()).value();
    proof = client.on_challenge(challenge);
  }

  ClientHandshake client{"host:1", kSecret, "the test"};
  ListenerHandshake listener{kSecret, FrameStatus::kOk};
  FrameBytes challenge = {};
  FrameBytes proof = {};
};

void expect_refused(ClientHandshake& client, const FrameBytes& verdict) {
  EXPECT_TUTTI_ERROR(client.on_verdict(verdict), ErrorCode::kFailedPrecondition, "rpc: host:1",
                     "cannot prove that it knows the job secret");
}

TEST(Handshake, AClientAcceptsOnlyTheProofOfItsOwnSecret) {
  Exchange exchange;
  const FrameBytes verdict = exchange.listener.on_frame(exchange.proof).value();
  EXPECT_EQ(exchange.listener.state(), ListenerHandshake::State::kAccepted);
  EXPECT_NO_THROW(exchange.client.on_verdict(verdict));
  for (size_t i = 0; i < kNonceBytes; ++i) {
    FrameBytes changed = verdict;
    changed[kPayload + i] ^= std::byte{0x10};
    expect_refused(exchange.client, changed);
  }
  FrameBytes zeros = verdict;
  std::fill_n(zeros.begin() + kPayload, kNonceBytes, std::byte{0});
  expect_refused(exchange.client, zeros);
}

TEST(Handshake, AClientDoesNotAcceptItsOwnProof) {
  Exchange exchange;
  FrameBytes echo = exchange.proof;
  echo[9] = static_cast<std::byte>(FrameKind::kVerdict);
  expect_refused(exchange.client, echo);
}

TEST(Handshake, AProofIsInvalidOnAnotherConnection) {
  Exchange first;
  Exchange second;
  const FrameBytes verdict = first.listener.on_frame(first.proof).value();
  expect_refused(second.client, verdict);
  EXPECT_EQ(internal::unpack(second.listener.on_frame(first.proof).value())->status,
            FrameStatus::kWrongSecret);
  EXPECT_EQ(second.listener.state(), ListenerHandshake::State::kRefused);
}

TEST(Handshake, ARecordedConnectionCannotBeReplayed) {
  Exchange recorded;
  ListenerHandshake later(kSecret, FrameStatus::kOk);
  ASSERT_TRUE(later.on_frame(recorded.client.hello()));
  EXPECT_EQ(internal::unpack(later.on_frame(recorded.proof).value())->status,
            FrameStatus::kWrongSecret);
}

TEST(Handshake, AListenerRefusesAProofWithOneWrongBit) {
  for (size_t i = 0; i < kNonceBytes; ++i) {
    Exchange exchange;
    exchange.proof[kPayload + i] ^= std::byte{0x01};
    const auto verdict = internal::unpack(exchange.listener.on_frame(exchange.proof).value());
    EXPECT_EQ(verdict->status, FrameStatus::kWrongSecret);
    EXPECT_EQ(exchange.listener.state(), ListenerHandshake::State::kRefused);
  }
}

}  // namespace tutti::rpc::handshake_test
