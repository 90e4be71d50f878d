// SPDX-License-Identifier: Apache-2.0
//
// The proof of the job secret on a fresh connection, without any input or output of its own.
// Four frames of 64 bytes: hello (client's nonce), challenge (server's nonce), proof, verdict (with
// the server's proof). The client proves first, so that a stranger gets nothing to work on.

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
/// Nothing if the bytes are no frame; a frame of another version is one.
std::optional<Frame> unpack(std::span<const std::byte, kFrameBytes> bytes);

/// Could these first bytes of a connection begin a frame?
bool may_begin_frame(std::span<const std::byte> bytes);

/// One connection, seen from the server. Not for several threads at once.
class ServerHandshake {
 public:
  enum class State { kRunning, kAccepted, kRefused };

  /// With `refusal` other than kOk it answers the hello with that.
  ServerHandshake(std::string_view secret, FrameStatus refusal)
      : secret_(secret), refusal_(refusal) {}

  /// Takes the next frame and returns the bytes to send back, none if it was no frame.
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

/// One connection, seen from the client. Errors are kFailedPrecondition, but kUnavailable when
/// trying again may help. Not for several threads at once.
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

/// The proof of the secret that goes with one call where the connection itself is encrypted.
std::string call_token(std::string_view secret, std::string_view method);
/// In constant time.
bool equal_bytes(std::string_view a, std::string_view b);

/// Bytes nobody can guess.
void fill_random(std::span<std::byte> bytes);
std::string to_hex(std::span<const std::byte> bytes);

}  // namespace tutti::rpc::internal
