// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/thread_context.h"

#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "tutti/base/thread.h"

namespace tutti::internal {
namespace {

using NameScope = SlotScope<&ThreadContext::operation_name>;

TEST(ThreadContext, BeginsEmptyOnEveryThread) {
  const std::string name = "outer";
  const NameScope scope(&name);
  Thread other("other", [] {
    EXPECT_EQ(thread_context.device, nullptr);
    EXPECT_EQ(thread_context.frame, nullptr);
    EXPECT_EQ(thread_context.operation_name, nullptr);
    EXPECT_EQ(thread_context.random, nullptr);
    EXPECT_EQ(thread_context.context_site.line, 0);
  });
}

TEST(ThreadContext, ScopesNestAndRestoreTheirSlot) {
  const std::string outer = "outer";
  const std::string inner = "inner";
  {
    const NameScope first(&outer);
    EXPECT_EQ(first.previous(), nullptr);
    {
      const NameScope second(&inner);
      EXPECT_EQ(second.previous(), &outer);
      EXPECT_EQ(thread_context.operation_name, &inner);
    }
    EXPECT_EQ(thread_context.operation_name, &outer);
  }
  EXPECT_EQ(thread_context.operation_name, nullptr);
}

TEST(ThreadContext, AnExceptionRestoresTheSlot) {
  const std::string name = "name";
  EXPECT_THROW(
      {
        const NameScope scope(&name);
        throw std::runtime_error("inside");
      },
      std::runtime_error);
  EXPECT_EQ(thread_context.operation_name, nullptr);
}

}  // namespace
}  // namespace tutti::internal
