// The kernels of the optimizers, against the float64 reference.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gpu/ops/operators.h"
#include "gpu/ops/testing/block_launcher.h"
#include "gtest/gtest.h"
#include "runtime/ops/conformance.h"
#include "runtime/ops/testing/test_numbers.h"

namespace megascale::gpu {
namespace {

using ops::AdamWArgs;
using ops::Number;
using ops::TestStepNumbers;
using ops::TrustStepArgs;
using ops::Twins;
using ops::TwinVector;
using ops::Vector;
using tensor::DType;

// Around the pack of 4 and the block of 8,192; the last one has several blocks.
constexpr int64_t kSizes[] = {0, 1, 3, 17, 256, 8191, 8192, 8193, 40'001};

const auto kExact = [](const auto& twin) { return twin.exact; };
const auto kTested = [](const auto& twin) { return twin.tested; };

TwinVector Part(const TwinVector& all, int64_t first, int64_t size) {
  const auto cut = [&](const Vector& x) {
    return Vector{x.as<char>() + first * static_cast<int64_t>(tensor::SizeOf(x.dtype)), x.dtype,
                  size};
  };
  return {cut(all.exact), cut(all.tested)};
}

std::vector<float> Values(const Vector& x) {
  return std::vector<float>(x.as<float>(), x.as<float>() + x.size);
}

class OptimizerTest : public ::testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<ops::Ops> exact_ = ops::MakeReferenceOps();
};
INSTANTIATE_TEST_SUITE_P(Gpu, OptimizerTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) {
                           return info.param == DType::kF32 ? "F32" : "BF16";
                         });

// The state of one slice of parameters. `offsets`: elements by which each vector begins after a
// pack's boundary.
struct Slice {
  Slice(Twins& twins, int64_t size, std::array<int64_t, 4> offsets = {})
      : master(Part(twins.FloatVector(size + 4), offsets[0], size)),
        exp_avg(Part(twins.FloatVector(size + 4, 0), offsets[1], size)),
        exp_avg_sq(Part(twins.FloatVector(size + 4, 0), offsets[1], size)),
        grad(Part(twins.FloatVector(size + 4), offsets[2], size)),
        copy(Part(twins.OutputVector(size + 4), offsets[3], size)) {}

  template <typename Side>
  AdamWArgs Step(Side side, const Vector& step_numbers, double weight_decay = 0.1) const {
    return {.master = side(master),
            .exp_avg = side(exp_avg),
            .exp_avg_sq = side(exp_avg_sq),
            .grad = side(grad),
            .compute_copy = side(copy),
            .step_numbers = step_numbers,
            .weight_decay = weight_decay};
  }
  // As LAMB uses it: the update overwrites the gradient.
  template <typename Side>
  AdamWArgs Update(Side side, const Vector& step_numbers) const {
    AdamWArgs args = Step(side, step_numbers);
    args.compute_copy = {};
    args.update = args.grad;
    return args;
  }
  void ExpectClose(Twins& twins) const {
    twins.ExpectClose("AdamW", master);
    twins.ExpectClose("AdamW", exp_avg);
    twins.ExpectClose("AdamW", exp_avg_sq);
    twins.ExpectClose("AdamW", copy);
  }

  TwinVector master, exp_avg, exp_avg_sq, grad, copy;
};

TEST_P(OptimizerTest, AdamWMatchesOverThreeSteps) {
  for (const int64_t size : kSizes) {
    SCOPED_TRACE(size);
    Twins twins(GetParam());
    Slice slice(twins, size);
    for (int64_t step = 1; step <= 3; ++step) {
      TestStepNumbers numbers(0.01, step, 0.5);
      slice.grad = twins.FloatVector(size);
      const AdamWArgs exact = slice.Step(kExact, numbers.vector());
      const AdamWArgs tested = slice.Step(kTested, numbers.vector());
      exact_->AdamW({&exact, 1});
      BlockLauncher launcher;
      AdamW(launcher, {&tested, 1});
    }
    slice.ExpectClose(twins);
  }
}

// The CPU's kernels do the same operations in the same order.
TEST_P(OptimizerTest, AdamWGivesTheBitsOfTheCpu) {
  const std::unique_ptr<ops::Ops> cpu = ops::MakeCpuOps(GetParam(), 1);
  Twins twins(GetParam(), 7), same(GetParam(), 7);
  const Slice slice(twins, 1000), of_cpu(same, 1000);
  for (const int64_t step : {1, 2, 1000}) {
    TestStepNumbers numbers(0.01, step, 0.3);
    const AdamWArgs tested = slice.Step(kTested, numbers.vector());
    const AdamWArgs on_cpu = of_cpu.Step(kTested, numbers.vector());
    BlockLauncher launcher;
    AdamW(launcher, {&tested, 1});
    cpu->AdamW({&on_cpu, 1});
  }
  EXPECT_EQ(Values(slice.master.tested), Values(of_cpu.master.tested));
  EXPECT_EQ(Values(slice.exp_avg.tested), Values(of_cpu.exp_avg.tested));
  EXPECT_EQ(Values(slice.exp_avg_sq.tested), Values(of_cpu.exp_avg_sq.tested));
}

TEST_P(OptimizerTest, AdamWUpdatesMatchOverThreeStepsAndLeaveTheMaster) {
  for (const int64_t size : kSizes) {
    SCOPED_TRACE(size);
    Twins twins(GetParam());
    Slice slice(twins, size);
    const std::vector<float> before = Values(slice.master.tested);
    for (int64_t step = 1; step <= 3; ++step) {
      TestStepNumbers numbers(/*lr=*/1, step, 0.5);  // the rate has no effect
      slice.grad = twins.FloatVector(size);
      const AdamWArgs exact = slice.Update(kExact, numbers.vector());
      const AdamWArgs tested = slice.Update(kTested, numbers.vector());
      exact_->AdamW({&exact, 1});
      BlockLauncher launcher;
      AdamW(launcher, {&tested, 1});
      twins.ExpectClose("AdamWUpdate", slice.grad);
    }
    twins.ExpectClose("AdamW", slice.exp_avg);
    twins.ExpectClose("AdamW", slice.exp_avg_sq);
    EXPECT_EQ(before, Values(slice.master.tested));
  }
}

TEST_P(OptimizerTest, SlicesThatBeginAnywhereMatch) {
  const std::array<int64_t, 4> all_offsets[] = {{1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3},
                                                {1, 0, 0, 0}, {0, 0, 1, 0}, {3, 3, 3, 1}};
  for (const std::array<int64_t, 4>& offsets : all_offsets) {
    for (const int64_t size : {1, 2, 4, 9, 8190, 8193}) {
      SCOPED_TRACE(::testing::Message() << size << " from " << ::testing::PrintToString(offsets));
      Twins twins(GetParam());
      const Slice slice(twins, size, offsets);
      TestStepNumbers numbers(0.01, 2, 0.5);
      const AdamWArgs exact = slice.Step(kExact, numbers.vector());
      const AdamWArgs tested = slice.Step(kTested, numbers.vector());
      exact_->AdamW({&exact, 1});
      BlockLauncher launcher;
      AdamW(launcher, {&tested, 1});
      slice.ExpectClose(twins);
    }
  }
}

// Lists that fill a launch and more, whose slices differ in size, decay, kernel and step.
TEST_P(OptimizerTest, AListOfSlicesIsWorkedOnAsEachByItself) {
  for (const int count : {1, 3, 63, 64, 100}) {
    SCOPED_TRACE(count);
    Twins twins(GetParam());
    TestStepNumbers one(0.01, 3, 0.5), other(0.1, 1);
    std::vector<Slice> slices;
    std::vector<AdamWArgs> exact, tested;
    for (int i = 0; i < count; ++i) {
      slices.emplace_back(twins, int64_t{i} * 377 % 1000 + (i % 40 == 1 ? 9000 : 0));
      const Vector numbers = (i / 20 % 3 == 1 ? other : one).vector();
      const double decay = i % 2 == 0 ? 0.1 : 0.0;
      exact.push_back(slices.back().Step(kExact, numbers, decay));
      tested.push_back(slices.back().Step(kTested, numbers, decay));
      if (i % 5 == 4) exact.back().compute_copy = tested.back().compute_copy = {};
      if (i % 7 == 6) exact.back() = slices.back().Update(kExact, numbers);
      if (i % 7 == 6) tested.back() = slices.back().Update(kTested, numbers);
    }
    for (const AdamWArgs& args : exact) exact_->AdamW({&args, 1});
    BlockLauncher launcher;
    AdamW(launcher, tested);
    for (size_t i = 0; i < slices.size(); ++i) {
      twins.ExpectClose("AdamW", slices[i].master);
      twins.ExpectClose("AdamW", slices[i].exp_avg);
      twins.ExpectClose("AdamW", slices[i].exp_avg_sq);
      if (tested[i].update) {
        twins.ExpectClose("AdamWUpdate", slices[i].grad);
      } else if (tested[i].compute_copy) {
        twins.ExpectClose("AdamW", slices[i].copy);
      }
    }
  }
}

// Sums of two tensors by part; the second tensor's update has the norm 0, so its ratio is 1.
constexpr int kParts = 3;
std::array<double, kParts * 4> TrustSums() { return {1, 4, 2, 0, 3, 0.5, 1, 0, 0, 2, 5, 0}; }

TEST_P(OptimizerTest, TrustStepsMatch) {
  for (const int64_t size : kSizes) {
    for (const int64_t first : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << size << " from " << first);
      Twins twins(GetParam());
      auto sums = TrustSums();
      const TwinVector one = Part(twins.FloatVector(size + 1), first, size);
      const TwinVector two = twins.FloatVector(size);
      const TwinVector update = twins.FloatVector(size);
      TestStepNumbers numbers(0.3, 1);
      const auto list = [&](auto side) {
        TrustStepArgs of_one = {.master = side(one),
                                .update = side(update),
                                .trust_sums = {sums.data(), DType::kF64, kParts * 4},
                                .num_parts = kParts,
                                .step_numbers = numbers.vector()};
        TrustStepArgs of_two = of_one;
        of_two.master = side(two), of_two.first_sum = 2;
        return std::vector<TrustStepArgs>{of_one, of_two};
      };
      exact_->TrustStep(list(kExact));
      BlockLauncher launcher;
      TrustStep(launcher, list(kTested));
      twins.ExpectClose("AddScaled", one);
      twins.ExpectClose("AddScaled", two);
    }
  }
}

TEST_P(OptimizerTest, AListOfTrustStepsFillsSeveralLaunches) {
  Twins twins(GetParam());
  TestStepNumbers numbers(0.3, 1);
  std::vector<double> sums;
  std::vector<TwinVector> masters;
  std::vector<TrustStepArgs> exact, tested;
  for (int i = 0; i < 2 * 100; ++i) sums.push_back(1 + (i * 37) % 11);
  for (int i = 0; i < 100; ++i) {
    const int64_t size = int64_t{i} * 131 % 500;
    masters.push_back(twins.FloatVector(size));
    const TwinVector update = twins.FloatVector(size);
    const auto args = [&](auto side) {
      return TrustStepArgs{.master = side(masters.back()),
                           .update = side(update),
                           .trust_sums = ops::Numbers(&sums),
                           .first_sum = int64_t{2} * i,
                           .step_numbers = numbers.vector()};
    };
    exact.push_back(args(kExact));
    tested.push_back(args(kTested));
  }
  exact_->TrustStep(exact);
  BlockLauncher launcher;
  TrustStep(launcher, tested);
  for (const TwinVector& master : masters) twins.ExpectClose("AddScaled", master);
}

TEST_P(OptimizerTest, AStepThatIsNotFiniteChangesNothing) {
  constexpr int64_t kSize = 1000;
  Twins twins(GetParam());
  const Slice slice(twins, kSize);
  const auto state = [&] {
    return std::array{Values(slice.master.tested), Values(slice.exp_avg.tested),
                      Values(slice.exp_avg_sq.tested), Values(slice.grad.tested)};
  };
  const auto before = state();
  TestStepNumbers numbers(0.01, 1, std::nan(""));
  numbers.numbers[ops::kIsFinite] = 0;
  const AdamWArgs lists[] = {slice.Step(kTested, numbers.vector()),
                             slice.Update(kTested, numbers.vector())};
  BlockLauncher launcher;
  AdamW(launcher, lists);
  std::array<double, 2> sums = {1, std::numeric_limits<double>::infinity()};
  const TrustStepArgs trust = {.master = slice.master.tested,
                               .update = slice.grad.tested,
                               .trust_sums = {sums.data(), DType::kF64, 2},
                               .step_numbers = numbers.vector()};
  TrustStep(launcher, {&trust, 1});
  EXPECT_EQ(before, state());
}

TEST_P(OptimizerTest, BitsDoNotDependOnTheOrderOfThreads) {
  const auto bits = [&](uint64_t seed) {
    Twins twins(GetParam());
    const Slice slice(twins, 20'001);
    TestStepNumbers numbers(0.01, 2, 0.5);
    auto sums = TrustSums();
    const AdamWArgs args[] = {slice.Step(kTested, numbers.vector())};
    const TrustStepArgs trust[] = {{.master = slice.master.tested,
                                    .update = slice.exp_avg.tested,
                                    .trust_sums = {sums.data(), DType::kF64, kParts * 4},
                                    .num_parts = kParts,
                                    .step_numbers = numbers.vector()}};
    BlockLauncher launcher(seed);
    AdamW(launcher, args);
    TrustStep(launcher, trust);
    return std::array{Values(slice.master.tested), Values(slice.exp_avg.tested),
                      Values(slice.exp_avg_sq.tested)};
  };
  const auto first = bits(1);
  EXPECT_EQ(bits(100), first);
  EXPECT_EQ(bits(2000), first);
}

TEST(CombineNormsTest, NormsOfRanksAreCombinedInTheirOrder) {
  const double inf = std::numeric_limits<double>::infinity();
  struct Case {
    std::vector<double> ranks;
    double clip_grad;
  };
  for (const Case& given :
       {Case{{16, 2, 0}, 1}, Case{{9, 2, 1, 7, 3, 2}, 8}, Case{{16, 2, 0, 0, 1, 0}, 0},
        Case{{inf, 2, 0, 1, 1, 0}, 1}, Case{{1, std::nan(""), 1, 1, 1, 0}, 2},
        Case{{0.1, 0.7, 0, 0.2, 0.1, 0, 0.3, 0.3, 0}, 0.3},
        Case{{0.1, 0.7, 0, 0.2, 0.1, 0, 0.3, 0.3, 0, 0.7, 0.9, 2, 0.6, 1.1, 1, 0.4, 0.1, 0},
             0.3}}) {
    std::vector<double> ranks = given.ranks;
    TestStepNumbers exact(0.5, 7, 99), tested(0.5, 7, 99);
    const auto args = [&](TestStepNumbers& numbers) {
      return ops::CombineNormsArgs{.ranks = ops::Numbers(&ranks),
                                   .clip_grad = given.clip_grad,
                                   .step_numbers = numbers.vector()};
    };
    ops::MakeReferenceOps()->CombineNorms(args(exact));
    BlockLauncher launcher;
    CombineNorms(launcher, args(tested));
    for (int i = 0; i < ops::kNumStepNumbers; ++i) {
      if (std::isnan(exact.numbers[i])) {
        EXPECT_TRUE(std::isnan(tested.numbers[i])) << i;
      } else {
        EXPECT_EQ(tested.numbers[i], exact.numbers[i]) << i;
      }
    }
    std::array<double, ops::kNumRankNumbers> exact_sums = {9, 9, 9}, tested_sums = {8, 8, 8};
    const auto sums_to = [&](std::array<double, ops::kNumRankNumbers>& sums) {
      return ops::CombineNormsArgs{.ranks = ops::Numbers(&ranks),
                                   .sums = {sums.data(), DType::kF64, ops::kNumRankNumbers}};
    };
    ops::MakeReferenceOps()->CombineNorms(sums_to(exact_sums));
    CombineNorms(launcher, sums_to(tested_sums));
    EXPECT_EQ(std::memcmp(&tested_sums, &exact_sums, sizeof(exact_sums)), 0);
  }
}

}  // namespace
}  // namespace megascale::gpu
