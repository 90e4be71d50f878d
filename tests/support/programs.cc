// SPDX-License-Identifier: Apache-2.0

#include "tests/support/programs.h"

#include <utility>

namespace tutti::test {
namespace {

// Constant-initialised, so that it exists before any static object.
constinit const Program* first_program = nullptr;

}  // namespace

Program::Program(std::string argument, Main main)
    : argument_(std::move(argument)), main_(main), next_(first_program) {
  first_program = this;
}

const Program* Program::find(const std::string& argument) {
  const Program* each = first_program;
  while (each != nullptr && each->argument_ != argument) each = each->next_;
  return each;
}

}  // namespace tutti::test
