// SPDX-License-Identifier: Apache-2.0
//
// What a replica asks for at a meeting point. Every replica submits a request; the requests are
// compared and, if they agree, completed by one replica or by all of them together.

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>

#include "tutti/base/call_site.h"
#include "tutti/base/hash.h"

namespace tutti {

class MeetingRequest;

/// The part of a request that all replicas see: one cache line. It is written only when it changes,
/// so a call that repeats the previous one moves no cache line between cores. A plain value.
struct alignas(64) MeetingNote {
  MeetingRequest* request = nullptr;
  const std::type_info* type = nullptr;
  uint64_t fingerprint = 0;
  std::array<const void*, 4> words = {};  ///< Defined by the request.

  bool operator==(const MeetingNote&) const = default;
};

/// Lives on the stack of the replica that waits; the other replicas may read it until complete()
/// has returned. The runner orders these accesses; nothing else is thread-safe.
class MeetingRequest {
 public:
  /// Which replica calls complete(), once all have arrived and agree.
  enum class Completer : uint8_t {
    kFirst,  ///< The last to arrive, on the request of local replica 0.
    kLast,   ///< The last to arrive, on its own request.
    kAll,    ///< Every replica, on its own request, at the same time.
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

  /// Equal for requests of the same dynamic type that ask for the same operation.
  uint64_t fingerprint() const { return fingerprint_; }

  /// How long to wait for the others; the runner's limit if not set.
  std::optional<std::chrono::milliseconds> timeout() const { return timeout_; }

  /// What the others will see of this request.
  MeetingNote note() { return {this, &typeid(*this), fingerprint_, words_}; }

  /// Called by the runner to pass the notes of all local replicas.
  void attach(const MeetingNote* notes) { notes_ = notes; }

  /// The name of the variable that the request concerns, if any; for errors.
  virtual std::string_view subject() const { return {}; }

  /// "all_reduce(kSum) of float32[2, 3]"
  virtual std::string describe() const = 0;

  /// Does the work for all replicas or, with kAll, this replica's share. Called in cross-replica
  /// context, with the requests of all local replicas.
  virtual void complete(std::span<MeetingRequest* const> requests) = 0;

 protected:
  /// Adds to the fingerprint.
  void mark(uint64_t value) { fingerprint_ = combined(fingerprint_, value); }
  void set_word(size_t i, const void* word) { words_[i] = word; }
  const MeetingNote& note_of(size_t local_replica) const { return notes_[local_replica]; }
  void set_completer(Completer completer) { completer_ = completer; }
  void set_timeout(std::optional<std::chrono::milliseconds> timeout) { timeout_ = timeout; }

 private:
  uint64_t fingerprint_ = kHashSeed;
  const char* name_;
  CallSite site_;
  Completer completer_;
  std::optional<std::chrono::milliseconds> timeout_;
  std::array<const void*, 4> words_ = {};
  const MeetingNote* notes_ = nullptr;
};

}  // namespace tutti
