// SPDX-License-Identifier: Apache-2.0
//
// gRPC 1.51 runs callbacks on threads that it starts for the first user and stops after the last.
// Stopping them while another thread lets go of its own use may free their queue too early. One
// user that never goes away keeps them.

#pragma once

namespace tutti::rpc::internal {

/// Before the first server or channel. Thread-safe; does something only once.
void keep_callback_threads();

}  // namespace tutti::rpc::internal
