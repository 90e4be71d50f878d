// SPDX-License-Identifier: Apache-2.0
//
// A strategy made of nothing.

#include "tutti/strategy/strategy.h"

void wrong() {
  const tutti::Strategy strategy(nullptr);
  // EXPECT-ERROR: use of deleted function 'tutti::Strategy::Strategy(std::nullptr_t)'
  const tutti::Strategy empty;
  // EXPECT-ERROR: no matching function for call to 'tutti::Strategy::Strategy()'
}
