// SPDX-License-Identifier: Apache-2.0

#include "tests/property/pipelines.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

#include <ATen/ATen.h>

#include "tutti/data/files.h"

namespace tutti::property {
namespace {

using data::Dataset;

// ---- drawing ----------------------------------------------------------------------

// rapidcheck scales numbers by the size of a case; these are always drawn from the full range.
template <class T>
rc::Gen<T> full(rc::Gen<T> gen) {
  return rc::gen::resize(rc::kNominalSize, std::move(gen));
}

rc::Gen<int> below(int limit) { return full(rc::gen::inRange(0, limit)); }

template <class T>
rc::Gen<std::vector<T>> up_to(int count, rc::Gen<T> element) {
  return rc::gen::resize(count, rc::gen::container<std::vector<T>>(full(std::move(element))));
}

rc::Gen<Source> sources() {
  return rc::gen::build<Source>(
      rc::gen::set(&Source::kind,
                   rc::gen::element(SourceKind::kRange, SourceKind::kSlices, SourceKind::kTextLine,
                                    SourceKind::kTfRecord, SourceKind::kListFiles)),
      rc::gen::set(&Source::sizes, up_to(9, below(7))),
      rc::gen::set(&Source::shuffled, rc::gen::arbitrary<bool>()),
      rc::gen::set(&Source::seed, below(5)));
}

rc::Gen<Stage> stages(std::vector<Op> ops) {
  return rc::gen::build<Stage>(rc::gen::set(&Stage::op, rc::gen::elementOf(std::move(ops))),
                               rc::gen::set(&Stage::a, below(10)),
                               rc::gen::set(&Stage::b, below(10)),
                               rc::gen::set(&Stage::other, sources()));
}

rc::Gen<std::vector<Stage>> row_stages() {
  return up_to(
      4, stages({Op::kShuffle, Op::kRepeat, Op::kMap, Op::kFilter, Op::kTake, Op::kSkip, Op::kShard,
                 Op::kShardHint, Op::kPrefetch, Op::kConcatenate, Op::kEnumerate, Op::kZip}));
}

rc::Gen<Pipeline> with_batches(rc::Gen<std::vector<Stage>> rows, bool drops,
                               rc::Gen<std::vector<Stage>> batches) {
  return full(rc::gen::map(
      rc::gen::tuple(sources(), std::move(rows), stages({Op::kBatch}), std::move(batches)),
      [drops](std::tuple<Source, std::vector<Stage>, Stage, std::vector<Stage>> drawn) {
        auto& [source, before, batch, after] = drawn;
        if (!drops) batch.b = 1;
        Pipeline pipeline{std::move(source), std::move(before)};
        pipeline.stages.push_back(std::move(batch));
        for (Stage& stage : after) {
          if (!drops) stage.b = 1;
          pipeline.stages.push_back(std::move(stage));
        }
        return pipeline;
      }));
}

// These functions interpret the numbers of a stage.
int64_t size_of(const Stage& stage) { return 1 + stage.a % 9; }
bool drops_remainder(const Stage& stage) { return stage.b % 3 == 0; }
bool reshuffles(const Stage& stage) { return stage.b % 2 == 0; }
bool replays(const Stage& stage) { return stage.b % 3 == 0; }
int64_t repeats(const Stage& stage) { return stage.a % 4; }
int64_t take_count(const Stage& stage) { return 2 * stage.a; }
int64_t skip_count(const Stage& stage) { return stage.a; }
int64_t num_shards(const Stage& stage) { return 1 + stage.a % 3; }
int64_t shard_index(const Stage& stage) { return stage.b % num_shards(stage); }
uint64_t seed_of(const Stage& stage) { return static_cast<uint64_t>(stage.b); }

const char* name_of(SourceKind kind) {
  switch (kind) {
    case SourceKind::kRange:
      return "range";
    case SourceKind::kSlices:
      return "slices";
    case SourceKind::kTextLine:
      return "text_line";
    case SourceKind::kTfRecord:
      return "tf_record";
    case SourceKind::kListFiles:
      return "list_files";
  }
  return "";
}

std::ostream& operator<<(std::ostream& out, const Source& source) {
  out << name_of(source.kind) << "(";
  for (size_t i = 0; i < source.sizes.size(); ++i) out << (i == 0 ? "" : " ") << source.sizes[i];
  out << ")";
  if (source.shuffled) out << ".shuffled(seed " << source.seed << ")";
  return out;
}

void show_stage(const Stage& stage, std::ostream& out) {
  switch (stage.op) {
    case Op::kShuffle:
      out << ".shuffle(" << size_of(stage) << ", seed " << seed_of(stage)
          << (reshuffles(stage) ? "" : ", same order") << (replays(stage) ? ", replayed" : "")
          << ")";
      break;
    case Op::kRepeat:
      out << ".repeat(" << repeats(stage) << ")";
      break;
    case Op::kMap:
      out << ".map(kind " << stage.a % 3 << ")";
      break;
    case Op::kFilter:
      out << ".filter()";
      break;
    case Op::kTake:
      out << ".take(" << take_count(stage) << ")";
      break;
    case Op::kSkip:
      out << ".skip(" << skip_count(stage) << ")";
      break;
    case Op::kShard:
      out << ".shard(" << num_shards(stage) << ", " << shard_index(stage) << ")";
      break;
    case Op::kShardHint:
      out << ".shard(hint)";
      break;
    case Op::kPrefetch:
      out << ".prefetch(" << stage.a % 4 << ")";
      break;
    case Op::kConcatenate:
      out << ".concatenate(" << stage.other << ", batch " << size_of(stage) << ")";
      break;
    case Op::kEnumerate:
      out << ".enumerate(" << stage.a << ")";
      break;
    case Op::kZip:
      out << ".zip(" << stage.other << ")";
      break;
    case Op::kBatch:
      out << ".batch(" << size_of(stage) << (drops_remainder(stage) ? ", drop" : "") << ")";
      break;
    case Op::kRebatch:
      out << ".rebatch(" << size_of(stage) << (drops_remainder(stage) ? ", drop" : "") << ")";
      break;
    case Op::kUnbatch:
      out << ".unbatch().batch(" << size_of(stage) << (drops_remainder(stage) ? ", drop" : "")
          << ")";
      break;
  }
}

// ---- what functions do, for datasets and for the model ------------------------------

int64_t mapped(int64_t x) { return 3 * x + 1; }
int64_t combined(int64_t a, int64_t b) { return 1000 * a + b; }
bool kept(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0}) % 3 != 0;
}

// Row i of file f of a branch.
int64_t value_of(size_t branch, size_t file, int row) {
  return 200 * static_cast<int64_t>(branch) + 20 * static_cast<int64_t>(file) + row;
}

bool is_first_repeat(const Pipeline& pipeline, size_t stage) {
  for (size_t i = 0; i < stage; ++i) {
    if (pipeline.stages[i].op == Op::kRepeat) return false;
  }
  return true;
}

// Large enough for all rows and names.
constexpr int64_t kWholeBuffer = 70;

// ---- building ---------------------------------------------------------------------

struct Building {
  AnyDataset dataset;
  bool batched = false;
};

template <class F>
Building same_type(const Building& building, const F& fn) {
  return {
      std::visit([&](const auto& dataset) { return AnyDataset(fn(dataset)); }, building.dataset),
      building.batched};
}

template <class T>
int64_t number_of(const T& row) {
  return rows_of(row).at(0);
}

template <class T>
Dataset<int64_t> numbers(const Dataset<T>& rows) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return rows;
  } else {
    return rows.map([](const T& row) { return number_of(row); });
  }
}

AnyDataset source_dataset(const Source& source, const std::vector<std::string>& files,
                          size_t branch, bool seeds) {
  const std::optional<uint64_t> seed =
      seeds ? std::optional(static_cast<uint64_t>(source.seed)) : std::nullopt;
  const auto shuffled = [&](const auto& dataset) -> AnyDataset {
    if (!source.shuffled) return dataset;
    return dataset.shuffle(kWholeBuffer, {.seed = seed});
  };
  Rows rows;
  for (size_t f = 0; f < source.sizes.size(); ++f) {
    for (int i = 0; i < source.sizes[f]; ++i) rows.push_back(value_of(branch, f, i));
  }
  switch (source.kind) {
    case SourceKind::kRange: {
      const auto all =
          data::range(200 * static_cast<int64_t>(branch),
                      200 * static_cast<int64_t>(branch) + static_cast<int64_t>(rows.size()));
      return shuffled(all);
    }
    case SourceKind::kSlices:
      return shuffled(data::from_tensor_slices(at::tensor(rows, at::kLong)));
    case SourceKind::kTextLine:
      return shuffled(data::text_line(files));
    case SourceKind::kTfRecord:
      return shuffled(data::tf_record(files));
    case SourceKind::kListFiles:
      break;
  }
  const auto read = [](const std::string& name) { return data::tf_record(name); };
  if (files.empty()) {
    return data::from_tensor_slices(std::vector<std::string>{}).flat_map(read);
  }
  return data::list_files(files, {.shuffle = source.shuffled, .seed = seed}).flat_map(read);
}

// The other branch of a stage, as rows of type T.
template <class T>
Dataset<T> other_rows(const AnyDataset& other) {
  return std::visit(
      [](const auto& rows) -> Dataset<T> {
        using Other = typename std::decay_t<decltype(rows)>::value_type;
        if constexpr (std::is_same_v<Other, T>) {
          return rows;
        } else if constexpr (std::is_same_v<T, int64_t>) {
          return numbers(rows);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return numbers(rows).map([](int64_t x) { return std::to_string(x); });
        } else {
          return numbers(rows).map([](int64_t x) { return at::scalar_tensor(x, at::kLong); });
        }
      },
      other);
}

template <class T>
AnyDataset concatenated(const Dataset<T>& dataset, bool batched, const AnyDataset& other,
                        int64_t size) {
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return dataset.concatenate(other_rows<std::string>(other).batch(size));
  } else {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      if (batched) return dataset.concatenate(other_rows<int64_t>(other).batch(size));
    }
    return dataset.concatenate(other_rows<T>(other));
  }
}

template <class T>
Dataset<T> mapped_dataset(const Dataset<T>& dataset, const data::MapOptions& options) {
  return dataset.map(
      [](const T& element) -> T {
        if constexpr (std::is_same_v<T, int64_t>) {
          return mapped(element);
        } else if constexpr (std::is_same_v<T, at::Tensor>) {
          return element * 3 + 1;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return std::to_string(mapped(number_of(element)));
        } else {
          T all;
          for (const std::string& row : element)
            all.push_back(std::to_string(mapped(number_of(row))));
          return all;
        }
      },
      options);
}

data::MapOptions map_options(const Stage& stage, bool unordered) {
  switch (stage.a % 3) {
    case 0:
      return {};
    case 1:
      return {.num_parallel_calls = 2};
    default:
      return {.num_parallel_calls = 3, .ordered = !unordered};
  }
}

// Builds stages that mean the same for rows and batches.
Building built_stage(const Building& from, const Stage& stage, const BuildOptions& options) {
  switch (stage.op) {
    case Op::kShuffle: {
      data::ShuffleOptions shuffle{.reshuffle_each_iteration = reshuffles(stage)};
      if (options.seeds) shuffle.seed = seed_of(stage);
      if (replays(stage)) shuffle.max_saved_bytes = 0;
      return same_type(from, [&](const auto& d) { return d.shuffle(size_of(stage), shuffle); });
    }
    case Op::kRepeat:
      return same_type(from, [&](const auto& d) { return d.repeat(repeats(stage)); });
    case Op::kMap:
      return same_type(from, [&](const auto& d) {
        return mapped_dataset(d, map_options(stage, options.unordered));
      });
    case Op::kFilter:
      return same_type(from, [&](const auto& d) {
        using T = typename std::decay_t<decltype(d)>::value_type;
        return d.filter([](const T& element) { return kept(rows_of(element)); });
      });
    case Op::kTake:
      return same_type(from, [&](const auto& d) { return d.take(take_count(stage)); });
    case Op::kSkip:
      return same_type(from, [&](const auto& d) { return d.skip(skip_count(stage)); });
    case Op::kShard:
      return same_type(
          from, [&](const auto& d) { return d.shard(num_shards(stage), shard_index(stage)); });
    case Op::kShardHint:
      if (!options.hints) return from;
      return same_type(from, [&](const auto& d) { return d.shard(data::kShardHint, 0); });
    case Op::kPrefetch:
      return same_type(from, [&](const auto& d) { return d.prefetch(stage.a % 4); });
    case Op::kRebatch:
      return same_type(from, [&](const auto& d) {
        return std::decay_t<decltype(d)>(
            data::make_rebatch(d.node(), {size_of(stage)}, drops_remainder(stage)));
      });
    default:
      return from;
  }
}

// Builds stages that change the type.
Building built_batches(const Building& from, const Stage& stage) {
  const data::BatchOptions options{.drop_remainder = drops_remainder(stage)};
  const auto to_batches = [&](const auto& dataset) -> AnyDataset {
    using T = typename std::decay_t<decltype(dataset)>::value_type;
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      return dataset.unbatch().batch(size_of(stage), options);
    } else if constexpr (std::is_same_v<T, at::Tensor>) {
      if (stage.op == Op::kUnbatch) return dataset.unbatch().batch(size_of(stage), options);
      return dataset.batch(size_of(stage), options);
    } else {
      return dataset.batch(size_of(stage), options);
    }
  };
  return {std::visit(to_batches, from.dataset), true};
}

Building built_combination(const Building& from, const Stage& stage, const AnyDataset& other) {
  if (stage.op == Op::kConcatenate) {
    return {std::visit(
                [&](const auto& d) { return concatenated(d, from.batched, other, size_of(stage)); },
                from.dataset),
            from.batched};
  }
  if (from.batched) return from;
  return {std::visit(
              [&](const auto& dataset) -> AnyDataset {
                using T = typename std::decay_t<decltype(dataset)>::value_type;
                if constexpr (std::is_same_v<T, std::vector<std::string>>) {
                  return dataset;
                } else if (stage.op == Op::kEnumerate) {
                  return dataset.enumerate(stage.a).map(
                      [](int64_t i, const T& row) { return combined(number_of(row), i); });
                } else {
                  return zip(dataset, other_rows<T>(other)).map([](const T& a, const T& b) {
                    return combined(number_of(a), number_of(b));
                  });
                }
              },
              from.dataset),
          false};
}

// ---- modelling --------------------------------------------------------------------

std::vector<Rows> picked(const std::vector<Rows>& from, const std::vector<size_t>& order) {
  std::vector<Rows> to;
  for (const size_t i : order) to.push_back(from.at(i));
  return to;
}

std::vector<Rows> model_source(const Source& source, size_t branch, const Part& part, int epoch) {
  std::vector<std::vector<Rows>> files;
  int64_t all = 0;
  for (size_t f = 0; f < source.sizes.size(); ++f) {
    std::vector<Rows> rows;
    for (int i = 0; i < source.sizes[f]; ++i) {
      rows.push_back({source.kind == SourceKind::kRange ? 200 * static_cast<int64_t>(branch) + all
                                                        : value_of(branch, f, i)});
      ++all;
    }
    if (reads_files(source) &&
        static_cast<int64_t>(f) % part.num_files_shards != part.files_shard) {
      continue;
    }
    files.push_back(std::move(rows));
  }
  const auto seed = static_cast<uint64_t>(source.seed);
  if (source.shuffled && source.kind == SourceKind::kListFiles) {
    std::vector<std::vector<Rows>> other;
    for (const size_t f : shuffled_order(files.size(), kWholeBuffer, seed, epoch, true)) {
      other.push_back(files.at(f));
    }
    files = std::move(other);
  }
  std::vector<Rows> rows;
  for (const auto& file : files) rows.insert(rows.end(), file.begin(), file.end());
  if (source.shuffled && source.kind != SourceKind::kListFiles) {
    rows = picked(rows, shuffled_order(rows.size(), kWholeBuffer, seed, epoch, true));
  }
  return rows;
}

std::vector<Rows> cut(const Rows& rows, int64_t size, bool drop_remainder) {
  std::vector<Rows> batches;
  for (const int64_t row : rows) {
    if (batches.empty() || static_cast<int64_t>(batches.back().size()) == size) {
      batches.emplace_back();
    }
    batches.back().push_back(row);
  }
  if (drop_remainder && !batches.empty() && static_cast<int64_t>(batches.back().size()) < size) {
    batches.pop_back();
  }
  return batches;
}

std::vector<Rows> every(const std::vector<Rows>& from, int64_t num_shards, int64_t index) {
  std::vector<Rows> to;
  for (size_t i = 0; i < from.size(); ++i) {
    if (static_cast<int64_t>(i) % num_shards == index) to.push_back(from[i]);
  }
  return to;
}

Model model_up_to(const Pipeline& pipeline, size_t stages, const Part& part, int epoch);

Model modelled_stage(const Pipeline& pipeline, size_t index, const Part& part, int epoch) {
  const Stage& stage = pipeline.stages[index];
  if (stage.op == Op::kRepeat && is_first_repeat(pipeline, index)) {
    Model all = model_up_to(pipeline, index, part, 0);
    all.elements.clear();
    for (int pass = 0; pass < repeats(stage); ++pass) {
      const Model one = model_up_to(pipeline, index, part, pass);
      if (one.elements.empty()) break;
      all.elements.insert(all.elements.end(), one.elements.begin(), one.elements.end());
    }
    return all;
  }
  Model model = model_up_to(pipeline, index, part, epoch);
  std::vector<Rows>& elements = model.elements;
  const auto count = static_cast<int64_t>(elements.size());
  switch (stage.op) {
    case Op::kShuffle:
      elements = picked(elements, shuffled_order(elements.size(), size_of(stage), seed_of(stage),
                                                 epoch, reshuffles(stage)));
      break;
    case Op::kRepeat:
    case Op::kPrefetch:
      break;
    case Op::kMap:
      for (Rows& rows : elements) std::transform(rows.begin(), rows.end(), rows.begin(), mapped);
      model.batch_size.reset();
      break;
    case Op::kFilter:
      std::erase_if(elements, [](const Rows& rows) { return !kept(rows); });
      break;
    case Op::kTake:
      elements.resize(static_cast<size_t>(std::min(count, take_count(stage))));
      break;
    case Op::kSkip:
      elements.erase(elements.begin(), elements.begin() + std::min(count, skip_count(stage)));
      break;
    case Op::kShard:
      elements = every(elements, num_shards(stage), shard_index(stage));
      break;
    case Op::kShardHint:
      if (part.num_hint_shards > 0) {
        elements = every(elements, part.num_hint_shards, part.hint_shard);
      }
      break;
    case Op::kConcatenate: {
      std::vector<Rows> other = model_source(stage.other, index + 1, part, epoch);
      if (model.batched) {
        other = cut(all_rows(other), size_of(stage), false);
        if (model.batch_size != size_of(stage)) model.batch_size.reset();
      }
      elements.insert(elements.end(), other.begin(), other.end());
      break;
    }
    case Op::kEnumerate:
      if (model.batched) break;
      for (size_t i = 0; i < elements.size(); ++i) {
        elements[i][0] = combined(elements[i][0], stage.a + static_cast<int64_t>(i));
      }
      break;
    case Op::kZip: {
      if (model.batched) break;
      const std::vector<Rows> other = model_source(stage.other, index + 1, part, epoch);
      elements.resize(std::min(elements.size(), other.size()));
      for (size_t i = 0; i < elements.size(); ++i) {
        elements[i][0] = combined(elements[i][0], other[i][0]);
      }
      break;
    }
    case Op::kBatch:
    case Op::kRebatch:
    case Op::kUnbatch:
      elements = cut(all_rows(elements), size_of(stage), drops_remainder(stage));
      model.batched = true;
      model.batch_size = size_of(stage);
      break;
  }
  return model;
}

Model model_up_to(const Pipeline& pipeline, size_t stages, const Part& part, int epoch) {
  if (stages == 0) return {.elements = model_source(pipeline.source, 0, part, epoch)};
  return modelled_stage(pipeline, stages - 1, part, epoch);
}

}  // namespace

void showValue(const Pipeline& pipeline, std::ostream& out) {
  out << pipeline.source;
  for (const Stage& stage : pipeline.stages) show_stage(stage, out);
}

rc::Gen<Pipeline> row_pipelines() {
  return full(rc::gen::map(rc::gen::pair(sources(), row_stages()),
                           [](std::pair<Source, std::vector<Stage>> drawn) {
                             return Pipeline{std::move(drawn.first), std::move(drawn.second)};
                           }));
}

rc::Gen<Pipeline> batched_pipelines() {
  return with_batches(
      row_stages(), /*drops=*/true,
      up_to(2, stages({Op::kShuffle, Op::kRepeat, Op::kMap, Op::kFilter, Op::kTake, Op::kSkip,
                       Op::kShard, Op::kPrefetch, Op::kConcatenate, Op::kRebatch, Op::kUnbatch})));
}

rc::Gen<Pipeline> order_free_pipelines() {
  return with_batches(up_to(4, stages({Op::kShuffle, Op::kRepeat, Op::kMap, Op::kFilter,
                                       Op::kPrefetch, Op::kConcatenate})),
                      /*drops=*/false,
                      up_to(2, stages({Op::kShuffle, Op::kRepeat, Op::kMap, Op::kPrefetch,
                                       Op::kConcatenate, Op::kRebatch, Op::kUnbatch})));
}

Builder::Builder(const Pipeline& pipeline) : pipeline_(pipeline) {
  files_.push_back(write(pipeline.source, 0));
  for (size_t i = 0; i < pipeline.stages.size(); ++i) {
    const Stage& stage = pipeline.stages[i];
    const bool reads = stage.op == Op::kConcatenate || stage.op == Op::kZip;
    files_.push_back(reads ? write(stage.other, i + 1) : std::vector<std::string>{});
  }
}

std::vector<std::string> Builder::write(const Source& source, size_t branch) const {
  std::vector<std::string> files;
  if (!reads_files(source)) return files;
  for (size_t f = 0; f < source.sizes.size(); ++f) {
    files.push_back(folder_.path(message("branch", branch, "-", f)));
    Rows rows;
    for (int i = 0; i < source.sizes[f]; ++i) rows.push_back(value_of(branch, f, i));
    if (source.kind == SourceKind::kTextLine) {
      std::string text;
      for (const int64_t row : rows) text += std::to_string(row) + "\n";
      test::write_file(files.back(), text);
    } else {
      data::TfRecordWriter writer(files.back());
      for (const int64_t row : rows) writer.write(std::to_string(row));
      writer.close();
    }
  }
  return files;
}

AnyDataset Builder::build(const BuildOptions& options) const {
  Building building{source_dataset(pipeline_.source, files_[0], 0, options.seeds)};
  for (size_t i = 0; i < pipeline_.stages.size(); ++i) {
    const Stage& stage = pipeline_.stages[i];
    switch (stage.op) {
      case Op::kBatch:
      case Op::kUnbatch:
        building = built_batches(building, stage);
        break;
      case Op::kConcatenate:
      case Op::kZip:
      case Op::kEnumerate:
        building = built_combination(
            building, stage, source_dataset(stage.other, files_[i + 1], i + 1, options.seeds));
        break;
      default:
        if (stage.op == Op::kRepeat && !is_first_repeat(pipeline_, i)) break;
        building = built_stage(building, stage, options);
    }
  }
  return building.dataset;
}

Rows rows_of(int64_t element) { return {element}; }
Rows rows_of(const std::string& element) { return {std::stoll(element)}; }
Rows rows_of(const at::Tensor& element) {
  const at::Tensor host = element.to(at::kLong).contiguous();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}
Rows rows_of(const std::vector<std::string>& element) {
  Rows rows;
  for (const std::string& row : element) rows.push_back(std::stoll(row));
  return rows;
}

Model model_of(const Pipeline& pipeline, const Part& part) {
  return model_up_to(pipeline, pipeline.stages.size(), part, 0);
}

std::vector<size_t> shuffled_order(size_t n, int64_t buffer_size, uint64_t seed, int epoch,
                                   bool reshuffle) {
  std::vector<size_t> order;
  const auto all = data::range(static_cast<int64_t>(n))
                       .shuffle(buffer_size, {.seed = seed, .reshuffle_each_iteration = reshuffle})
                       .repeat(epoch + 1)
                       .skip(epoch * static_cast<int64_t>(n));
  for (const int64_t i : all) order.push_back(static_cast<size_t>(i));
  return order;
}

std::vector<Source> branches_of(const Pipeline& pipeline) {
  std::vector<Source> sources{pipeline.source};
  bool batched = false;
  for (const Stage& stage : pipeline.stages) {
    batched = batched || stage.op == Op::kBatch;
    if (stage.op == Op::kConcatenate || (stage.op == Op::kZip && !batched)) {
      sources.push_back(stage.other);
    }
  }
  return sources;
}

bool reads_files(const Source& source) {
  return source.kind == SourceKind::kTextLine || source.kind == SourceKind::kTfRecord ||
         source.kind == SourceKind::kListFiles;
}

Rows all_rows(const std::vector<Rows>& elements) {
  Rows rows;
  for (const Rows& each : elements) rows.insert(rows.end(), each.begin(), each.end());
  return rows;
}

Rows sorted(Rows rows) {
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace tutti::property
