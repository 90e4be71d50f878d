// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/input_board.h"

#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/group/link_wait.h"

namespace tutti::internal {
namespace {

Operation board_operation() {
  Operation operation;
  operation.kind = OperationKind::kExchange;
  operation.name = "replicas with data";
  return operation;
}

}  // namespace

InputBoard::InputBoard(WorkerGroup& group)
    : group_(group),
      lane_(group_.lane(LaneKind::kInput)),
      fingerprint_(make_fingerprint(board_operation(), group_.options().epoch)) {}

void InputBoard::send(const Note& note, int rank) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(&note, 1));
  lane_.post(rank, fingerprint_, 0, piece.size(), Link::Pieces(&piece, 1));
}

std::vector<InputBoard::Note>& InputBoard::notes_of(const Key& key) {
  std::vector<Note>& all = notes_[key];
  all.resize(static_cast<size_t>(group_.size()), Note{key.first, key.second, -1, 0, 0});
  return all;
}

void InputBoard::forget(int64_t pass) {
  const MutexLock lock(mutex_);
  forgotten_.insert(pass);
  notes_.erase(notes_.lower_bound({pass, 0}), notes_.lower_bound({pass + 1, 0}));
}

void InputBoard::read_all() {
  for (int r = 0; r < group_.size(); ++r) {
    if (r == group_.rank()) continue;
    while (const Incoming* incoming = lane_.peek(r, fingerprint_)) {
      Note note{};
      if (incoming->bytes.size() == sizeof note) {
        std::memcpy(&note, incoming->bytes.data(), sizeof note);
        if (forgotten_.count(note.pass) == 0) {
          notes_of({note.pass, note.step})[static_cast<size_t>(r)] = note;
        }
      }
      lane_.pop(r);
    }
  }
}

// Returns a rank that it could not send to, because its ring is full, and that still needs the
// message; kNoRank if there is none.
int InputBoard::send_to_others(const Note& note, std::vector<bool>& sent) {
  int unsent = kNoRank;
  for (int r = 0; r < group_.size(); ++r) {
    if (r == group_.rank() || sent[static_cast<size_t>(r)]) continue;
    if (lane_.link(r).room() > 0) {
      send(note, r);
      sent[static_cast<size_t>(r)] = true;
    } else {
      unsent = r;
    }
  }
  return unsent;
}

int InputBoard::first_silent(const Key& key) {
  read_all();
  const std::vector<Note>& all = notes_of(key);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].replicas < 0) return static_cast<int>(r);
  }
  return kNoRank;
}

InputTotals InputBoard::take_totals(const Key& key) {
  InputTotals totals;
  for (const Note& each : notes_of(key)) {
    totals.replicas_with_data += static_cast<int>(each.replicas);
    totals.rows += each.rows;
    totals.stop = totals.stop || each.stop != 0;
  }
  notes_.erase(key);
  return totals;
}

InputTotals InputBoard::add_up(const InputProgress& progress) {
  const Deadline deadline = lane_.deadline();
  const Key key{progress.pass, progress.step};
  const Note mine{progress.pass, progress.step, progress.local_replicas_with_data,
                  progress.local_rows, progress.stop ? 1 : 0};
  {
    const MutexLock lock(mutex_);
    notes_of(key)[static_cast<size_t>(group_.rank())] = mine;
  }
  InputTotals totals;
  std::vector<bool> sent(static_cast<size_t>(group_.size()));
  const auto advance = [&] {
    const MutexLock lock(mutex_);
    const int unsent = send_to_others(mine, sent);
    const int silent = first_silent(key);
    if (silent != kNoRank) return silent;
    if (unsent == kNoRank) totals = take_totals(key);
    return unsent;
  };
  const auto check = [&](int missing, const std::optional<PeerFailure>& failure) {
    if (progress.cancelled != nullptr && progress.cancelled->load()) {
      throw Error(ErrorCode::kCancelled, "the iterator of a distributed dataset was dropped.");
    }
    group_.check();
    // The program may not need the step any more, so this alone does not end the group.
    if (!failure && !deadline.passed()) return;
    throw Error(ErrorCode::kUnavailable,
                message("the input of ", group_.name(group_.rank()), ": ", group_.name(missing),
                        " did not say whether it has data for step ", progress.step, " of pass ",
                        progress.pass, failure ? ": " + failure->text : " before the deadline.",
                        " Every worker must iterate over the same distributed datasets, equally "
                        "far; if a step takes long, raise communication_options.timeout."));
  };
  // This thread is one more than the replicas, so it must not take a core from them.
  wait_for_ranks(lane_, WaitMode::kYield, Deadline::forever(), advance, check);
  return totals;
}

}  // namespace tutti::internal
