// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/clock.h"

#include <thread>

namespace tutti {
namespace {

class SteadyClock final : public Clock {
 public:
  Time now() const override { return Deadline::Clock::now(); }
  void sleep_until(Time when) override { std::this_thread::sleep_until(when); }
  bool park(const WaitWord& word, uint32_t seen, const Deadline& deadline) override {
    return word.park(seen, deadline);
  }
};

}  // namespace

Clock& Clock::steady() {
  static auto* const clock = new SteadyClock;  // threads may use it while the program ends
  return *clock;
}

}  // namespace tutti
