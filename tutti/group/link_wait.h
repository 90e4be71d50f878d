// SPDX-License-Identifier: Apache-2.0
//
// How a thread waits for other ranks: it polls briefly, then sleeps on the link to a rank that it
// waits for. Transfers and the input board wait like this.

#pragma once

#include <chrono>
#include <optional>

#include "tutti/base/backoff.h"
#include "tutti/base/deadline.h"
#include "tutti/base/wait_word.h"
#include "tutti/group/lane.h"

namespace tutti::internal {

inline constexpr int kNoRank = -1;

// How long a sleep lasts before the other ranks are checked: they may have given up, or have made
// room for a message. Sleeps grow longer.
inline constexpr std::chrono::microseconds kFirstSlice{250};
inline constexpr std::chrono::microseconds kLastSlice{5000};

/// Checks whether the rank that `advance` waits for is gone, and calls `check(missing, failure)`,
/// which throws if the wait cannot succeed. A rank may have done its part and left since it was
/// last polled, so `advance` is called once more if it is gone: everything that it did is visible
/// now. Returns true when nothing is missing any more.
template <class Advance, class Check>
bool check_missing(Lane& lane, int& missing, Advance& advance, Check& check) {
  std::optional<PeerFailure> failure = lane.link(missing).failure(Link::Look::kDetected);
  if (failure) {
    const int gone = missing;
    missing = advance();
    if (missing == kNoRank) return true;
    if (missing != gone) failure.reset();
  }
  check(missing, failure);
  return false;
}

/// Calls `advance`, which returns the rank that it waits for, until that is kNoRank (true), or
/// until `until` (false). Calls `check` as above before each sleep.
template <class Advance, class Check>
bool wait_for_ranks(Lane& lane, WaitMode mode, const Deadline& until, Advance advance,
                    Check check) {
  int missing = kNoRank;
  const auto done = [&] { return (missing = advance()) == kNoRank; };
  if (poll_until(mode, done)) return true;
  for (Backoff slices(kFirstSlice, kLastSlice);;) {
    if (check_missing(lane, missing, advance, check)) return true;
    if (until.passed()) return false;
    const int awaited = missing;
    lane.link(awaited).wait(slices.next(until), [&] { return done() || missing != awaited; });
    if (missing == kNoRank || done()) return true;
  }
}

}  // namespace tutti::internal
