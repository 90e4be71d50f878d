// SPDX-License-Identifier: Apache-2.0
//
// The call site of a public function, taken as a defaulted last parameter so
// that an error can point at the user's line. (Clang 14, which the analysis
// build uses, lacks std::source_location.)

#pragma once

#include <ostream>

namespace tutti {

/// A line of the caller's source. A plain value that points to string literals.
struct CallSite {
  const char* file = "";
  int line = 0;

  static CallSite current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// Prints "train.cc:41": the file name without its folders.
inline std::ostream& operator<<(std::ostream& out, const CallSite& site) {
  const char* name = site.file;
  for (const char* p = site.file; *p != '\0'; ++p) {
    if (*p == '/') name = p + 1;
  }
  return out << name << ':' << site.line;
}

}  // namespace tutti
