// SPDX-License-Identifier: Apache-2.0
//
// What a replica asks for at a meeting point. Every replica brings a request;
// the last to arrive compares them and, if they agree, completes them all.

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tutti/base/call_site.h"

namespace tutti {

/// Lives on the stack of the replica that waits; the other replicas may read it
/// until complete() has returned.
class MeetingRequest {
 public:
  /// Who completes the requests of all.
  enum class Completer : uint8_t {
    kFirst,  ///< The request of local replica 0: replicas may bring different objects.
    kLast,   ///< That of the replica that arrives last, which has it in its cache.
  };

  /// `name` is a literal such as "all_reduce".
  MeetingRequest(const char* name, CallSite site, Completer completer)
      : name_(name), site_(site), completer_(completer) {}
  virtual ~MeetingRequest() = default;

  MeetingRequest(const MeetingRequest&) = delete;
  MeetingRequest& operator=(const MeetingRequest&) = delete;

  const char* name() const { return name_; }
  CallSite site() const { return site_; }
  Completer completer() const { return completer_; }

  /// Equal for requests of one dynamic type that ask for the same.
  uint64_t fingerprint() const { return fingerprint_; }

  /// How long to wait for the others; the runner's limit if not set.
  std::optional<std::chrono::milliseconds> timeout() const { return timeout_; }

  /// "all_reduce(kSum) of float32[2, 3]"
  virtual std::string describe() const = 0;

  /// Does the work for everybody. Called once, in cross-replica context, on the
  /// thread of the last replica to arrive.
  virtual void complete(std::span<MeetingRequest* const> requests) = 0;

 protected:
  /// Adds to the fingerprint.
  void mark(uint64_t value) {
    fingerprint_ = (fingerprint_ ^ value) * 0x9e3779b97f4a7c15;
    fingerprint_ ^= fingerprint_ >> 32;
  }
  void set_timeout(std::optional<std::chrono::milliseconds> timeout) { timeout_ = timeout; }

 private:
  uint64_t fingerprint_ = 0;
  const char* name_;
  CallSite site_;
  Completer completer_;
  std::optional<std::chrono::milliseconds> timeout_;
};

}  // namespace tutti
