// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/sparse_parameters.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/core/AutogradState.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/modules/embedding.h>

#include "tutti/base/error.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/train/optimizer/flat_kernels.h"

namespace tutti::internal {
namespace {

const at::Tensor* sparse_weight(const torch::nn::Module& module) {
  if (const auto* e = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    return e->options.sparse() ? &e->weight : nullptr;
  }
  if (const auto* e = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module)) {
    return e->options.sparse() ? &e->weight : nullptr;
  }
  return nullptr;
}

std::byte* row_at(const at::Tensor& table, int64_t row, int64_t row_size) {
  return static_cast<std::byte*>(table.data_ptr()) +
         row * row_size * static_cast<int64_t>(table.element_size());
}

}  // namespace

std::vector<size_t> find_sparse_parameters(const ReplicatedModules& modules) {
  std::vector<size_t> found;
  for (const auto& module : modules.copies()[0]->modules()) {
    const at::Tensor* const weight = sparse_weight(*module);
    if (weight == nullptr || !weight->device().is_cpu() || weight->dim() != 2) continue;
    if (weight->scalar_type() != at::kFloat && weight->scalar_type() != at::kDouble) continue;
    for (size_t i = 0; i < modules.parameter_names().size(); ++i) {
      if (modules.parameter(0, i).is_same(*weight)) found.push_back(i);
    }
  }
  return found;
}

bool keeps_other_rows(const UpdateRule& rule) {
  if (const auto* sgd = std::get_if<SgdRule>(&rule)) {
    return sgd->momentum == 0 && sgd->weight_decay == 0;
  }
  const auto* adagrad = std::get_if<AdagradRule>(&rule);
  return adagrad != nullptr && adagrad->weight_decay == 0;
}

SparseParameters::SparseParameters(const ReplicatedModules& modules,
                                   const std::vector<Entry>& entries)
    : modules_(modules), shared_(modules.strategy().extended().shares_parameters()) {
  for (const Entry& entry : entries) {
    Table& table = tables_.emplace_back();
    table.entry = entry;
    table.num_rows = modules.parameter(0, entry.parameter).size(0);
    table.row_size = modules.parameter(0, entry.parameter).size(1);
    table.gradients.resize(modules.size());
    table.parts.resize(modules.size());
  }
}

void SparseParameters::clear(size_t replica) {
  for (const Table& table : tables_) parameter(table, replica).mutable_grad() = at::Tensor();
}

void SparseParameters::collect(size_t replica) {
  const c10::AutoGradMode no_grad(false);
  for (Table& table : tables_) {
    const at::Tensor& gradient = parameter(table, replica).mutable_grad();
    Gradient& mine = table.gradients[replica];
    mine.given = gradient.defined();
    if (!mine.given) {
      mine.rows = at::empty({0}, at::kLong);
      mine.values = at::empty({0, table.row_size}, parameter(table, replica).options());
    } else if (gradient.is_sparse()) {
      const at::Tensor sorted = gradient.coalesce();
      mine.rows = sorted.indices()[0].contiguous();
      mine.values = sorted.values().contiguous();
    } else {
      mine.rows = at::arange(table.num_rows, at::kLong);
      mine.values = gradient.contiguous();
    }
  }
}

// Packs for each local replica: how many rows, or -1 without a gradient; which, and their values.
void SparseParameters::gather(StrategyExtended& strategy) {
  const c10::AutoGradMode no_grad(false);
  for (Table& table : tables_) {
    std::vector<at::Tensor> parts;
    for (const Gradient& each : table.gradients) {
      const int64_t rows = each.given ? each.rows.numel() : -1;
      parts.push_back(at::scalar_tensor(rows, at::kLong).view({1}).view(at::kByte));
      parts.push_back(each.rows.view(at::kByte));
      parts.push_back(each.values.reshape({-1}).view(at::kByte));
    }
    const auto all = strategy.workers().gather(
        at::cat(parts), "sparse gradients of " + modules_.parameter_names()[table.entry.parameter]);
    const at::ScalarType dtype = table.gradients[0].values.scalar_type();
    const auto row_bytes = table.row_size * static_cast<int64_t>(c10::elementSize(dtype));
    table.of_all.clear();
    for (const at::Tensor& worker : all) {
      int64_t at = 0;
      const auto take = [&](int64_t bytes) {
        if (bytes < 0 || bytes > worker.numel() - at) {
          throw Error(ErrorCode::kFailedPrecondition,
                      message("DistributedOptimizer: a worker sent ", worker.numel(),
                              " bytes of sparse gradients, which do not fit its rows. All workers "
                              "must train the same model."));
        }
        at += bytes;
        return worker.narrow(0, at - bytes, bytes).clone();
      };
      for (size_t r = 0; r < table.gradients.size(); ++r) {
        const auto sent = take(8).view(at::kLong).item<int64_t>();
        const int64_t rows = std::max<int64_t>(sent, 0);
        Gradient& gradient = table.of_all.emplace_back();
        gradient.given = sent >= 0;
        gradient.rows = take(rows < worker.numel() ? rows * 8 : -1).view(at::kLong);
        gradient.values = take(rows * row_bytes).view(dtype).view({rows, table.row_size});
      }
    }
  }
}

void SparseParameters::sum(size_t replica) {
  const c10::AutoGradMode no_grad(false);
  for (Table& table : tables_) sum_part(table, replica);
}

// Merges the ascending rows of all replicas.
void SparseParameters::sum_part(Table& table, size_t worker) const {
  const std::vector<Gradient>& gradients = table.of_all.empty() ? table.gradients : table.of_all;
  const size_t replicas = gradients.size();
  const auto workers = static_cast<int64_t>(modules_.size());
  const int64_t begin = table.num_rows * static_cast<int64_t>(worker) / workers;
  const int64_t end = table.num_rows * (static_cast<int64_t>(worker) + 1) / workers;
  c10::SmallVector<const int64_t*, 8> next;
  c10::SmallVector<const int64_t*, 8> last;
  int64_t most = 0;
  for (const Gradient& gradient : gradients) {
    const auto* const rows = gradient.rows.data_ptr<int64_t>();
    const int64_t* const all = rows + gradient.rows.numel();
    next.push_back(std::lower_bound(rows, all, begin));
    last.push_back(std::lower_bound(rows, all, end));
    most += last.back() - next.back();
  }
  Part& part = table.parts[worker];
  part.rows.clear();
  const at::ScalarType dtype = parameter(table, 0).scalar_type();
  at::Tensor values = at::empty({most, table.row_size}, parameter(table, 0).options());
  c10::SmallVector<const void*, 8> inputs(replicas);
  while (true) {
    int64_t row = end;
    for (size_t r = 0; r < replicas; ++r) {
      if (next[r] != last[r]) row = std::min(row, *next[r]);
    }
    if (row == end) break;
    for (size_t r = 0; r < replicas; ++r) {
      inputs[r] = nullptr;
      if (next[r] == last[r] || *next[r] != row) continue;
      const Gradient& gradient = gradients[r];
      inputs[r] =
          row_at(gradient.values, next[r] - gradient.rows.data_ptr<int64_t>(), table.row_size);
      ++next[r];
    }
    void* const output = row_at(values, static_cast<int64_t>(part.rows.size()), table.row_size);
    reduce_tree(ReduceOp::kSum, dtype, std::span<const void* const>(inputs.data(), inputs.size()),
                std::span<void* const>(&output, 1), 0, table.row_size);
    part.rows.push_back(row);
  }
  part.values = values.narrow(0, 0, static_cast<int64_t>(part.rows.size()));
}

// Sums row by row: the number of parts depends on how many replicas this process has.
double SparseParameters::square_sum() const {
  double sum = 0;
  for (const Table& table : tables_) {
    for (const Part& part : table.parts) {
      for (size_t i = 0; i < part.rows.size(); ++i) {
        const void* const row = row_at(part.values, static_cast<int64_t>(i), table.row_size);
        sum += internal::square_sum(part.values.scalar_type(), row, table.row_size).sum;
      }
    }
  }
  return sum;
}

std::vector<std::string> SparseParameters::non_finite() const {
  std::vector<std::string> names;
  for (const Table& table : tables_) {
    const bool finite = std::all_of(table.parts.begin(), table.parts.end(), [](const Part& part) {
      return internal::square_sum(part.values.scalar_type(), part.values.data_ptr(),
                                  part.values.numel())
          .finite;
    });
    if (!finite) names.push_back(modules_.parameter_names()[table.entry.parameter]);
  }
  return names;
}

void SparseParameters::scale(double factor) {
  for (Table& table : tables_) {
    for (Part& part : table.parts) part.values.mul_(factor);
  }
}

void SparseParameters::prepare(std::span<const UpdateRule> rules) {
  for (Table& table : tables_) {
    const UpdateRule& rule = rules[table.entry.group];
    while (static_cast<int>(table.state.size()) < num_states(rule)) {
      const double first = initial_state(rule, static_cast<int>(table.state.size()));
      table.state.push_back(at::full({table.num_rows, table.row_size}, first,
                                     parameter(table, 0).options().requires_grad(false)));
    }
  }
}

bool SparseParameters::has_gradient(const Table& table) {
  const std::vector<Gradient>& gradients = table.of_all.empty() ? table.gradients : table.of_all;
  return std::any_of(gradients.begin(), gradients.end(),
                     [](const Gradient& each) { return each.given; });
}

void SparseParameters::count_update() {
  for (Table& table : tables_) {
    if (has_gradient(table)) ++table.updates;
  }
}

void SparseParameters::update(size_t replica, std::span<const UpdateRule> rules, double factor) {
  for (const Table& table : tables_) {
    const UpdateRule& rule = rules[table.entry.group];
    if (parameter(table, 0).scalar_type() == at::kDouble) {
      update_rows<double>(table, table.parts[replica], rule, factor);
    } else {
      update_rows<float>(table, table.parts[replica], rule, factor);
    }
  }
}

template <class T>
void SparseParameters::update_rows(const Table& table, const Part& part, const UpdateRule& rule,
                                   double factor) {
  for (size_t i = 0; i < part.rows.size(); ++i) {
    const int64_t row = part.rows[i];
    UpdateSlice<T> slice;
    slice.parameter = reinterpret_cast<T*>(row_at(parameter(table, 0), row, table.row_size));
    slice.gradient =
        reinterpret_cast<const T*>(row_at(part.values, static_cast<int64_t>(i), table.row_size));
    for (int s = 0; s < num_states(rule); ++s) {
      slice.state[s] = reinterpret_cast<T*>(row_at(table.state[s], row, table.row_size));
    }
    slice.count = table.row_size;
    slice.step = table.updates;
    slice.gradient_factor = factor;
    apply(rule, slice);
    copy_row(table, row);
  }
}

void SparseParameters::copy_row(const Table& table, int64_t row) const {
  const at::Tensor& first = parameter(table, 0);
  const size_t bytes = static_cast<size_t>(table.row_size) * first.element_size();
  for (size_t r = 1; r < modules_.size() && !shared_; ++r) {
    std::memcpy(row_at(parameter(table, r), row, table.row_size),
                row_at(first, row, table.row_size), bytes);
  }
}

void SparseParameters::copy_tables(size_t replica) {
  const c10::AutoGradMode no_grad(false);
  if (shared_ || replica == 0) return;
  for (const Table& table : tables_) parameter(table, replica).copy_(parameter(table, 0));
}

void SparseParameters::alias() {
  for (const Table& table : tables_) {
    for (size_t r = 1; r < modules_.size() && shared_; ++r) {
      at::Tensor& leaf = parameter(table, r);
      const at::Tensor& first = parameter(table, 0);
      if (leaf.data_ptr() != first.data_ptr()) leaf.set_data(first.detach());
    }
  }
}

void SparseParameters::take_over(const SparseParameters& old) {
  for (Table& table : tables_) {
    for (const Table& source : old.tables_) {
      if (source.entry.parameter != table.entry.parameter) continue;
      table.updates = source.updates;
      for (const at::Tensor& state : source.state) {
        table.state.push_back(state.to(parameter(table, 0).scalar_type()));
      }
    }
  }
}

void SparseParameters::publish(size_t replica) {
  const c10::AutoGradMode no_grad(false);
  for (const Table& table : tables_) {
    if (!has_gradient(table)) {
      parameter(table, replica).mutable_grad() = at::Tensor();
      continue;
    }
    std::vector<at::Tensor> rows;
    std::vector<at::Tensor> values;
    for (const Part& part : table.parts) {
      rows.push_back(at::tensor(part.rows, at::kLong));
      values.push_back(part.values);
    }
    at::Tensor sum = at::_sparse_coo_tensor_unsafe(at::cat(rows).unsqueeze(0), at::cat(values),
                                                   parameter(table, replica).sizes());
    parameter(table, replica).mutable_grad() = sum._coalesced_(true);
    parameter(table, replica).unsafeGetTensorImpl()->bump_version();
  }
}

size_t SparseParameters::parameter_bytes() const {
  size_t bytes = 0;
  for (const Table& table : tables_) {
    bytes += parameter(table, 0).nbytes() * (shared_ ? 1 : modules_.size());
  }
  return bytes;
}

std::vector<at::Tensor> SparseParameters::states_of(size_t parameter) const {
  std::vector<at::Tensor> states;
  for (const Table& table : tables_) {
    if (table.entry.parameter != parameter) continue;
    for (const at::Tensor& state : table.state) states.push_back(state.clone());
  }
  return states;
}

size_t SparseParameters::state_bytes() const {
  size_t bytes = 0;
  for (const Table& table : tables_) {
    for (const at::Tensor& state : table.state) bytes += state.nbytes();
  }
  return bytes;
}

}  // namespace tutti::internal
