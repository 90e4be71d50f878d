// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/drift_check.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/hash.h"
#include "tutti/strategy/parameter_store.h"
#include "tutti/train/optimizer/flat_kernels.h"
#include "tutti/train/optimizer/name_lists.h"

namespace tutti::internal {
namespace {

// The first numbers of a statement; kind and options of each group's rule follow.
enum Stated : size_t {
  kCheckEvery,  // before the hash, which depends on it
  kHash,
  kIsStep,
  kFactor,
  kClipNorm,
  kAccumulate,
  kNonFinite,
  kRules
};

// "sgd", by the index in UpdateRule.
std::string rule_name(double index) {
  static const std::array<UpdateRule, std::variant_size_v<UpdateRule>> kRulesByIndex = {
      SgdRule(), AdamRule(), AdamWRule(), AdagradRule(), RmspropRule()};
  for (const UpdateRule& rule : kRulesByIndex) {
    if (static_cast<double>(rule.index()) == index) return name_of(rule);
  }
  return "unknown";
}

}  // namespace

DriftCheck::DriftCheck(const ReplicatedModules& modules, const DistributedOptimizerOptions& options)
    : modules_(modules), options_(options), replicas_(modules.size()) {}

void DriftCheck::watch(const FlatParameters& flat, std::vector<size_t> unmanaged) {
  flat_ = &flat;
  unmanaged_ = std::move(unmanaged);
}

// ---- replicas that drift apart -----------------------------------------------------------------

void DriftCheck::note(int64_t code) {
  int64_t seen = different_.load(std::memory_order_relaxed);
  // The last slot is the first parameter.
  while (code > seen && !different_.compare_exchange_weak(seen, code, std::memory_order_relaxed)) {
  }
}

void DriftCheck::compare_copies(size_t replica) {
  if (!is_on() || flat_->is_shared() || replica == 0) return;
  for (size_t s = 0; s < flat_->layout().slots.size(); ++s) {
    const at::Tensor& mine = flat_->parameter(replica, s);
    const at::Tensor& first = flat_->parameter(0, s);
    if (!mine.device().is_cpu() || !mine.is_contiguous() || !first.is_contiguous()) continue;
    if (mine.nbytes() != first.nbytes()) continue;
    if (!same_bytes(mine.data_ptr(), first.data_ptr(), mine.nbytes())) {
      note(Difference{s, replica}.code());
    }
  }
}

void DriftCheck::check_copies(int64_t steps) const {
  const int64_t code = different_.load(std::memory_order_relaxed);
  if (code < 0) return;
  const auto difference = Difference::of(code);
  throw_difference(flat_->name(difference.slot), difference.replica, steps);
}

void DriftCheck::throw_difference(const std::string& name, size_t replica, int64_t steps) {
  throw Error(ErrorCode::kDataLoss,
              message("DistributedOptimizer::step: the parameter '", name, "' of replica ", replica,
                      " differs from that of replica 0 in step ", steps + 1,
                      ". Something changed it on one replica only. Change parameters outside of "
                      "run(), on all copies (for_each(), copy_from_primary()), or load a "
                      "checkpoint."));
}

void DriftCheck::hash_share(size_t replica, int64_t steps) {
  std::vector<uint64_t>& hashes = replicas_[replica].hashes[steps % 2];
  hashes.clear();
  if (!is_on() || replicas_.size() == 1 || flat_->is_shared()) return;
  const auto every = static_cast<size_t>(options_.check_every);
  for (size_t i = static_cast<size_t>(steps) % every; i < unmanaged_.size(); i += every) {
    const at::Tensor& parameter = modules_.parameter(replica, unmanaged_[i]);
    const bool readable = parameter.device().is_cpu() && parameter.is_contiguous();
    hashes.push_back(readable ? hash_bytes(parameter.data_ptr(), parameter.nbytes()) : 0);
  }
}

void DriftCheck::check_hashes(size_t replica, int64_t steps) const {
  const auto hashes = [&](size_t r) -> const std::vector<uint64_t>& {
    return replicas_[r].hashes[steps % 2];
  };
  for (size_t i = 0; i < hashes(replica).size(); ++i) {
    for (size_t r = 1; r < replicas_.size(); ++r) {
      if (hashes(r)[i] == hashes(0)[i]) continue;
      const auto every = static_cast<size_t>(options_.check_every);
      const size_t due = static_cast<size_t>(steps) % every + i * every;
      throw_difference(modules_.parameter_names()[unmanaged_[due]], r, steps);
    }
  }
}

// ---- workers that drift apart ------------------------------------------------------------------

// Hashes the first replica's part of this step, or only names the parameters in that part.
double DriftCheck::hash_of_part(int64_t steps, std::vector<std::string>* names) const {
  if (!is_on()) return 0;
  const auto every = static_cast<size_t>(options_.check_every);
  const size_t turn = static_cast<size_t>(steps) % every;
  uint64_t hash = 0;
  const auto add = [&](const at::Tensor& values, size_t begin, size_t end) {
    if (names != nullptr || end == begin || !values.device().is_cpu()) return;
    const auto* const data = static_cast<const std::byte*>(values.data_ptr());
    hash = multiplied(hash, hash_bytes(data + begin, end - begin));
  };
  for (size_t b = 0; b < flat_->layout().buffers.size(); ++b) {
    const at::Tensor& values = flat_->values(0, b);
    const auto cut = [&](size_t turns) { return values.nbytes() * turns / every; };
    add(values, cut(turn), cut(turn + 1));
    for (size_t s = 0; names != nullptr && s < flat_->layout().slots.size(); ++s) {
      const ParameterSlot& slot = flat_->layout().slots[s];
      const auto begin = static_cast<size_t>(slot.offset) * values.element_size();
      const auto end = static_cast<size_t>(slot.offset + slot.info.numel) * values.element_size();
      if (slot.buffer != b || end <= cut(turn) || begin >= cut(turn + 1)) continue;
      names->push_back(flat_->name(s));
    }
  }
  for (size_t i = turn; i < unmanaged_.size(); i += every) {
    const at::Tensor& parameter = modules_.parameter(0, unmanaged_[i]);
    if (names != nullptr) names->push_back(modules_.parameter_names()[unmanaged_[i]]);
    if (parameter.is_contiguous()) add(parameter, 0, parameter.nbytes());
  }
  return std::bit_cast<double>(hash);
}

void DriftCheck::state(const Settings& settings, std::vector<UpdateRule> rules, int64_t steps,
                       std::vector<double>& statement) {
  stated_rules_ = std::move(rules);
  statement.assign(kRules, 0);
  statement[kCheckEvery] = options_.check_every;
  statement[kHash] = hash_of_part(steps, nullptr);
  statement[kIsStep] = settings.is_step ? 1 : 0;
  statement[kFactor] = settings.gradient_factor;
  statement[kClipNorm] = options_.clip_norm.value_or(0);
  statement[kAccumulate] = options_.accumulate;
  statement[kNonFinite] = static_cast<double>(options_.non_finite);
  for (const UpdateRule& rule : stated_rules_) {
    statement.push_back(static_cast<double>(rule.index()));
    append_options(rule, statement);
  }
}

void DriftCheck::check_workers(const StepNote& note, int64_t steps) const {
  const std::optional<StepNote::Disagreement>& found = note.disagreement();
  if (!found) return;
  const auto& [workers, number, values, is_count] = *found;
  const int64_t step = steps + 1;
  if (number == kHash) {
    std::vector<std::string> names;
    hash_of_part(steps, &names);
    throw Error(
        ErrorCode::kDataLoss,
        message("DistributedOptimizer::step: parameters of ", workers[1], " differ from those of ",
                workers[0], " in step ", step, ", among them ", first_few(std::move(names)),
                ". Something changed them on one worker only. Change parameters on all "
                "workers in the same way, or load a checkpoint on all of them."));
  }
  static constexpr std::array<const char*, kRules> kNames = {
      "check_every",         "",          "whether step() or synchronize() sums the gradients",
      "the gradient factor", "clip_norm", "accumulate",
      "non_finite"};
  std::string what;
  std::array<std::string, 2> shown = {message(values[0]), message(values[1])};
  if (is_count) {
    what = "the number of options of all parameter groups";
  } else if (number < kRules) {
    what = kNames[number];
  } else {
    size_t rest = number - kRules;
    for (size_t g = 0; what.empty() && g < stated_rules_.size(); ++g) {
      const UpdateRule& rule = stated_rules_[g];
      std::vector<double> numbers = {0};  // its kind
      append_options(rule, numbers);
      if (rest == 0) {
        what = message("the kind of optimizer of group ", g);
        shown = {rule_name(values[0]), rule_name(values[1])};
      }
      if (rest == 1) what = message("the learning rate of group ", g);
      if (rest > 1 && rest < numbers.size()) {
        what = message("option ", rest, " of ", name_of(rule), " in group ", g);
      }
      rest -= std::min(rest, numbers.size());
    }
  }
  throw Error(ErrorCode::kFailedPrecondition,
              message("DistributedOptimizer::step: ", what, " is ", shown[0], " on ", workers[0],
                      ", but ", shown[1], " on ", workers[1], " in step ", step,
                      ". All workers must make the same update: what determines it, such as a "
                      "schedule, may depend only on what all of them share."));
}

}  // namespace tutti::internal
