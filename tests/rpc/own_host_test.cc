// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/own_host.h"

#include <chrono>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tutti::rpc::own_host_test {

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

TEST(OwnHost, IsThatOfTheInterfaceTowardsThePeer) {
  EXPECT_EQ(own_host_towards("127.0.0.1:1", soon()), "127.0.0.1");
  EXPECT_EQ(own_host_towards("127.0.0.9:1", soon()), "127.0.0.1");
}

TEST(OwnHost, HasNoBrackets) {
  const std::string host = own_host_towards("[::1]:1", soon());
  EXPECT_TRUE(host.empty() || host == "::1") << host << ": empty without IPv6";
}

TEST(OwnHost, IsUnknownIfTheNameOfThePeerIs) {
  EXPECT_EQ(own_host_towards("no-such-host.invalid:1", soon()), "");
}

TEST(OwnHost, NeedsAnAddressWithAPort) {
  EXPECT_TUTTI_ERROR(own_host_towards("127.0.0.1", soon()), ErrorCode::kInvalidArgument,
                     "127.0.0.1");
}

}  // namespace tutti::rpc::own_host_test
