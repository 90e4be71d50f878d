// SPDX-License-Identifier: Apache-2.0
//
// A data race on purpose, which the thread sanitizer must report in every run: the writer bumps a
// WaitWord before it writes, so that the reader, woken by the bump, reads while it writes. Used
// rightly (first write, then bump) the word orders the two.

#include <cstdint>
#include <cstdio>

#include "tutti/base/deadline.h"
#include "tutti/base/thread.h"
#include "tutti/base/wait_word.h"

int main() {
  constexpr uint32_t kRounds = 2000;
  tutti::WaitWord go;
  tutti::WaitWord done;
  int value = 0;
  long sum = 0;
  {
    tutti::Thread reader("reader", [&] {
      for (uint32_t round = 0; round < kRounds; ++round) {
        go.wait(round, tutti::WaitMode::kYield, tutti::Deadline::forever());
        sum += value;
        done.bump();
      }
    });
    for (uint32_t round = 0; round < kRounds; ++round) {
      go.bump();
      value = static_cast<int>(round);
      done.wait(round, tutti::WaitMode::kYield, tutti::Deadline::forever());
    }
  }
  std::printf("planted race: the sum is %ld\n", sum);
  return 0;
}
