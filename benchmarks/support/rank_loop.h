// SPDX-License-Identifier: Apache-2.0
//
// The main loop of a rank of a multi-process benchmark: it serves the program that started it
// (process_group.h) until that is gone. It does not use LibTorch, so that peers without it can
// include it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace bench {

/// The socket to the program that started this rank. For one thread only.
class RankSocket {
 public:
  /// Connects and sends the rank. Ends the process if it cannot connect.
  RankSocket(const std::string& path, int rank);
  ~RankSocket();
  RankSocket(const RankSocket&) = delete;
  RankSocket& operator=(const RankSocket&) = delete;

  void send(const std::string& text);
  /// Returns the next message; ends the process if the other end is gone.
  std::string receive();

 private:
  int descriptor_;
};

/// The work that a rank can do.
class RankTask {
 public:
  virtual ~RankTask() = default;

  /// Prepares a kind of work of a size; the result is sent as the answer.
  virtual std::string open(const std::string& kind, int64_t count) = 0;
  /// Does the work once.
  virtual void run(const std::string& kind) = 0;
};

/// Serves commands until told to stop:
///   open <kind> <count>       answers with what the task returns
///   run <kind> <iterations>   answers with "<seconds> <CPU seconds>"
void serve(RankSocket& socket, RankTask& task);

/// One implementation of sums over the ranks. `data` holds `count` numbers and gets the sums.
class RankWork {
 public:
  virtual ~RankWork() = default;

  /// Returns memory for a case; that of the same kind for the previous case is no longer needed.
  virtual float* allocate(const std::string& kind, int64_t count) = 0;
  virtual void all_reduce(float* data, int64_t count) = 0;
};

/// The same for sums: `open` allocates memory and checks a sum; it answers "ok" or what is wrong.
void serve(RankSocket& socket, int rank, int size, RankWork& work);

/// Pins this process, with all threads it will start, to the k-th core it may use.
void pin_process_to_core(int k);

}  // namespace bench
