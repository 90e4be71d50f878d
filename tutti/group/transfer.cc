// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/transfer.h"

#include <optional>
#include <string>

#include "tutti/base/error.h"
#include "tutti/group/link_wait.h"
#include "tutti/group/worker_group.h"

namespace tutti {
namespace {

// A peer that still reads takes what is under way well within this time; others are not waited for.
constexpr std::chrono::milliseconds kPatience{500};
constexpr uint32_t kAdvancesBetweenLooks = 64;

}  // namespace

Transfer::Transfer(Lane& lane, const Operation& operation, Deadline deadline)
    : lane_(lane), fingerprint_(lane.begin(operation)), deadline_(deadline) {}

Transfer::~Transfer() {
  if (done_) return;
  lane_.end();
  const std::string why = message(lane_.group().name(lane_.rank()), " dropped ",
                                  fingerprint_.describe_with_step(), " before it was done.");
  lane_.group().abort(ErrorCode::kCancelled, why);
  const Deadline patience = Deadline::after(kPatience);
  for (int r = 0; r < lane_.size(); ++r) {
    if (r != lane_.rank()) lane_.link(r).abort(ErrorCode::kCancelled, why, patience);
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

int Transfer::poll() {
  int missing = kDone;
  try {
    missing = try_advance();
  } catch (...) {
    give_up(std::current_exception());
    throw;
  }
  if (missing == kDone) {
    done_ = true;
    lane_.end();
  }
  return missing;
}

void Transfer::check(int missing, bool is_gone) {
  lane_.check_alive(is_gone ? missing : internal::kNoRank, fingerprint_);
  if (deadline_.passed()) lane_.throw_timeout(missing, fingerprint_);
}

// Asking whether peers are alive takes a system call, which is too slow for every hook of backward.
bool Transfer::advance() {
  if (done_) return true;
  auto poll_once = [this] { return poll(); };
  int missing = poll_once();
  if (missing == kDone) return true;
  if (++advances_ % kAdvancesBetweenLooks != 0) return false;
  auto check_rank = [this](int rank, const auto& failure) { check(rank, failure.has_value()); };
  return internal::check_missing(lane_, missing, poll_once, check_rank);
}

bool Transfer::wait_until(const Deadline& until) {
  if (done_) return true;
  return internal::wait_for_ranks(
      lane_, lane_.group().options().wait_mode, until, [this] { return poll(); },
      [this](int missing, const auto& failure) {
        if (!waits_since_) waits_since_ = Deadline::Clock::now();
        check(missing, failure.has_value());
        lane_.warn_if_long(missing, fingerprint_, *waits_since_);
      });
}

}  // namespace tutti
