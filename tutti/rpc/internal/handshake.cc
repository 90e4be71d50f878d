// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/handshake.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "tutti/base/error.h"
#include "tutti/rpc/internal/random.h"

namespace tutti::rpc::internal {
namespace {

constexpr uint8_t kVersion = 1;
// Each direction has its own label, so that a proof cannot be reflected to its author.
constexpr std::string_view kClientLabel = "tutti rpc 1: client";
constexpr std::string_view kListenerLabel = "tutti rpc 1: server";
constexpr std::string_view kCallLabel = "tutti rpc 1: call ";

using Proof = std::array<std::byte, kNonceBytes>;

Proof hmac(std::string_view secret, std::string_view text) {
  Proof proof = {};
  unsigned size = 0;
  const auto* const result = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                                  reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                  reinterpret_cast<unsigned char*>(proof.data()), &size);
  TUTTI_CHECK(result != nullptr && size == proof.size());
  return proof;
}

Proof prove(std::string_view secret, std::string_view label, const FrameBytes& hello,
            const FrameBytes& challenge) {
  std::string text(label);
  text.append(reinterpret_cast<const char*>(hello.data()), hello.size());
  text.append(reinterpret_cast<const char*>(challenge.data()), challenge.size());
  return hmac(secret, text);
}

bool same_proof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

FrameBytes frame_with_nonce(FrameKind kind) {
  Frame frame{.kind = kind};
  fill_random(frame.payload);
  return pack(frame);
}

void copy_frame(std::span<const std::byte, kFrameBytes> from, FrameBytes& to) {
  std::copy(from.begin(), from.end(), to.begin());
}

}  // namespace

// Layout: magic (8), version, kind, status, zeros up to 16, payload (32), zeros up to 64.
FrameBytes pack(const Frame& frame) {
  FrameBytes bytes = {};
  std::memcpy(bytes.data(), kFrameMagic.data(), kFrameMagic.size());
  bytes[8] = std::byte{frame.version};
  bytes[9] = static_cast<std::byte>(frame.kind);
  bytes[10] = static_cast<std::byte>(frame.status);
  std::copy(frame.payload.begin(), frame.payload.end(), bytes.begin() + 16);
  return bytes;
}

std::optional<Frame> unpack(std::span<const std::byte, kFrameBytes> bytes) {
  if (std::memcmp(bytes.data(), kFrameMagic.data(), kFrameMagic.size()) != 0) return {};
  Frame frame;
  frame.version = std::to_integer<uint8_t>(bytes[8]);
  const auto kind = std::to_integer<uint8_t>(bytes[9]);
  const auto status = std::to_integer<uint8_t>(bytes[10]);
  if (kind < 1 || kind > 4 || status > 4) return {};
  frame.kind = static_cast<FrameKind>(kind);
  frame.status = static_cast<FrameStatus>(status);
  std::copy_n(bytes.begin() + 16, kNonceBytes, frame.payload.begin());
  return frame;
}

bool may_begin_frame(std::span<const std::byte> bytes) {
  const size_t count = std::min(bytes.size(), kFrameMagic.size());
  return std::memcmp(bytes.data(), kFrameMagic.data(), count) == 0;
}

FrameBytes ListenerHandshake::refuse(FrameKind kind, FrameStatus status, std::string reason) {
  state_ = State::kRefused;
  reason_ = std::move(reason);
  return pack({.kind = kind, .status = status});
}

std::optional<FrameBytes> ListenerHandshake::on_frame(
    std::span<const std::byte, kFrameBytes> bytes) {
  TUTTI_CHECK(state_ == State::kRunning);
  const std::optional<Frame> frame = unpack(bytes);
  const FrameKind wanted = greeted_ ? FrameKind::kProof : FrameKind::kHello;
  if (!frame || frame->kind != wanted) {
    state_ = State::kRefused;
    reason_ = "it does not speak this protocol";
    return {};
  }
  if (!greeted_) {
    greeted_ = true;
    if (frame->version != kVersion) {
      return refuse(FrameKind::kChallenge, FrameStatus::kOtherVersion,
                    message("it speaks version ", int{frame->version}, " of the protocol"));
    }
    if (refusal_ == FrameStatus::kNeedsTls) {
      return refuse(FrameKind::kChallenge, refusal_,
                    "it does not use TLS, which this listener requires");
    }
    if (refusal_ != FrameStatus::kOk) {
      return refuse(FrameKind::kChallenge, refusal_, "there are too many connections");
    }
    copy_frame(bytes, hello_);
    challenge_ = frame_with_nonce(FrameKind::kChallenge);
    return challenge_;
  }
  if (!same_proof(frame->payload, prove(secret_, kClientLabel, hello_, challenge_))) {
    return refuse(FrameKind::kVerdict, FrameStatus::kWrongSecret, "it has a different job secret");
  }
  state_ = State::kAccepted;
  return pack(
      {.kind = FrameKind::kVerdict, .payload = prove(secret_, kListenerLabel, hello_, challenge_)});
}

ClientHandshake::ClientHandshake(std::string address, std::string_view secret, std::string source)
    : address_(std::move(address)),
      secret_(secret),
      source_(std::move(source)),
      hello_(frame_with_nonce(FrameKind::kHello)) {}

Frame ClientHandshake::expect(FrameKind kind, std::span<const std::byte, kFrameBytes> bytes) const {
  const auto fail = [&](ErrorCode code, const std::string& what) {
    throw Error(code, message("rpc: ", address_, " ", what));
  };
  const std::optional<Frame> frame = unpack(bytes);
  if (!frame || frame->kind != kind) {
    fail(ErrorCode::kFailedPrecondition,
         "does not speak this protocol. Does another program listen there?");
  }
  switch (frame->status) {
    case FrameStatus::kOk:
      break;
    case FrameStatus::kWrongSecret:
      fail(ErrorCode::kFailedPrecondition,
           message("refuses this process: the job secrets differ. This process has the one from ",
                   source_, "; give all processes of the job the same one."));
      break;
    case FrameStatus::kOtherVersion:
      fail(ErrorCode::kFailedPrecondition,
           "speaks another version of the protocol. Use the same version of tutti everywhere.");
      break;
    case FrameStatus::kTooManyConnections:
      fail(ErrorCode::kUnavailable, "has too many connections.");
      break;
    case FrameStatus::kNeedsTls:
      fail(ErrorCode::kFailedPrecondition,
           "requires TLS. Give this process certificates too (SecurityOptions::ca_file, "
           "certificate_file, key_file).");
      break;
  }
  if (frame->version != kVersion) {
    fail(ErrorCode::kFailedPrecondition,
         message("speaks version ", int{frame->version}, " of the protocol, this process version ",
                 int{kVersion}, ". Use the same version of tutti everywhere."));
  }
  return *frame;
}

FrameBytes ClientHandshake::on_challenge(std::span<const std::byte, kFrameBytes> bytes) {
  expect(FrameKind::kChallenge, bytes);
  copy_frame(bytes, challenge_);
  return pack(
      {.kind = FrameKind::kProof, .payload = prove(secret_, kClientLabel, hello_, challenge_)});
}

void ClientHandshake::on_verdict(std::span<const std::byte, kFrameBytes> bytes) {
  const Frame frame = expect(FrameKind::kVerdict, bytes);
  if (!same_proof(frame.payload, prove(secret_, kListenerLabel, hello_, challenge_))) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("rpc: ", address_,
                        " cannot prove that it knows the job secret. Does another program listen "
                        "there?"));
  }
}

std::string call_token(std::string_view secret, std::string_view method) {
  return to_hex(hmac(secret, std::string(kCallLabel) + std::string(method)));
}

bool equal_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tutti::rpc::internal
