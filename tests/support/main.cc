// SPDX-License-Identifier: Apache-2.0
//
// main() of every test executable. Sixteen logical CPU devices exist unless the name of the
// program contains "process_tests": those tests examine a fresh process, and each of their
// cases runs in its own child process, which costs less than starting the program again. With
// a filter they run as usual. A first argument may name another program (programs.h).

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/device/logical_devices.h"

#include "tests/support/programs.h"

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::chrono::seconds kLimit(240);
#else
constexpr std::chrono::seconds kLimit(60);
#endif

bool succeeded(pid_t child, const std::string& name) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      std::printf("[  FAILED  ] %s: not done after %lld seconds\n", name.c_str(),
                  static_cast<long long>(kLimit.count()));
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (WIFSIGNALED(status)) {
    std::printf("[  FAILED  ] %s: signal %d\n", name.c_str(), WTERMSIG(status));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int run_each_case_in_a_process() {
  std::vector<std::string> names;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *tests.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      names.push_back(std::string(suite.name()) + "." + suite.GetTestInfo(j)->name());
    }
  }
  std::vector<std::string> failed;
  for (const std::string& name : names) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      testing::GTEST_FLAG(filter) = name;
      std::exit(RUN_ALL_TESTS());
    }
    if (child < 0 || !succeeded(child, name)) failed.push_back(name);
  }
  for (const std::string& name : failed) std::printf("[  FAILED  ] %s\n", name.c_str());
  std::printf("%zu of %zu cases passed, each in its own process\n", names.size() - failed.size(),
              names.size());
  return failed.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    if (const auto* program = tutti::test::Program::find(argv[1])) return program->run();
  }
  testing::InitGoogleTest(&argc, argv);
  const std::string_view program = argc > 0 ? argv[0] : "";
  if (program.find("process_tests") != std::string_view::npos) {
    if (testing::GTEST_FLAG(filter) == "*") return run_each_case_in_a_process();
  } else {
    tutti::set_logical_cpu_devices(16);
  }
  return RUN_ALL_TESTS();
}
