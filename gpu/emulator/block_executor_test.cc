// What the emulator of blocks computes and what it finds. Each kernel here that breaks a rule must
// be found, whatever the seed; and so must each kernel without one of its barriers.
#include "gpu/emulator/block_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "gpu/kernels/reduce.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {
namespace {

struct ArrayParams {
  const float* x;
  float* out;
};

MEGASCALE_KERNEL(TestReverse, ArrayParams, 256) {
  const Global<const float> x(params.x);
  const Global<float> out(params.out);
  const Shared<float> block = DynamicShared<float>(0);
  block[ThreadIndex()] = x[ThreadIndex()];
  SyncThreads();
  out[ThreadIndex()] = block[NumThreads() - 1 - ThreadIndex()];
}

MEGASCALE_KERNEL(TestSums, ArrayParams, 256) {
  const Global<const float> x(params.x);
  const Global<float> out(params.out);
  const Shared<float> scratch = DynamicShared<float>(0);
  const float value = x[BlockIndex() * NumThreads() + ThreadIndex()];
  const float sum = ReduceBlockOnce(value, Sum(), scratch);
  SyncThreads();
  const float greatest = ReduceBlockOnce(value, Greatest(), scratch);
  if (ThreadIndex() == 0) out[2 * BlockIndex()] = sum;
  if (ThreadIndex() == 0) out[2 * BlockIndex() + 1] = greatest;
}

MEGASCALE_KERNEL(TestNeighbours, ArrayParams, 64) {
  const Global<const float> x(params.x);
  const Global<float> out(params.out);
  const Shared<float> lanes = DynamicShared<float>(0);
  lanes[ThreadIndex()] = x[ThreadIndex()];
  SyncWarp();
  const float neighbour = lanes[ThreadIndex() ^ 1];
  SyncWarp();
  lanes[ThreadIndex()] = neighbour + 1;
  out[ThreadIndex()] = lanes[ThreadIndex()];
}

MEGASCALE_KERNEL(TestCopies, ArrayParams, 64) {
  const Global<const float> x(params.x);
  const Global<float> out(params.out);
  const Shared<float> tile = DynamicShared<float>(0);
  CopyAsync<16>(tile + 4 * ThreadIndex(), x + 4 * ThreadIndex(), ThreadIndex() % 2 == 0);
  CommitCopies();
  CopyAsync<16>(tile + 4 * (NumThreads() + ThreadIndex()), x + 4 * ThreadIndex());
  CommitCopies();
  WaitCopies<0>();
  SyncThreads();
  const int other = NumThreads() - 1 - ThreadIndex();
  for (int i = 0; i < 4; ++i) {
    out[4 * ThreadIndex() + i] = tile[4 * other + i] + tile[4 * (NumThreads() + other) + i];
  }
}

MEGASCALE_KERNEL(TestDivergent, ArrayParams, 64) {
  if (ThreadIndex() % 2 == 0) SyncThreads();
}

MEGASCALE_KERNEL(TestTwoBarriers, ArrayParams, 64) {
  if (ThreadIndex() % 2 == 0) {
    SyncThreads();
  } else {
    SyncThreads();
  }
}

MEGASCALE_KERNEL(TestHalfWarp, ArrayParams, 32) {
  if (Lane() < 16) Shuffle(1.0f, 0);
}

MEGASCALE_KERNEL(TestNeverWritten, ArrayParams, 32) {
  const Shared<float> block = DynamicShared<float>(0);
  Global<float>(params.out)[0] = block[0];
}

MEGASCALE_KERNEL(TestBeyond, ArrayParams, 32) {
  const Shared<float> block = DynamicShared<float>(0);
  block[ThreadIndex() + 1] = 0;
}

MEGASCALE_KERNEL(TestSamePlace, ArrayParams, 32) {
  const Shared<float> block = DynamicShared<float>(0);
  block[ThreadIndex() / 2] = 1;
}

// out [16, 8] = x [16, 16] y [16, 8], all in bf16 but the result; y follows x.
struct ProductParams {
  const BFloat16* x;
  float* out;
};
MEGASCALE_KERNEL(TestProduct, ProductParams, 32) {
  const Global<const BFloat16> x(params.x);
  const Shared<BFloat16> tile = DynamicShared<BFloat16>(0);
  for (int i = Lane(); i < 16 * 16 + 16 * 8; i += kLanes) tile[i] = x[i];
  SyncWarp();
  uint32_t a[4], b_twice[4];
  LoadMatrices(a, tile + (Lane() % 16) * 16 + Lane() / 16 * 8);
  LoadMatricesTransposed(b_twice, tile + 16 * 16 + (Lane() % 16) * 8);
  float d[4] = {0, 0, 0, 0};
  const uint32_t b[2] = {b_twice[0], b_twice[1]};
  MultiplyAdd(d, a, b);
  const Global<float> out(params.out);
  for (int i = 0; i < 4; ++i) {
    out[(Lane() / 4 + i / 2 * 8) * 8 + Lane() % 4 * 2 + i % 2] = d[i];
  }
}

}  // namespace
}  // namespace megascale::kernels

namespace megascale::emulator {
namespace {

using kernels::ArrayParams;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<float> Numbers(size_t count) {
  std::mt19937 random(7);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(random() % 1000) / 8;
  return numbers;
}

class BlockExecutorTest : public ::testing::Test {
 protected:
  absl::Status Run(const char* name, GridOptions options) {
    return RunGrid(*FindKernel(name), options, &params_);
  }

  std::vector<float> x_ = Numbers(1024);
  std::vector<float> out_ = std::vector<float>(1024);
  ArrayParams params_ = {x_.data(), out_.data()};
};

TEST_F(BlockExecutorTest, ThreadsExchangeThroughSharedMemory) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    ASSERT_EQ(Run("TestReverse", {.threads = 256, .shared_bytes = 1024, .seed = seed}),
              absl::OkStatus());
    for (size_t i = 0; i < 256; ++i) ASSERT_EQ(out_[i], x_[255 - i]);
  }
}

TEST_F(BlockExecutorTest, BlocksReduceInAFixedOrder) {
  std::vector<float> first;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    ASSERT_EQ(
        Run("TestSums", {.grid = {4, 1, 1}, .threads = 256, .shared_bytes = 128, .seed = seed}),
        absl::OkStatus());
    for (size_t block = 0; block < 4; ++block) {
      double sum = 0;
      float greatest = 0;
      for (size_t i = 0; i < 256; ++i) {
        sum += x_[block * 256 + i];
        greatest = std::max(greatest, x_[block * 256 + i]);
      }
      EXPECT_NEAR(out_[2 * block], sum, 1e-2);
      EXPECT_EQ(out_[2 * block + 1], greatest);
    }
    const std::vector<float> now(out_.begin(), out_.begin() + 8);
    if (first.empty()) first = now;
    EXPECT_EQ(now, first);
  }
}

TEST_F(BlockExecutorTest, EachBarrierThatIsLeftOutIsMissed) {
  const struct {
    const char* kernel;
    GridOptions options;
    size_t num_barriers;
  } cases[] = {{"TestReverse", {.threads = 64, .shared_bytes = 256}, 1},
               {"TestSums", {.threads = 64, .shared_bytes = 128}, 3},
               {"TestNeighbours", {.threads = 64, .shared_bytes = 256}, 2},
               {"TestCopies", {.threads = 64, .shared_bytes = 2048}, 2}};
  for (const auto& [kernel, options, num_barriers] : cases) {
    std::set<BarrierSite> seen;
    GridOptions calm = options;
    calm.seen = &seen;
    ASSERT_EQ(Run(kernel, calm), absl::OkStatus());
    ASSERT_EQ(seen.size(), num_barriers) << kernel;
    for (const BarrierSite& site : seen) {
      GridOptions without = options;
      without.left_out = site;
      EXPECT_EQ(Run(kernel, without).code(), absl::StatusCode::kInternal) << kernel << " " << site;
    }
  }
}

TEST_F(BlockExecutorTest, CopiesArriveAfterTheirWait) {
  ASSERT_EQ(Run("TestCopies", {.threads = 64, .shared_bytes = 2048}), absl::OkStatus());
  for (size_t i = 0; i < 256; ++i) {
    const size_t at = 4 * (63 - i / 4) + i % 4;
    ASSERT_EQ(out_[i], x_[at] * ((63 - i / 4) % 2 == 0 ? 2.0f : 1.0f)) << i;
  }
}

TEST_F(BlockExecutorTest, BrokenRulesAreNamed) {
  const struct {
    const char* kernel;
    const char* finding;
  } cases[] = {
      {"TestDivergent", "waits at a barrier"},   {"TestTwoBarriers", "while others are at"},
      {"TestHalfWarp", "waits at a shuffle"},    {"TestNeverWritten", "was never written"},
      {"TestBeyond", "bytes 128 to 132 of 128"}, {"TestSamePlace", "without a barrier between"}};
  for (const auto& [kernel, finding] : cases) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const int threads = FindKernel(kernel)->threads_max;
      const absl::Status status =
          Run(kernel, {.threads = threads, .shared_bytes = 128, .seed = seed});
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << kernel;
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(kernel), HasSubstr(finding)));
    }
  }
}

TEST_F(BlockExecutorTest, TheSameSeedFindsTheSame) {
  const GridOptions options = {.threads = 32, .shared_bytes = 128, .seed = 3};
  EXPECT_EQ(Run("TestSamePlace", options), Run("TestSamePlace", options));
}

TEST_F(BlockExecutorTest, BlocksHaveWholeWarpsWithinTheKernelsLimit) {
  for (const int threads : {0, 31, 33, 512}) {
    EXPECT_EQ(Run("TestReverse", {.threads = threads, .shared_bytes = 4096}).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(TensorCoreTest, AProductOfFragmentsIsTheProductOfTheMatrices) {
  std::mt19937 random(5);
  std::vector<kernels::BFloat16> x(16 * 16 + 16 * 8);
  for (kernels::BFloat16& element : x) {
    element = kernels::ToBFloat16(static_cast<float>(random() % 17) - 8);
  }
  std::vector<float> out(16 * 8);
  const kernels::ProductParams params = {x.data(), out.data()};
  ASSERT_EQ(RunGrid(*FindKernel("TestProduct"), {.threads = 32, .shared_bytes = 768}, &params),
            absl::OkStatus());
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      float sum = 0;
      for (size_t k = 0; k < 16; ++k) {
        sum += kernels::ToFloat(x[i * 16 + k]) * kernels::ToFloat(x[256 + k * 8 + j]);
      }
      ASSERT_EQ(out[i * 8 + j], sum) << i << ", " << j;
    }
  }
}

}  // namespace
}  // namespace megascale::emulator
