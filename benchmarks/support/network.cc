// SPDX-License-Identifier: Apache-2.0

#include "benchmarks/support/network.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "benchmarks/support/harness.h"

namespace bench {
namespace {

constexpr char kOwn[] = "/proc/thread-self/ns/net";
// A bucket of 1 ms and a queue of 20 ms, like those of a small switch.
constexpr char kShape[] = "tbf rate 1gbit burst 128kb latency 20ms";

// Makes a namespace, which this thread then leaves again. Returns -1 if that is not allowed.
int make_namespace() {
  const int home = open(kOwn, O_RDONLY | O_CLOEXEC);
  if (home < 0 || unshare(CLONE_NEWNET) != 0) {
    if (home >= 0) close(home);
    return -1;
  }
  const int made = open(kOwn, O_RDONLY | O_CLOEXEC);
  Harness::check(setns(home, CLONE_NEWNET) == 0, "cannot return from a network namespace");
  close(home);
  return made;
}

std::string path_of(int descriptor) {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor);
}

bool succeeds(ProcessGroup::Command command) {
  const tutti::cli::ProcessGuard guard;
  try {
    tutti::cli::Process process({.command = std::move(command)}, guard);
    const auto status = process.wait(tutti::Deadline::after(std::chrono::seconds(60)));
    return status.has_value() && status->success();
  } catch (const tutti::Error&) {
    return false;
  }
}

}  // namespace

std::unique_ptr<TwoHosts> TwoHosts::make() {
  if (geteuid() != 0) {
    std::printf("no network namespaces: they need root\n");
    return nullptr;
  }
  std::unique_ptr<TwoHosts> hosts(new TwoHosts());
  for (int& each : hosts->descriptors_) {
    each = make_namespace();
    if (each < 0) {
      std::printf("no network namespaces: %s\n", std::strerror(errno));
      return nullptr;
    }
  }
  bool made = hosts->run(
      0, "ip link add eth0 type veth peer name eth0 netns " + path_of(hosts->descriptors_[1]));
  for (int h = 0; h < 2 && made; ++h) {
    made = hosts->run(h, "ip addr add " + address(h) + "/24 dev eth0") &&
           hosts->run(h, "ip link set lo up") && hosts->run(h, "ip link set eth0 up") &&
           hosts->run(h, std::string("tc qdisc replace dev eth0 root ") + kShape);
  }
  if (!made) {
    std::printf("no network namespaces: `ip`, `tc` (package iproute2) or `nsenter` failed\n");
    return nullptr;
  }
  hosts->shaped_ = true;
  return hosts;
}

TwoHosts::~TwoHosts() {
  for (const int each : descriptors_) {
    if (each >= 0) close(each);
  }
}

std::string TwoHosts::address(int host) { return "10.123.8." + std::to_string(host + 1); }

ProcessGroup::Command TwoHosts::on(int host, ProcessGroup::Command command) const {
  ProcessGroup::Command whole = {"nsenter",
                                 "--net=" + path_of(descriptors_[static_cast<size_t>(host)])};
  whole.insert(whole.end(), command.begin(), command.end());
  return whole;
}

void TwoHosts::set_shaped(bool shaped) {
  if (shaped == shaped_) return;
  shaped_ = shaped;
  const std::string words = shaped ? std::string("tc qdisc replace dev eth0 root ") + kShape
                                   : std::string("tc qdisc del dev eth0 root");
  for (int h = 0; h < 2; ++h) Harness::check(run(h, words), "`" + words + "` failed");
}

bool TwoHosts::run(int host, const std::string& words) const {
  ProcessGroup::Command command;
  std::istringstream rest(words);
  for (std::string word; rest >> word;) command.push_back(word);
  return succeeds(on(host, std::move(command)));
}

}  // namespace bench
