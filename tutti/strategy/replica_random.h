// SPDX-License-Identifier: Apache-2.0
//
// Random numbers of replicas. LibTorch has one CPU generator for all threads, so
// its numbers would depend on which replica draws first. Inside run() each
// replica draws from its own generator, even in unmodified torch::randn and
// torch::nn::Dropout.
//
// The generators are seeded from a key that run() draws from LibTorch's default
// generator and from the global replica id: torch::manual_seed() decides every
// number, and two runs after the same seed are equal.

#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>

#include "tutti/device/thread_context.h"

namespace tutti {

/// The CPU generator that the calling thread draws from: LibTorch's default generator, unless a
/// Scope is active.
at::Generator current_cpu_generator();

/// Draws the key of one run from LibTorch's default CPU generator, or from the calling thread's own
/// generator.
uint64_t draw_random_key();

/// The generator of one replica. Not thread-safe: one thread at a time uses it.
class ReplicaRandom {
 public:
  explicit ReplicaRandom(int replica_id) : replica_id_(replica_id) {}

  /// Begins a run; the generator is seeded when the first number is drawn.
  void begin(uint64_t key);

  const at::Generator& generator();

  /// Makes this the source of the calling thread's random numbers on the CPU. An object belongs to
  /// the thread that makes it.
  class Scope {
   public:
    explicit Scope(ReplicaRandom& random);
    ~Scope();

    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const internal::SlotScope<&internal::ThreadContext::random> slot_;
    bool was_included_;
  };

 private:
  int replica_id_;
  uint64_t key_ = 0;
  bool seeded_ = false;
  at::Generator generator_;
};

}  // namespace tutti
