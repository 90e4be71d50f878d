// SPDX-License-Identifier: Apache-2.0
//
// Looks up functions of shared libraries at run time, because a program may run without them.

#pragma once

#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace tutti {

/// A library of the system, or the program itself. A handle: a library that was loaded stays loaded
/// until the program ends, since functions of it may be called at any time. Immutable.
class SharedLibrary {
 public:
  /// Loads the first of the libraries that can be loaded, by name or path. If none can, returns
  /// nothing, and sets `reasons` to a list of them with the system's error messages.
  static std::optional<SharedLibrary> open_first(std::span<const std::string> paths,
                                                 std::string* reasons);

  /// The program with all libraries that it is linked to.
  static SharedLibrary of_program() { return {nullptr, "the program"}; }

  /// The path or name it was loaded by.
  const std::string& path() const { return path_; }

  /// Returns a function, or null if the library does not have it:
  /// `library.find<int(int)>("f")`.
  template <class Function>
  requires std::is_function_v<Function> Function* find(const char* name) const {
    return reinterpret_cast<Function*>(address_of(name));
  }

 private:
  SharedLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  void* address_of(const char* name) const;

  void* handle_;  // null: of_program()
  std::string path_;
};

}  // namespace tutti
