// SPDX-License-Identifier: Apache-2.0
//
// gRPC 1.51 runs callbacks on threads that it starts for the first user and stops after the last.
// Stopping them while another thread lets go of its own use may free their queue too early. And a
// thread that has had nothing to do for a second sleeps for 100 ms, whatever comes: a training step
// of more than a second would be so much longer. A user that never goes away, and that does a
// little something now and then, keeps them.

#pragma once

namespace tutti::rpc::internal {

/// Before the first server or channel. Thread-safe; does something only once.
void keep_callback_threads();

}  // namespace tutti::rpc::internal
