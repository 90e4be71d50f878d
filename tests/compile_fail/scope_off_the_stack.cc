// SPDX-License-Identifier: Apache-2.0
//
// A scope on the heap, and a copy of one: both would end in another order or on another thread.

#include "tutti/strategy/strategy.h"

void wrong(const tutti::Strategy& strategy) {
  new tutti::Scope(strategy.scope());
  // EXPECT-ERROR: use of deleted function 'static void* tutti::Scope::operator new
  const tutti::Scope entered = strategy.scope();
  tutti::Scope copy = entered;
  // EXPECT-ERROR: use of deleted function 'tutti::Scope::Scope(const tutti::Scope&)'
}
