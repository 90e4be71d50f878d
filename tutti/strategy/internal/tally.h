// SPDX-License-Identifier: Apache-2.0
//
// The bits of the atomic words with which the replicas of a runner track each other, and the
// error of replicas that are released.

#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/mutex.h"

namespace tutti::internal {
namespace tally {

// Parts of tally_.
inline constexpr uint64_t kArrived = 1;
inline constexpr uint64_t kDone = uint64_t{1} << 16;
inline constexpr uint64_t kFinished = uint64_t{1} << 32;
inline constexpr uint64_t kCountMask = 0xffff;
inline constexpr uint64_t kPoisoned = uint64_t{1} << 62;
inline constexpr uint64_t kPoisonPending = uint64_t{1} << 63;

// Parts of signal_.
inline constexpr uint32_t kOpen = 1;
inline constexpr uint32_t kPoisonHint = 2;  // flipped: look at the tally
inline constexpr uint32_t kMeeting = 4;

inline uint32_t meeting_of(uint32_t signal) { return signal / kMeeting; }

inline uint64_t arrived(uint64_t tally) { return tally & kCountMask; }
inline uint64_t done(uint64_t tally) { return (tally / kDone) & kCountMask; }
inline uint64_t finished(uint64_t tally) { return (tally / kFinished) & kCountMask; }

}  // namespace tally

// Thrown on replicas that are released because another replica failed. Immutable.
class CancelledByPeer final : public Error {
 public:
  explicit CancelledByPeer(const std::string& text) : Error(ErrorCode::kCancelled, text) {}
};

/// The text of the exception, on one line.
std::string text_of(const std::exception_ptr& error);

/// Guards errors of LibTorch that are changed or read: replicas may throw the same object,
/// for example the error of a shared future.
Mutex& shared_errors();

inline double seconds(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

}  // namespace tutti::internal
