// SPDX-License-Identifier: Apache-2.0
//
// gRPC 1.51 runs callbacks on threads that it starts for the first user and stops after the last.
// Stopping them while another thread releases its own use may free their queue too early. And a
// thread that has been idle for a second sleeps for 100 ms, whatever arrives: a training step
// of more than a second would take that much longer. A permanent user that makes a small call now
// and then keeps them alive and awake.

#pragma once

namespace tutti::rpc::internal {

/// Call it before the first listener or channel. Thread-safe; later calls do nothing.
void keep_callback_threads();

}  // namespace tutti::rpc::internal
