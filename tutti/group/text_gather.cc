// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/text_gather.h"

#include <chrono>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"

namespace tutti {

TextGather::Round& TextGather::round_at(uint64_t number) {
  Round& round = open_[number];
  if (round.texts.empty()) {
    round.texts.resize(names_.size());
    round.arrived.resize(names_.size());
    round.missing = names_.size();
  }
  return round;
}

void TextGather::put(uint64_t round, size_t rank, std::string text,
                     std::function<void(const Texts&)> done) {
  std::vector<std::function<void(const Texts&)>> waiting;
  Texts texts;
  {
    const MutexLock lock(mutex_);
    Round& at = round_at(round);
    if (!at.arrived[rank]) {
      at.arrived[rank] = true;
      at.texts[rank] = std::move(text);
      --at.missing;
    }
    if (done) at.waiting.push_back(std::move(done));
    if (at.missing == 0) {
      waiting = std::move(at.waiting);
      at.waiting.clear();
      texts = at.texts;
    }
  }
  for (const auto& each : waiting) each(texts);
  news_.bump();
}

TextGather::Texts TextGather::gather(size_t rank, std::string mine, const Deadline& deadline) {
  uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    number = ++rounds_[rank];
  }
  put(number, rank, std::move(mine), nullptr);
  while (true) {
    const uint32_t seen = news_.load();
    {
      const MutexLock lock(mutex_);
      const Round& round = round_at(number);
      if (round.missing == 0) return round.texts;  // even if a rank has failed since
      if (failed_) {
        throw Error(ErrorCode::kCancelled,
                    message(who_, ": ", names_[rank],
                            " cannot be connected, because a different worker failed before it "
                            "arrived; the error of that worker says why."));
      }
      if (deadline.passed()) {
        std::vector<std::string> missing;
        for (size_t r = 0; r < names_.size(); ++r) {
          if (!round.arrived[r]) missing.push_back(names_[r]);
        }
        throw Error(ErrorCode::kDeadlineExceeded,
                    message(who_, ": did not hear from ", joined(missing),
                            " while the workers connected to each other. ", advice_));
      }
    }
    // A rank may have missed the bump, so it checks every second.
    news_.park(seen, earlier(deadline, Deadline::after(std::chrono::seconds(1))));
  }
}

void TextGather::set_names(std::vector<std::string> names) {
  const MutexLock lock(mutex_);
  names_ = std::move(names);
}

void TextGather::fail() {
  {
    const MutexLock lock(mutex_);
    failed_ = true;
  }
  news_.bump();
}

}  // namespace tutti
