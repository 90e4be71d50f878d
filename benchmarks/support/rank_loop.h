// SPDX-License-Identifier: Apache-2.0
//
// What a rank of a benchmark of many processes does: it obeys the program that started it
// (process_group.h) until that is gone. Needs no LibTorch, so that peers without it can use it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace bench {

/// The socket to the program that started this rank. For one thread.
class RankSocket {
 public:
  /// Connects and says who this is. Ends the process if nobody listens.
  RankSocket(const std::string& path, int rank);
  ~RankSocket();
  RankSocket(const RankSocket&) = delete;
  RankSocket& operator=(const RankSocket&) = delete;

  void send(const std::string& text);
  /// The next message; ends the process if there is none any more.
  std::string receive();

 private:
  int descriptor_;
};

/// What a rank can do.
class RankTask {
 public:
  virtual ~RankTask() = default;

  /// Makes a kind of work ready, of a size; the answer goes to whoever asked.
  virtual std::string open(const std::string& kind, int64_t count) = 0;
  /// Does it once.
  virtual void run(const std::string& kind) = 0;
};

/// Obeys until told to stop:
///   open <kind> <count>       answers what the task answers
///   run <kind> <iterations>   answers "<seconds> <CPU seconds>"
void serve(RankSocket& socket, RankTask& task);

/// One way to sum over the ranks. `data` holds `count` numbers and gets the sums.
class RankWork {
 public:
  virtual ~RankWork() = default;

  /// Memory for a case; that of the same kind for the case before is not needed any more.
  virtual float* allocate(const std::string& kind, int64_t count) = 0;
  virtual void all_reduce(float* data, int64_t count) = 0;
};

/// The same for sums: `open` takes memory and checks a sum; it answers "ok" or what is wrong.
void serve(RankSocket& socket, int rank, int size, RankWork& work);

/// Pins this process, with all threads it will start, to the k-th core it may use.
void pin_process_to_core(int k);

}  // namespace bench
