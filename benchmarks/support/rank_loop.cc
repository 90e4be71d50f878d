// SPDX-License-Identifier: Apache-2.0

#include "benchmarks/support/rank_loop.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include "benchmarks/support/framing.h"

namespace bench {
namespace {

double wall_seconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// 1 + 2 + ... of every pattern; small numbers are exact in float32.
bool sums_are_right(float* data, int64_t count, int rank, int size, RankWork& work) {
  for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>((rank + 1) * (i % 97));
  work.all_reduce(data, count);
  const int factor = size * (size + 1) / 2;
  bool right = true;
  for (int64_t i = 0; i < count; ++i) {
    right = right && data[i] == static_cast<float>(factor * (i % 97));
  }
  std::fill(data, data + count, 0.0F);  // sums stay finite
  return right;
}

class SumTask final : public RankTask {
 public:
  SumTask(int rank, int size, RankWork& work) : rank_(rank), size_(size), work_(work) {}

  std::string open(const std::string& kind, int64_t count) override {
    count_ = count;
    float* const data = memory_[kind] = work_.allocate(kind, count);
    return sums_are_right(data, count, rank_, size_, work_) ? "ok" : "a wrong sum";
  }

  void run(const std::string& kind) override { work_.all_reduce(memory_.at(kind), count_); }

 private:
  const int rank_;
  const int size_;
  RankWork& work_;
  std::map<std::string, float*> memory_;  // by kind
  int64_t count_ = 0;
};

}  // namespace

RankSocket::RankSocket(const std::string& path, int rank)
    : descriptor_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    std::fprintf(stderr, "rank %d: cannot connect to %s\n", rank, path.c_str());
    _exit(1);
  }
  send(std::to_string(rank));
}

RankSocket::~RankSocket() { close(descriptor_); }

void RankSocket::send(const std::string& text) {
  if (!send_frame(descriptor_, text)) _exit(1);
}

std::string RankSocket::receive() {
  std::string text;
  if (!receive_frame(descriptor_, &text)) _exit(1);
  return text;
}

void serve(RankSocket& socket, RankTask& task) {
  socket.send("ready");
  while (true) {
    std::istringstream line(socket.receive());
    std::string word;
    std::string kind;
    int64_t number = 0;
    line >> word >> kind >> number;
    if (word == "open") {
      socket.send(task.open(kind, number));
    } else if (word == "run") {
      const double cpu = cpu_seconds();
      // Warms up all ranks, which have slept in receive(), before the clock starts.
      for (int64_t i = 0; i < 1 + number / 8; ++i) task.run(kind);
      const double begin = wall_seconds();
      for (int64_t i = 0; i < number; ++i) task.run(kind);
      const double seconds = wall_seconds() - begin;
      std::ostringstream answer;
      answer << seconds << " " << cpu_seconds() - cpu;
      socket.send(answer.str());
    } else {
      return;
    }
  }
}

void serve(RankSocket& socket, int rank, int size, RankWork& work) {
  SumTask task(rank, size, work);
  serve(socket, task);
}

void pin_process_to_core(int k) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  int wanted = k % std::max(1, CPU_COUNT(&allowed));
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || wanted-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace bench
