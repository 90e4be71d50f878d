// SPDX-License-Identifier: Apache-2.0
//
// The proof of the job secret on a new connection; does no input or output itself.
// Four frames of 64 bytes: hello (client's nonce), challenge (listener's nonce), proof, verdict
// (with the listener's proof). The client proves first, so that a stranger gets nothing to attack.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tutti::rpc::internal {

inline constexpr size_t kFrameBytes = 64;
inline constexpr size_t kNonceBytes = 32;
inline constexpr std::string_view kFrameMagic = "tuttirpc";

using FrameBytes = std::array<std::byte, kFrameBytes>;

enum class FrameKind : uint8_t { kHello = 1, kChallenge = 2, kProof = 3, kVerdict = 4 };

enum class FrameStatus : uint8_t {
  kOk = 0,
  kWrongSecret = 1,
  kOtherVersion = 2,
  kTooManyConnections = 3,
  kNeedsTls = 4,
};

struct Frame {
  FrameKind kind = FrameKind::kHello;
  FrameStatus status = FrameStatus::kOk;
  uint8_t version = 1;
  std::array<std::byte, kNonceBytes> payload = {};  ///< a nonce or a proof
};

FrameBytes pack(const Frame& frame);
/// Returns nothing if the bytes are not a frame; a frame of another version is.
std::optional<Frame> unpack(std::span<const std::byte, kFrameBytes> bytes);

/// Whether these first bytes of a connection could begin a frame.
bool may_begin_frame(std::span<const std::byte> bytes);

/// The listener's side of one connection. Not thread-safe.
class ListenerHandshake {
 public:
  enum class State { kRunning, kAccepted, kRefused };

  /// If `refusal` is not kOk, it is the response to the hello.
  ListenerHandshake(std::string_view secret, FrameStatus refusal)
      : secret_(secret), refusal_(refusal) {}

  /// Takes the next frame and returns the bytes to send back, or nothing if it was not a frame.
  std::optional<FrameBytes> on_frame(std::span<const std::byte, kFrameBytes> bytes);
  State state() const { return state_; }
  /// Why it was refused, for the log.
  const std::string& reason() const { return reason_; }

 private:
  FrameBytes refuse(FrameKind kind, FrameStatus status, std::string reason);

  std::string_view secret_;
  FrameStatus refusal_;
  State state_ = State::kRunning;
  std::string reason_;
  bool greeted_ = false;
  FrameBytes hello_ = {};
  FrameBytes challenge_ = {};
};

/// The client's side of one connection. Throws kUnavailable when a retry may help, otherwise
/// kFailedPrecondition. Not thread-safe.
class ClientHandshake {
 public:
  /// `source` says where the secret comes from.
  ClientHandshake(std::string address, std::string_view secret, std::string source);

  const FrameBytes& hello() const { return hello_; }
  FrameBytes on_challenge(std::span<const std::byte, kFrameBytes> bytes);
  void on_verdict(std::span<const std::byte, kFrameBytes> bytes);

 private:
  Frame expect(FrameKind kind, std::span<const std::byte, kFrameBytes> bytes) const;

  std::string address_;
  std::string_view secret_;
  std::string source_;
  FrameBytes hello_ = {};
  FrameBytes challenge_ = {};
};

/// The proof of the secret that accompanies one call on an encrypted connection.
std::string call_token(std::string_view secret, std::string_view method);
/// Compares in constant time.
bool equal_bytes(std::string_view a, std::string_view b);

}  // namespace tutti::rpc::internal
