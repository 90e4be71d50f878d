// SPDX-License-Identifier: Apache-2.0
//
// The contract of all_reduce and all_reduce_, against plain loops. Values are small
// integers, so that every order of addition gives the same bits.

#include <limits>
#include <map>
#include <optional>

#include "tutti/nest/indexed_slices.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::all_reduce_contract_test {

using test::bit_equal;
using test::my_id;
using test::tensor;

constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kProduct};

at::Tensor values_of(int replica, at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  const int64_t count = c10::multiply_integers(shape);
  return (at::arange(count, at::kLong) * 5 + replica * 3)
      .remainder(4)
      .add(1)
      .reshape(shape)
      .to(dtype);
}

// LibTorch's own operators, replica by replica.
at::Tensor expected_of(ReduceOp op, int replicas, at::IntArrayRef shape,
                       at::ScalarType dtype = at::kDouble) {
  at::Tensor result = values_of(0, shape, at::kDouble);
  for (int r = 1; r < replicas; ++r) {
    const at::Tensor next = values_of(r, shape, at::kDouble);
    result = op == ReduceOp::kMin       ? at::minimum(result, next)
             : op == ReduceOp::kMax     ? at::maximum(result, next)
             : op == ReduceOp::kProduct ? result * next
                                        : result + next;
  }
  if (op == ReduceOp::kMean) result = result / replicas;
  return result.to(dtype);
}

struct Mixed {
  at::Tensor dense;
  double scalar = 0;
  int64_t count = 0;
  std::optional<IndexedSlices> sparse;
  std::map<std::string, std::vector<at::Tensor>> more;
};

TEST_P(StrategyContract, AllReduceCombinesTensorsByEveryOp) {
  for (const ReduceOp op : kAllOps) {
    const auto results = strategy().run([op] {
      return get_replica_context()->all_reduce(op, values_of(my_id(), {3, 5}));
    });
    for (const at::Tensor& result : results) {
      EXPECT_TRUE(at::allclose(result, expected_of(op, n(), {3, 5}), 1e-15, 0)) << op;
    }
  }
}

TEST_P(StrategyContract, AllReduceResultsHaveMemoryOfTheirOwn) {
  for (const int64_t size : {4, 60'000}) {  // small, and large enough for the arena
    auto results = strategy().run([size] {
      const at::Tensor mine = values_of(my_id(), {size});
      const at::Tensor reduced = get_replica_context()->all_reduce(ReduceOp::kSum, mine);
      EXPECT_TRUE(bit_equal(mine, values_of(my_id(), {size})));
      return reduced;
    });
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(bit_equal(results[i], expected_of(ReduceOp::kSum, n(), {size})));
      results[i].fill_(-1);
    }
  }
}

TEST_P(StrategyContract, AllReduceTakesEveryShape) {
  const std::vector<std::vector<int64_t>> shapes = {{},        {0},    {3, 0, 2}, {1},
                                                    {1, 1, 7}, {1025}, {70'001}};
  for (const auto& shape : shapes) {
    const auto results = strategy().run([&] {
      return get_replica_context()->all_reduce(ReduceOp::kSum, values_of(my_id(), shape));
    });
    for (const at::Tensor& result : results) {
      EXPECT_TRUE(bit_equal(result, expected_of(ReduceOp::kSum, n(), shape)));
    }
  }
}

TEST_P(StrategyContract, AllReduceTakesEveryDtype) {
  for (const at::ScalarType dtype :
       {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kChar, at::kShort, at::kInt,
        at::kLong, at::kByte, at::kComplexFloat, at::kComplexDouble}) {
    const auto results = strategy().run([dtype] {
      return get_replica_context()->all_reduce(ReduceOp::kSum, values_of(my_id(), {33}, dtype));
    });
    for (const at::Tensor& result : results) {
      EXPECT_TRUE(bit_equal(result, expected_of(ReduceOp::kSum, n(), {33}, dtype)));
    }
  }
}

TEST_P(StrategyContract, AllReduceMeanOfIntegersIsAFloat) {
  const auto results = strategy().run([] {
    return get_replica_context()->all_reduce(ReduceOp::kMean, values_of(my_id(), {9}, at::kInt));
  });
  for (const at::Tensor& result : results) {
    EXPECT_EQ(result.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::allclose(result, expected_of(ReduceOp::kMean, n(), {9}), 1e-15, 0));
  }
}

TEST_P(StrategyContract, AllReduceTakesNonContiguousTensors) {
  const auto results = strategy().run([] {
    ReplicaContext* context = get_replica_context();
    const at::Tensor turned = context->all_reduce(ReduceOp::kSum, values_of(my_id(), {6, 4}).t());
    const at::Tensor strided =
        context->all_reduce(ReduceOp::kSum, values_of(my_id(), {10}).slice(0, 1, 10, 3));
    const at::Tensor expanded =
        context->all_reduce(ReduceOp::kSum, values_of(my_id(), {1, 3}).expand({4, 3}));
    return std::tuple(turned, strided, expanded);
  });
  for (const auto& [turned, strided, expanded] : results) {
    EXPECT_TRUE(bit_equal(turned, expected_of(ReduceOp::kSum, n(), {6, 4}).t()));
    EXPECT_TRUE(bit_equal(strided, expected_of(ReduceOp::kSum, n(), {10}).slice(0, 1, 10, 3)));
    EXPECT_TRUE(bit_equal(expanded, expected_of(ReduceOp::kSum, n(), {1, 3}).expand({4, 3})));
  }
}

TEST_P(StrategyContract, AllReduceCombinesScalars) {
  const auto results = strategy().run([] {
    ReplicaContext* context = get_replica_context();
    const int id = context->replica_id_in_sync_group();
    return std::tuple(context->all_reduce(ReduceOp::kSum, id + 1),
                      context->all_reduce(ReduceOp::kMean, id * 1.0),
                      context->all_reduce(ReduceOp::kMax, static_cast<int8_t>(id)),
                      context->all_reduce(ReduceOp::kMin, id + 2.5F));
  });
  for (const auto& [sum, mean, max, min] : results) {
    EXPECT_EQ(sum, n() * (n() + 1) / 2);
    EXPECT_DOUBLE_EQ(mean, (n() - 1) / 2.0);
    EXPECT_EQ(max, n() - 1);
    EXPECT_FLOAT_EQ(min, 2.5F);
  }
}

TEST_P(StrategyContract, AllReduceTakesNestsOfTensorsScalarsAndSlices) {
  const auto results = strategy().run([] {
    const int id = my_id();
    const Mixed mine{
        values_of(id, {2}),
        id + 0.5,
        id,
        IndexedSlices(values_of(id, {id + 1, 2}), at::full({id + 1}, id, at::kLong), {8, 2}),
        {{"a", {values_of(id, {3})}}, {"b", {values_of(id, {}), values_of(id, {0})}}}};
    return get_replica_context()->all_reduce(ReduceOp::kSum, mine);
  });
  std::vector<at::Tensor> rows;
  for (int i = 0; i < n(); ++i) rows.push_back(values_of(i, {i + 1, 2}));
  for (const Mixed& result : results) {
    EXPECT_TRUE(bit_equal(result.dense, expected_of(ReduceOp::kSum, n(), {2})));
    EXPECT_DOUBLE_EQ(result.scalar, n() * (n() - 1) / 2 + 0.5 * n());
    EXPECT_EQ(result.count, n() * (n() - 1) / 2);
    EXPECT_TRUE(bit_equal(result.sparse->values(), at::cat(rows)));
    EXPECT_EQ(result.sparse->indices()[-1].item<int64_t>(), n() - 1);
    EXPECT_EQ(result.sparse->dense_shape(), (std::vector<int64_t>{8, 2}));
    EXPECT_TRUE(bit_equal(result.more.at("a")[0], expected_of(ReduceOp::kSum, n(), {3})));
    EXPECT_TRUE(bit_equal(result.more.at("b")[0], expected_of(ReduceOp::kSum, n(), {})));
    EXPECT_EQ(result.more.at("b")[1].numel(), 0);
  }
}

TEST_P(StrategyContract, AllReduceMeanOfSlicesDividesByTheReplicas) {
  const auto results = strategy().run([] {
    const IndexedSlices mine(at::full({1, 1}, 6.0, at::kDouble), tensor<int64_t>({my_id()}),
                             {8, 1});
    return get_replica_context()->all_reduce(ReduceOp::kMean, mine);
  });
  for (const IndexedSlices& result : results) {
    EXPECT_DOUBLE_EQ(result.to_dense()[n() - 1][0].item<double>(), 6.0 / n());
  }
}

TEST_P(StrategyContract, AllReduceGivesTheSameBitsForEveryPackSize) {
  const auto reduce_many = [&](int64_t bytes_per_pack) {
    return strategy().run([&] {
      std::vector<at::Tensor> many;
      for (int64_t i = 0; i < 20; ++i) {
        many.push_back(test::random_tensor({(i * 37) % 11 * 300},
                                           i % 3 == 0 ? at::kFloat : at::kDouble,
                                           static_cast<uint64_t>(100 * my_id() + i)));
      }
      return get_replica_context()->all_reduce(ReduceOp::kSum, many,
                                               {.bytes_per_pack = bytes_per_pack});
    });
  };
  const auto one_pack = reduce_many(0);
  for (const int64_t bytes : {1, 100, 5'000, 1 << 20}) {
    const auto packed = reduce_many(bytes);
    for (size_t r = 0; r < packed.size(); ++r) {
      for (size_t i = 0; i < packed[r].size(); ++i) {
        EXPECT_TRUE(bit_equal(packed[r][i], one_pack[r][i]));
        EXPECT_TRUE(bit_equal(packed[r][i], one_pack[0][i]));
      }
    }
  }
  EXPECT_TUTTI_ERROR(reduce_many(-1), ErrorCode::kInvalidArgument, "bytes_per_pack is -1");
}

TEST_P(StrategyContract, AllReduceRefusesWhatCannotBeReduced) {
  const auto refuse = [&](const auto& make, ReduceOp op) {
    strategy().run([&] { get_replica_context()->all_reduce(op, make()); });
  };
  EXPECT_TUTTI_ERROR(refuse([] { return at::ones({2}, at::kBool); }, ReduceOp::kSum),
                     ErrorCode::kInvalidArgument, "all_reduce", "bool");
  EXPECT_TUTTI_ERROR(refuse([] { return true; }, ReduceOp::kMax), ErrorCode::kInvalidArgument,
                     "leaf 0 is a bool");
  EXPECT_TUTTI_ERROR(refuse([] { return std::string("x"); }, ReduceOp::kSum),
                     ErrorCode::kInvalidArgument, "string");
  EXPECT_TUTTI_ERROR(refuse([] { return 3; }, ReduceOp::kMean), ErrorCode::kInvalidArgument,
                     "C++ integer");
  EXPECT_TUTTI_ERROR(refuse([] { return std::pair(1, at::Tensor()); }, ReduceOp::kSum),
                     ErrorCode::kInvalidArgument, "leaf 1", "undefined");
  EXPECT_TUTTI_ERROR(refuse(
                         [] {
                           return at::ones({2, 2}).to_sparse();
                         },
                         ReduceOp::kSum),
                     ErrorCode::kInvalidArgument, "IndexedSlices");
  EXPECT_TUTTI_ERROR(refuse([] { return at::ones({2}, at::kComplexFloat); }, ReduceOp::kMin),
                     ErrorCode::kInvalidArgument, "complex64", "kMin");
  EXPECT_TUTTI_ERROR(refuse(
                         [] {
                           return IndexedSlices(at::ones({1, 1}), tensor<int64_t>({0}));
                         },
                         ReduceOp::kMax),
                     ErrorCode::kInvalidArgument, "IndexedSlices", "kMax");
}

TEST_P(StrategyContract, AllReduceInPlaceKeepsTheMemory) {
  for (const int64_t size : {1, 7, 50'000}) {
    const auto results = strategy().run([size] {
      Mixed mine{values_of(my_id(), {size}), 1.5, my_id(), std::nullopt, {}};
      const void* before = mine.dense.data_ptr();
      get_replica_context()->all_reduce_(ReduceOp::kSum, mine);
      EXPECT_EQ(mine.dense.data_ptr(), before);
      return mine;
    });
    for (const Mixed& result : results) {
      EXPECT_TRUE(bit_equal(result.dense, expected_of(ReduceOp::kSum, n(), {size})));
      EXPECT_DOUBLE_EQ(result.scalar, 1.5 * n());
      EXPECT_EQ(result.count, n() * (n() - 1) / 2);
    }
  }
}

TEST_P(StrategyContract, AllReduceInPlaceRefusesWhatItCannotWrite) {
  const auto refuse = [&](at::Tensor (*make)(), ReduceOp op) {
    strategy().run([&] {
      at::Tensor mine = make();
      get_replica_context()->all_reduce_(op, mine);
    });
  };
  EXPECT_TUTTI_ERROR(refuse(
                         [] {
                           return at::ones({2, 3}).t();
                         },
                         ReduceOp::kSum),
                     ErrorCode::kInvalidArgument, "all_reduce_", "not contiguous");
  EXPECT_TUTTI_ERROR(refuse([] { return at::ones({2}).requires_grad_(true); }, ReduceOp::kSum),
                     ErrorCode::kInvalidArgument, "requires a gradient");
  EXPECT_TUTTI_ERROR(refuse([] { return at::ones({2}, at::kInt); }, ReduceOp::kMean),
                     ErrorCode::kInvalidArgument, "int32[2]", "use all_reduce");
  EXPECT_TUTTI_ERROR(refuse([] { return at::Tensor(); }, ReduceOp::kSum),
                     ErrorCode::kInvalidArgument, "undefined");
  EXPECT_NO_THROW(strategy().run([] {
    const c10::NoGradGuard no_grad;
    at::Tensor weights = at::ones({2}).requires_grad_(true);
    get_replica_context()->all_reduce_(ReduceOp::kSum, weights);
  }));
}

}  // namespace tutti::all_reduce_contract_test
