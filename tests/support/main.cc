// SPDX-License-Identifier: Apache-2.0
//
// main() of every test executable. Sixteen logical CPU devices exist unless the name of the
// program contains "process_tests": those tests ask what a fresh process has.

#include <string_view>

#include <gtest/gtest.h>

#include "tutti/device/logical_devices.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string_view program = argc > 0 ? argv[0] : "";
  if (program.find("process_tests") == std::string_view::npos) tutti::set_logical_cpu_devices(16);
  return RUN_ALL_TESTS();
}
