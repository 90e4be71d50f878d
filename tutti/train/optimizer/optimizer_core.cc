// SPDX-License-Identifier: Apache-2.0
//
// A step has up to three meetings of all replicas:
//
//   reduce   the rest of the sums is made; if nothing needs a decision, each chunk is updated by
//            the thread that has just summed it, and the step is over
//   settle   one replica examines the whole: parameters that LibTorch moved, gradients that are new
//            or missing, the norm, numbers that are not finite
//   update   all replicas update their share
//
// Whether there are one or three is the same on all replicas: it depends on options and on flags
// that are set before a replica arrives at the first meeting.

#include "tutti/train/optimizer/optimizer_core.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <c10/core/AutogradState.h>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/train/internal/weights.h"
#include "tutti/train/loss.h"
#include "tutti/train/optimizer/drift_check.h"
#include "tutti/train/optimizer/name_lists.h"
#include "tutti/train/optimizer/optimizer_arguments.h"
#include "tutti/train/optimizer/optimizer_memory.h"
#include "tutti/train/optimizer/work_request.h"

namespace tutti {

// ---- memory ------------------------------------------------------------------------------------

OptimizerCore::OptimizerCore(std::shared_ptr<ReplicatedModules> modules,
                             const std::vector<std::vector<size_t>>& groups,
                             const DistributedOptimizerOptions& options, Update update)
    : modules_(std::move(modules)),
      options_(options),
      update_(std::move(update)),
      extended_(modules_->strategy().extended()),
      note_(extended_.workers(), modules_->size(), extended_.communication_options().timeout),
      drift_(std::make_unique<internal::DriftCheck>(*modules_, options_)),
      fused_(update_.rules != nullptr && options.fused),
      replicas_(modules_->size()) {
  internal::check_options(options);
  modules_->check_outside_of_replicas("DistributedOptimizer",
                                      "Make it outside of run(), once for all replicas.");
  group_of_ = internal::groups_of_parameters(*modules_, groups);
  std::vector<size_t> mine;
  for (size_t i = 0; i < group_of_.size(); ++i) {
    if (group_of_[i]) mine.push_back(i);
  }
  modules_->claim(mine, this);
  const uint64_t failed_runs = extended_.failed_runs();
  {
    const MutexLock lock(mutex_);
    failed_runs_ = failed_runs;
  }
  conversions_ = modules_->conversions();
  for (Replica& replica : replicas_) {
    replica.failed_runs = failed_runs;
    replica.conversions = conversions_;
  }
  try {
    lay_out();
  } catch (...) {
    modules_->release(this);
    throw;
  }
}

OptimizerCore::~OptimizerCore() { modules_->release(this); }

std::vector<UpdateRule> OptimizerCore::current_rules() const {
  std::vector<UpdateRule> rules;
  if (update_.rules) update_.rules(rules);
  return rules;
}

void OptimizerCore::lay_out() {
  const internal::OptimizerMemoryRequest request = {
      .modules = modules_,
      .group_of = group_of_,
      .options = options_,
      .before_gradient = [this](size_t replica) { forget_failed_run(replica); }};
  memory_ = std::make_unique<internal::OptimizerMemory>(
      internal::lay_out(request, current_rules(), fused_));
  fused_ = memory_->state != nullptr;
  drift_->watch(*memory_->flat, memory_->unmanaged);
  live_.assign(memory_->flat->layout().slots.size(), 0);
  note_.set_num_flags(live_.size());
  square_sums_.assign(memory_->reducer->chunks().size(), 0);
  finite_.assign(memory_->reducer->chunks().size(), 1);
  for (size_t r = 0; r < replicas_.size(); ++r) update_synchronizing(r);
}

// Called when the dtypes of the parameters have changed: all memory is laid out again. The sums of
// this step, and the state, are taken over.
void OptimizerCore::lay_out_again() {
  std::vector<uint8_t> live = live_;
  const std::unique_ptr<internal::OptimizerMemory> old = std::move(memory_);
  old->buckets.reset();
  lay_out();
  internal::take_over(*memory_, *old, live);
  live_ = std::move(live);
  for (Replica& replica : replicas_) replica.is_measured = false;
}

size_t OptimizerCore::parameter_bytes() const { return memory_->parameter_bytes(); }
size_t OptimizerCore::state_bytes() const { return memory_->state_bytes(); }

std::vector<at::Tensor> OptimizerCore::states_of(const std::string& parameter) const {
  const size_t number = modules_->parameter_index(parameter);
  if (!fused_) return {};
  std::vector<at::Tensor> states = memory_->state->states_of(number, replicas_[0].rules);
  return states.empty() ? memory_->sparse->states_of(number) : states;
}

// ---- the caller --------------------------------------------------------------------------------

size_t OptimizerCore::enter(const char* function, CallSite site) {
  return modules_->current_replica(function, site);
}

void OptimizerCore::meet(const char* function, bool all, size_t replica, CallSite site,
                         FunctionRef<void()> work, const char* argument, double value,
                         std::span<const UpdateRule> rules) {
  internal::WorkRequest request(
      function, site, all ? MeetingRequest::Completer::kAll : MeetingRequest::Completer::kFirst,
      this, {.name = argument, .value = value, .rules = rules}, work);
  extended_.meet(extended_.replica_context(static_cast<int>(replica)), request);
}

// What replicas had begun when a run failed is void. The first to detect it cleans up what they
// share; each cleans up its own before it gives anything to the reducer.
void OptimizerCore::forget_failed_run(size_t replica) {
  const uint64_t failed_runs = extended_.failed_runs();
  Replica& me = replicas_[replica];
  if (me.failed_runs == failed_runs) return;
  {
    const MutexLock lock(mutex_);
    if (failed_runs_ != failed_runs) {
      failed_runs_ = failed_runs;
      drop_sums();
      news_.store(true, std::memory_order_relaxed);
      drift_->forget();
    }
  }
  me.failed_runs = failed_runs;
  me.is_synchronized = false;
  me.no_sync = 0;
  end_window(replica);
  memory_->buckets->forget(replica);
  memory_->sparse->clear(replica);
}

// No replica may be giving gradients to the reducer.
void OptimizerCore::drop_sums() {
  if (memory_->reducer->reset()) note_.exchange_dropped();
}

// The modules were converted to another dtype between runs, which all replicas detect.
void OptimizerCore::attach_converted(const char* function, size_t replica, CallSite site) {
  Replica& me = replicas_[replica];
  if (me.conversions == modules_->conversions()) return;
  const auto work = [this] {
    conversions_ = modules_->conversions();
    if (memory_->flat->has_layout_dtypes() && memory_->sparse->empty()) return;
    lay_out_again();
    news_.store(true, std::memory_order_relaxed);
  };
  meet(function, false, replica, site, work, "conversions",
       static_cast<double>(modules_->conversions()));
  me.conversions = conversions_;
}

void OptimizerCore::update_synchronizing(size_t replica) {
  const Replica& me = replicas_[replica];
  memory_->buckets->set_synchronizing(replica,
                                      me.no_sync == 0 && me.micro_steps + 1 >= options_.accumulate);
}

void OptimizerCore::end_window(size_t replica) {
  Replica& me = replicas_[replica];
  me.micro_steps = 0;
  me.reference_weight = 0;
  me.total_weight = 0;
  me.used_weight = 0;
  update_synchronizing(replica);
}

std::shared_ptr<void> OptimizerCore::no_sync(CallSite site) {
  const size_t replica = enter("DistributedOptimizer::no_sync", site);
  forget_failed_run(replica);
  ++replicas_[replica].no_sync;
  update_synchronizing(replica);
  const uint64_t failed_runs = replicas_[replica].failed_runs;
  return {nullptr, [core = shared_from_this(), replica, failed_runs](void*) {
            Replica& me = core->replicas_[replica];
            if (me.failed_runs != failed_runs || me.no_sync == 0) return;
            --me.no_sync;
            core->update_synchronizing(replica);
          }};
}

// ---- steps -------------------------------------------------------------------------------------

// Dropping gradients drops the weights of their losses, but not that of a later loss.
void OptimizerCore::note_backward(size_t replica) {
  Replica& me = replicas_[replica];
  if (memory_->buckets->take_backward_ran(replica)) me.used_weight = me.total_weight;
}

void OptimizerCore::zero_grad(CallSite site) {
  const char* const function = "DistributedOptimizer::zero_grad";
  const size_t replica = enter(function, site);
  forget_failed_run(replica);
  attach_converted(function, replica, site);
  Replica& me = replicas_[replica];
  if (me.micro_steps > 0) return;
  note_backward(replica);
  if (memory_->buckets->has_begun(replica)) {
    // Others may be summing gradients of this replica.
    const auto work = [this] { drop_sums(); };
    meet(function, false, replica, site, work);
  }
  me.is_synchronized = false;
  me.total_weight -= me.used_weight;
  me.used_weight = 0;
  memory_->buckets->clear(replica);
  memory_->sparse->clear(replica);
}

bool OptimizerCore::needs_norm(const StepControl& control) const {
  return options_.clip_norm || options_.non_finite != NonFinite::kIgnore || control.skip_non_finite;
}

// Each chunk can be updated as soon as it is summed.
bool OptimizerCore::is_simple(const StepControl& control, const Replica& me) const {
  return fused_ && memory_->sparse->empty() && !needs_norm(control) &&
         control.gradient_factor == 1 && !me.is_synchronized;
}

void OptimizerCore::measure(const GradientChunk& chunk) {
  const internal::SquareSum sum = memory_->square_sum(chunk);
  square_sums_[chunk.index] = sum.sum;
  finite_[chunk.index] = sum.finite ? 1 : 0;
}

// Called in a meeting of all replicas. Returns whether the chunks were updated.
bool OptimizerCore::reduce(size_t replica, bool with_update, bool with_norm) {
  Replica& me = replicas_[replica];
  me.is_measured = with_norm;
  if (!me.is_synchronized) memory_->sparse->sum(replica);
  ParameterStore* const store = memory_->state.get();
  const ParameterStore::Step update{
      .rules = me.rules, .updates = me.updates, .check = drift_->is_on()};
  const auto reduced = [&](const GradientChunk& chunk) {
    if (with_update) {
      drift_->note(store->update(chunk, update));
    } else if (with_norm) {
      measure(chunk);
    }
  };
  if (me.is_synchronized) {
    for (size_t i = replica; with_norm && i < memory_->reducer->chunks().size();
         i += replicas_.size()) {
      measure(memory_->reducer->chunks()[i]);
    }
    return false;
  }
  if (replica == 0) {
    note_.attach([this](std::vector<std::byte>& bytes) { modules_->pack_buffers(bytes); });
  }
  bool handed_out = false;
  note_.exchange(replica, [&] { handed_out = memory_->reducer->finish(replica, reduced); });
  modules_->synchronize_buffers(note_.attachments(), replica, replicas_.size());
  me.is_measured = with_norm && handed_out;
  if (!handed_out || !with_update) return false;
  store->commit(replica);
  return true;
}

void OptimizerCore::collect_sparse(const char* function, size_t replica, CallSite site) {
  memory_->sparse->collect(replica);
  if (memory_->sparse->empty() || extended_.has_all_replicas()) return;
  const auto gather = [this] { memory_->sparse->gather(extended_); };
  meet(function, false, replica, site, gather);
}

// What determines the update, for the other workers.
void OptimizerCore::state(bool is_step, double gradient_factor) {
  note_.state([&](std::vector<double>& statement) {
    drift_->state({is_step, gradient_factor}, current_rules(), replicas_[0].steps, statement);
  });
}

// Says which gradients this replica has: other workers must know which parameters are used at all.
// All replicas have done so when the meeting begins in which the note is sent.
void OptimizerCore::set_flags(size_t replica) {
  const std::span<uint8_t> flags = note_.flags();
  for (size_t s = 0; s < flags.size(); ++s) {
    if (!memory_->buckets->was_filled(replica, s)) continue;
    std::atomic_ref<uint8_t>(flags[s]).store(1, std::memory_order_relaxed);
  }
}

// After the meeting: whether the flags of all workers say something else than `live_`.
bool OptimizerCore::flags_bring_news() const {
  const std::span<const uint8_t> flags = note_.flags_of_all();
  for (size_t s = 0; s < flags.size(); ++s) {
    if ((flags[s] != 0) != (live_[s] != 0)) return true;
  }
  return false;
}

void OptimizerCore::synchronize(CallSite site) {
  const char* const function = "DistributedOptimizer::synchronize";
  const size_t replica = enter(function, site);
  forget_failed_run(replica);
  attach_converted(function, replica, site);
  Replica& me = replicas_[replica];
  if (me.is_synchronized) return;
  if (!memory_->buckets->complete(replica, live_)) news_.store(true, std::memory_order_relaxed);
  collect_sparse(function, replica, site);
  set_flags(replica);
  bool has_news = false;  // read in the meeting: the first to leave may add more
  const auto work = [&] {
    has_news = news_.load(std::memory_order_relaxed);
    if (replica == 0) state(/*is_step=*/false, 1);
    reduce(replica, false, false);
  };
  meet(function, true, replica, site, work);
  drift_->check_workers(note_, me.steps);
  if (has_news || flags_bring_news()) {
    const auto note = [this] {
      news_.store(true, std::memory_order_relaxed);
      note_news();
    };
    meet(function, false, replica, site, note);
  }
  memory_->buckets->publish(replica, live_, 1);
  memory_->sparse->publish(replica);
  me.is_synchronized = true;
}

StepResult OptimizerCore::step(const StepControl& control, CallSite site) {
  const char* const function = "DistributedOptimizer::step";
  const size_t replica = enter(function, site);
  forget_failed_run(replica);
  Replica& me = replicas_[replica];
  if (me.micro_steps + 1 < options_.accumulate) {
    ++me.micro_steps;
    update_synchronizing(replica);
    return {};
  }
  attach_converted(function, replica, site);
  StepControl mine = control;
  if (me.total_weight > 0) mine.gradient_factor *= me.reference_weight / me.total_weight;
  const bool simple = is_simple(mine, me);
  if (update_.rules) update_.rules(me.rules);
  bool news = false;
  if (me.is_synchronized) {
    news = !memory_->buckets->take_changes(replica, live_);
  } else {
    news = !memory_->buckets->complete(replica, live_);
    collect_sparse(function, replica, site);
    set_flags(replica);
  }
  if (news || !memory_->flat->is_attached(replica) ||
      (fused_ && memory_->state->lacks_state(me.rules))) {
    news_.store(true, std::memory_order_relaxed);
  }
  drift_->hash_share(replica, me.steps);

  // Must be equal on all replicas; otherwise the meeting is an error.
  const char* const argument =
      me.is_synchronized ? "after synchronize(), gradient factor" : "gradient factor";
  bool updated = false;
  const auto first = [&] {
    const bool with_update = simple && !news_.load(std::memory_order_relaxed);
    if (!fused_) drift_->compare_copies(replica);
    if (replica == 0 && !me.is_synchronized) state(/*is_step=*/true, mine.gradient_factor);
    const bool with_norm = needs_norm(mine);
    updated = reduce(replica, with_update, with_norm);
  };
  meet(function, true, replica, site, first, argument, mine.gradient_factor, me.rules);
  if (!me.is_synchronized) drift_->check_workers(note_, me.steps);
  drift_->check_hashes(replica, me.steps);
  drift_->check_copies(me.steps);
  StepResult result{.updated = true};
  if (!updated) {
    const auto look = [&] { settle(mine); };
    meet(function, false, replica, site, look);
    result = {.updated = decision_.apply, .non_finite = decision_.overflow, .norm = decision_.norm};
    if (!decision_.apply && options_.non_finite == NonFinite::kStop && !control.skip_non_finite) {
      end_window(replica);  // the program may catch the error and continue with zero_grad()
      throw Error(ErrorCode::kDataLoss,
                  message(function, ": the sum of the gradients of ", decision_.non_finite,
                          " is not finite in step ", me.steps + 1,
                          ". No parameter has changed. Look at the batch and the learning rate, or "
                          "leave such steps out with non_finite = NonFinite::kSkip."));
    }
    if (decision_.apply) {
      const auto share = [&] { update_share(replica); };
      meet(function, true, replica, site, share);
      drift_->check_copies(me.steps);
    }
  }
  if (fused_ || !result.updated) {
    memory_->buckets->publish(replica, live_, result.updated && !updated ? decision_.factor : 1);
  }
  memory_->buckets->release_places(replica);
  memory_->sparse->publish(replica);
  me.is_synchronized = false;
  ++me.steps;
  if (result.updated) {
    ++me.updates;
    if (fused_) memory_->state->pull(replica);
    for (size_t s = 0; s < live_.size(); ++s) {
      memory_->flat->parameter(replica, s).unsafeGetTensorImpl()->bump_version();
    }
  }
  end_window(replica);
  return result;
}

// ---- what one replica does for all -------------------------------------------------------------

void OptimizerCore::note_news() {
  std::vector<std::string> missing;
  const std::span<const uint8_t> flags = note_.flags_of_all();
  for (size_t s = 0; s < live_.size(); ++s) {
    bool everywhere = true;
    bool anywhere = false;
    for (size_t r = 0; r < replicas_.size(); ++r) {
      const bool filled = memory_->buckets->was_filled(r, s);
      everywhere = everywhere && filled;
      anywhere = anywhere || filled;
    }
    live_[s] = anywhere || (!flags.empty() && flags[s] != 0) ? 1 : 0;
    const std::string& name = memory_->flat->name(s);
    if (everywhere || std::count(named_missing_.begin(), named_missing_.end(), name) > 0) continue;
    missing.push_back(name);
    named_missing_.push_back(name);
  }
  if (missing.empty()) return;
  std::reverse(missing.begin(), missing.end());  // into the order of registration
  log(LogLevel::kWarning,
      message("DistributedOptimizer: in step ", replicas_[0].steps + 1, " backward gave ",
              missing.size() == 1 ? "this parameter" : "these parameters",
              " no gradient on some or all replicas: ", internal::quoted_list(missing),
              ". Where another replica has one, that counts as zero; a parameter without any is "
              "not updated in such a step. Each is reported once."));
}

// After synchronize() the program may have dropped gradients, or set its own. It must do so on all
// replicas of all workers.
void OptimizerCore::note_changed_gradients() {
  for (size_t s = 0; s < live_.size(); ++s) live_[s] = memory_->buckets->has_gradient(0, s) ? 1 : 0;
}

void OptimizerCore::settle(const StepControl& control) {
  if (!replicas_[0].is_synchronized && flags_bring_news()) {
    news_.store(true, std::memory_order_relaxed);
  }
  if (news_.load(std::memory_order_relaxed)) {
    if (replicas_[0].is_synchronized) {
      note_changed_gradients();
    } else {
      note_news();
    }
    bool attached = true;
    for (size_t r = 0; r < replicas_.size(); ++r)
      attached = attached && memory_->flat->is_attached(r);
    if (!attached) {
      if (memory_->flat->has_layout_dtypes()) {
        memory_->flat->attach();
      } else {
        lay_out_again();
      }
      memory_->buckets->add_hooks();
    }
    memory_->sparse->alias();
    if (fused_) {
      memory_->state->prepare(replicas_[0].rules, live_, memory_->reducer->chunks(),
                              replicas_[0].updates);
      memory_->sparse->prepare(replicas_[0].rules);
    }
    news_.store(false, std::memory_order_relaxed);
  }
  decide(control);
  next_chunk_.store(0, std::memory_order_relaxed);
  if (!decision_.apply) return;
  memory_->sparse->count_update();
  if (decision_.factor != 1) memory_->sparse->scale(decision_.factor);
  if (fused_) return;
  publish_scaled(0);
  memory_->sparse->publish(0);
  update_.step();
}

void OptimizerCore::publish_scaled(size_t replica) {
  memory_->buckets->publish(replica, live_, decision_.factor);
  if (decision_.factor == 1) return;
  const c10::AutoGradMode no_grad(false);
  for (size_t s = 0; s < memory_->flat->layout().slots.size(); ++s) {
    at::Tensor& gradient = memory_->flat->parameter(replica, s).mutable_grad();
    if (gradient.defined() && memory_->flat->is_attachable(s)) gradient.mul_(decision_.factor);
  }
}

void OptimizerCore::decide(const StepControl& control) {
  decision_ = {};
  decision_.factor = control.gradient_factor;
  if (!needs_norm(control)) return;
  if (!replicas_[0].is_measured) {
    for (const GradientChunk& chunk : memory_->reducer->chunks()) measure(chunk);
  }
  double sum = 0;
  bool finite = true;
  for (size_t c = 0; c < square_sums_.size(); ++c) {
    sum += square_sums_[c];
    finite = finite && finite_[c] != 0;
  }
  sum += memory_->sparse->square_sum();
  finite = finite && memory_->sparse->is_finite();
  decision_.norm = std::sqrt(sum) * std::abs(control.gradient_factor);
  const bool check = control.skip_non_finite || options_.non_finite != NonFinite::kIgnore;
  if (check && !finite) {
    decision_.apply = false;
    decision_.overflow = true;
    decision_.non_finite = internal::first_few(memory_->non_finite());
    return;
  }
  if (options_.clip_norm && decision_.norm > *options_.clip_norm) {
    decision_.factor *= *options_.clip_norm / decision_.norm;
  }
}

void OptimizerCore::update_share(size_t replica) {
  const Replica& me = replicas_[replica];
  if (!fused_) {
    const c10::AutoGradMode no_grad(false);
    memory_->sparse->copy_tables(replica);
    if (replica > 0) publish_scaled(replica);
    if (memory_->flat->is_shared() || replica == 0) return;
    for (size_t b = 0; b < memory_->flat->layout().buffers.size(); ++b) {
      const at::Tensor values = memory_->flat->values(replica, b);
      values.copy_(memory_->flat->values(0, b));
    }
    return;
  }
  memory_->sparse->update(replica, me.rules, 1);  // already scaled
  ParameterStore& store = *memory_->state;
  const ParameterStore::Step update{.rules = me.rules,
                                    .factor = decision_.factor,
                                    .updates = me.updates,
                                    .check = drift_->is_on()};
  const std::vector<GradientChunk>& chunks = memory_->reducer->chunks();
  while (true) {
    const size_t next = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (next >= chunks.size()) break;
    drift_->note(store.update(chunks[next], update));
  }
  store.commit(replica);
}

// ---- losses ------------------------------------------------------------------------------------

at::Tensor OptimizerCore::average_loss(at::Tensor per_example,
                                       const std::optional<at::Tensor>& weights, CallSite site) {
  const char* const function = "DistributedOptimizer::average_loss";
  const size_t replica = enter(function, site);
  forget_failed_run(replica);
  internal::check_per_example(function, per_example, weights, extended_.num_replicas_in_sync());
  note_backward(replica);
  Replica& me = replicas_[replica];
  const double weight =
      weights ? global_weight(
                    internal::broadcast_weights(function, *weights, "the loss", per_example), site)
              : global_weight(static_cast<double>(per_example.numel()), site);
  if (me.reference_weight == 0) me.reference_weight = weight > 0 ? weight : 1;
  me.total_weight += weight;
  // The gradient is that of the sum over a weight that is the same in all batches of the step,
  // which step() corrects; the value is the average of this batch.
  at::Tensor loss = average_loss_over(std::move(per_example), me.reference_weight, weights);
  if (weight == me.reference_weight || weight == 0) return loss;
  const at::Tensor detached = loss.detach();
  return loss.add(detached.mul(me.reference_weight / weight - 1));
}

}  // namespace tutti
