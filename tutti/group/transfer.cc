// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/transfer.h"

#include <sched.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/group/worker_group.h"

namespace tutti {
namespace {

using Clock = Deadline::Clock;

constexpr int kYields = 50;
constexpr int kPauses = 64;  // between two checks of the clock
// How long a sleep lasts before the other ranks are checked: they may have given up, or have made
// room for a message. Sleeps grow longer.
constexpr std::chrono::microseconds kFirstSlice{250};
constexpr std::chrono::microseconds kLastSlice{5000};
// A peer that still reads takes what is under way well within this time; others are not waited for.
constexpr std::chrono::milliseconds kPatience{500};
constexpr int kNobody = -1;
constexpr uint32_t kAdvancesBetweenLooks = 64;

class ArmedLink {
 public:
  explicit ArmedLink(Link& link) : link_(link), armed_(link.arm()) {}
  ~ArmedLink() { link_.disarm(); }
  ArmedLink(const ArmedLink&) = delete;
  ArmedLink& operator=(const ArmedLink&) = delete;

  void park(const Deadline& until) const { link_.park(armed_, until); }

 private:
  Link& link_;
  const uint32_t armed_;
};

}  // namespace

Transfer::Transfer(Lane& lane, const Operation& operation, Deadline deadline)
    : lane_(lane), fingerprint_(lane.begin(operation)), deadline_(deadline) {}

Transfer::~Transfer() {
  if (done_) return;
  lane_.end();
  lane_.group().abort(ErrorCode::kCancelled,
                      message(lane_.group().name(lane_.rank()), " dropped ",
                              fingerprint_.describe_with_step(), " before it was done."));
  const Deadline patience = Deadline::after(kPatience);
  for (int r = 0; r < lane_.size(); ++r) {
    if (r != lane_.rank()) lane_.link(r).discard(patience);
  }
}

// Tells the other ranks why this one failed.
void Transfer::give_up(const std::exception_ptr& why) {
  WorkerGroup& group = lane_.group();
  const auto abort = [&](ErrorCode code, const char* text) {
    group.abort(code, message(group.name(lane_.rank()), " failed in ",
                              fingerprint_.describe_with_step(), ": ", text));
  };
  try {
    std::rethrow_exception(why);
  } catch (const Error& error) {
    abort(error.code(), error.what());
  } catch (const std::exception& error) {
    abort(ErrorCode::kCancelled, error.what());
  } catch (...) {
    abort(ErrorCode::kCancelled, "an unknown error.");
  }
}

bool Transfer::poll(int* missing) {
  try {
    *missing = try_advance();
  } catch (...) {
    give_up(std::current_exception());
    throw;
  }
  if (*missing != kDone) return false;
  done_ = true;
  lane_.end();
  return true;
}

// A rank may have done its part and left since it was last checked, so a rank that is gone is
// polled once more: everything that it did is visible now.
bool Transfer::poll_or_throw(int* missing) {
  const int before = *missing;
  bool gone = lane_.link(before).failure().has_value();
  if (gone) {
    if (poll(missing)) return true;
    gone = *missing == before;
  }
  lane_.check_alive(gone ? before : kNobody, fingerprint_);
  if (deadline_.passed()) lane_.throw_timeout(*missing, fingerprint_);
  return false;
}

// Asking whether peers are alive takes a system call, which is too slow for every hook of backward.
bool Transfer::advance() {
  int missing = 0;
  if (done_ || poll(&missing)) return true;
  return ++advances_ % kAdvancesBetweenLooks == 0 && poll_or_throw(&missing);
}

bool Transfer::wait_until(const Deadline& until) {
  if (done_) return true;
  const bool spin = lane_.group().options().wait_mode == WaitMode::kSpin;
  int missing = 0;
  Spin spinning;
  for (int round = 0;; ++round) {
    if (poll(&missing)) return true;
    if (!spin && round < kYields) {
      sched_yield();
    } else if (spin && (round % kPauses != kPauses - 1 || spinning.goes_on())) {
      if (round >= kPauses) pause_briefly();
    } else {
      break;
    }
  }
  if (!waits_since_) waits_since_ = Clock::now();
  for (auto slice = kFirstSlice;; slice = std::min(2 * slice, kLastSlice)) {
    if (poll_or_throw(&missing)) return true;
    if (until.passed()) return false;
    lane_.warn_if_long(missing, fingerprint_, *waits_since_);
    bool done = false;
    {
      const ArmedLink link(lane_.link(missing));
      int now_missing = 0;
      done = poll(&now_missing);
      if (!done && now_missing == missing) {
        link.park(Deadline::at(std::min({deadline_.when(), until.when(), Clock::now() + slice})));
      }
    }
    if (done || poll(&missing)) return true;
  }
}

}  // namespace tutti
