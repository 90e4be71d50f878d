// SPDX-License-Identifier: Apache-2.0
//
// Random pipelines: a description that rapidcheck can draw, print and shrink, the dataset that it
// describes, and a model that computes with plain loops what the dataset holds.

#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "tutti/data/dataset.h"

#include "tests/support/temp_folder.h"

namespace tutti::property {

using Rows = std::vector<int64_t>;

enum class SourceKind { kRange, kSlices, kTextLine, kTfRecord, kListFiles };

/// A source: one element per row, `sizes` rows in each file. Sources without files have the rows of
/// all files.
struct Source {
  SourceKind kind = SourceKind::kRange;
  std::vector<int> sizes = {};
  bool shuffled = false;  ///< kListFiles: the names; others: the rows.
  int seed = 0;
};

enum class Op {
  kShuffle,
  kRepeat,  ///< Only the first one of a pipeline has an effect.
  kMap,
  kFilter,
  kTake,
  kSkip,
  kShard,
  kShardHint,  ///< Does nothing unless hints are requested.
  kPrefetch,
  kConcatenate,
  kEnumerate,  ///< Applies to rows; does nothing to batches.
  kZip,        ///< Applies to rows; does nothing to batches.
  kBatch,      ///< Applies to rows.
  kRebatch,    ///< Applies to batches.
  kUnbatch,    ///< Applies to batches: unbatch, then batch.
};

struct Stage {
  Op op = Op::kPrefetch;
  int a = 0;
  int b = 0;
  Source other = {};
};

/// Always ends in batches if it was drawn by batched_pipelines().
struct Pipeline {
  Source source;
  std::vector<Stage> stages;
};

void showValue(const Pipeline& pipeline, std::ostream& out);

/// Pipelines of rows: any kind of stage.
rc::Gen<Pipeline> row_pipelines();

/// Pipelines of batches of 1-9 rows.
rc::Gen<Pipeline> batched_pipelines();

/// Pipelines of batches whose rows do not depend on the order of stages: no take, skip, shard,
/// zip, enumerate, and no batch is dropped.
rc::Gen<Pipeline> order_free_pipelines();

/// A part of the files, and the shard that hints select.
struct Part {
  int64_t num_files_shards = 1;
  int64_t files_shard = 0;
  int64_t num_hint_shards = 0;  ///< 0: hints do nothing.
  int64_t hint_shard = 0;
};

// ---- the dataset

using AnyDataset = std::variant<data::Dataset<int64_t>, data::Dataset<std::string>,
                                data::Dataset<at::Tensor>, data::Dataset<std::vector<std::string>>>;

struct BuildOptions {
  bool hints = false;
  bool unordered = false;  ///< Whether map stages may be unordered.
  bool seeds = true;       ///< Whether shuffles are given their seed.
};

/// Writes the files of a pipeline once, and makes datasets of it.
class Builder {
 public:
  explicit Builder(const Pipeline& pipeline);

  /// A new dataset each time: its first pass is the first. Thread-safe.
  AnyDataset build(const BuildOptions& options = {}) const;

 private:
  std::vector<std::string> write(const Source& source, size_t branch) const;

  const Pipeline pipeline_;
  test::TempFolder folder_;
  std::vector<std::vector<std::string>> files_;  // by branch: the source, then each stage
};

/// The rows of an element.
Rows rows_of(int64_t element);
Rows rows_of(const std::string& element);
Rows rows_of(const at::Tensor& element);
Rows rows_of(const std::vector<std::string>& element);

// ---- the model

struct Model {
  std::vector<Rows> elements = {};
  bool batched = false;
  std::optional<int64_t> batch_size = std::nullopt;  ///< The size that distribution can know.
};

Model model_of(const Pipeline& pipeline, const Part& part = {});

/// The place of each of n elements after a shuffle. The library is free to choose the orders of
/// shuffles, so they are read from the smallest pipeline that has one.
std::vector<size_t> shuffled_order(size_t n, int64_t buffer_size, uint64_t seed, int epoch,
                                   bool reshuffle);

/// The branches of a pipeline that bring in elements.
std::vector<Source> branches_of(const Pipeline& pipeline);

bool reads_files(const Source& source);

Rows all_rows(const std::vector<Rows>& elements);
Rows sorted(Rows rows);

}  // namespace tutti::property
