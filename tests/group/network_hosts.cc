// SPDX-License-Identifier: Apache-2.0

#include "tests/group/network_hosts.h"

#include <unistd.h>

#include <gtest/gtest.h>

#include "tutti/base/error.h"

#include "cli/process.h"

namespace tutti::group_tests {
namespace {

std::string hub() { return message("tutti-test-", getpid(), "-hub"); }

void run(const std::string& command) {
  const cli::ProcessGuard guard;
  cli::Process process({.command = {"sh", "-c", command}}, guard);
  EXPECT_EQ(process.wait(Deadline::after(std::chrono::seconds(60))), cli::ExitStatus()) << command;
}

}  // namespace

bool NetworkHosts::possible() { return geteuid() == 0; }

std::string NetworkHosts::name(int host) { return message("tutti-test-", getpid(), "-", host); }

std::string NetworkHosts::address(int host) { return message("10.213.0.", host + 1); }

NetworkHosts::NetworkHosts() {
  run(message("ip netns add ", hub(), " && ip -n ", hub(), " link add switch type bridge && ip -n ",
              hub(), " link set switch up"));
  for (int host = 0; host < kCount; ++host) {
    const std::string in_host = message("ip -n ", name(host), " ");
    const std::string in_hub = message("ip -n ", hub(), " ");
    run(message("ip netns add ", name(host), " && ", in_hub, "link add port", host,
                " type veth peer name eth0 netns ", name(host), " && ", in_hub, "link set port",
                host, " master switch up && ", in_host, "addr add ", address(host),
                "/24 dev eth0 && ", in_host, "link set eth0 up && ", in_host, "link set lo up"));
  }
}

NetworkHosts::~NetworkHosts() {
  for (int host = 0; host < kCount; ++host) run(message("ip netns del ", name(host)));
  run("ip netns del " + hub());
}

}  // namespace tutti::group_tests
