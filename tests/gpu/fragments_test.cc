// The words for tensor cores beside the tables of the PTX manual, which are written out here: which
// lane and register holds which element. All numbers are small integers, so every sum is exact.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/cuda/cuda_status.h"
#include "gpu/cuda/kernel_library.h"
#include "gpu/kernels/fragments_params.h"
#include "runtime/tensor/tensor.h"
#include "tests/gpu/gpu_under_test.h"

namespace megascale::gpu {
namespace {

using kernels::kFragmentCols;
using kernels::kFragmentNumbers;
using kernels::kFragmentRows;
using kernels::kFragmentWords;

constexpr int kLanes = 32;

int AElement(int row, int col) { return (row * 5 + col * 3) % 17 - 8; }
int BElement(int row, int col) { return (row * 7 + col * 2) % 13 - 6; }

std::vector<uint16_t> Bits(int (*element)(int row, int col)) {
  std::vector<uint16_t> bits;
  for (int row = 0; row < kFragmentRows; ++row) {
    for (int col = 0; col < kFragmentCols; ++col) {
      bits.push_back(tensor::ToBFloat16(static_cast<float>(element(row, col))).bits);
    }
  }
  return bits;
}

// A pair of bf16 in one register, the first in its lower half.
uint32_t PairOfA(int row, int col, int next_row, int next_col) {
  const auto bits = [](int r, int c) {
    return uint32_t{tensor::ToBFloat16(static_cast<float>(AElement(r, c))).bits};
  };
  return bits(row, col) | bits(next_row, next_col) << 16;
}

class FragmentsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto gpu = OpenGpuUnderTest();
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    const cuda::CudaApi& cuda = *gpu->cuda;
    auto library = cuda::KernelLibrary::Load(&cuda, gpu->images);
    ASSERT_TRUE(library.ok()) << library.status();
    const std::vector<uint16_t> a = Bits(&AElement), b = Bits(&BElement);
    const size_t matrix_bytes = a.size() * sizeof(uint16_t);
    const size_t words_bytes = words_.size() * sizeof(uint32_t);
    const size_t numbers_bytes = numbers_.size() * sizeof(float);
    void* memory = nullptr;
    Expect(cuda, cuda.cudaMalloc(&memory, 2 * matrix_bytes + words_bytes + numbers_bytes));
    cudaStream_t stream = nullptr;
    Expect(cuda, cuda.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto* const a_there = static_cast<std::byte*>(memory);
    std::byte* const b_there = a_there + matrix_bytes;
    auto* const words = reinterpret_cast<uint32_t*>(b_there + matrix_bytes);
    auto* const numbers = reinterpret_cast<float*>(words + words_.size());
    Expect(cuda, cuda.cudaMemcpyAsync(a_there, a.data(), matrix_bytes, cudaMemcpyDefault, stream));
    Expect(cuda, cuda.cudaMemcpyAsync(b_there, b.data(), matrix_bytes, cudaMemcpyDefault, stream));
    const absl::Status launched = library.value()->Launch(
        stream, "ShowFragments", {.threads = kLanes, .shared_bytes = 2 * matrix_bytes},
        kernels::ShowFragmentsParams{a_there, b_there, words, numbers});
    ASSERT_TRUE(launched.ok()) << launched;
    Expect(cuda,
           cuda.cudaMemcpyAsync(words_.data(), words, words_bytes, cudaMemcpyDefault, stream));
    Expect(cuda, cuda.cudaMemcpyAsync(numbers_.data(), numbers, numbers_bytes, cudaMemcpyDefault,
                                      stream));
    Expect(cuda, cuda.cudaStreamSynchronize(stream));
    Expect(cuda, cuda.cudaStreamDestroy(stream));
    Expect(cuda, cuda.cudaFree(memory));
  }

  static void Expect(const cuda::CudaApi& cuda, cudaError_t error) {
    EXPECT_EQ(error, cudaSuccess) << cuda.cudaGetErrorString(error);
  }

  uint32_t Word(int index, int lane) const {
    return words_[static_cast<size_t>(index * kLanes + lane)];
  }
  float Number(int index, int lane) const {
    return numbers_[static_cast<size_t>(index * kLanes + lane)];
  }

  std::vector<uint32_t> words_ = std::vector<uint32_t>(kFragmentWords * kLanes);
  std::vector<float> numbers_ = std::vector<float>(kFragmentNumbers * kLanes);
};

// Register i of ldmatrix.x4 holds matrix i: of its row lane / 4 the columns 2 * (lane % 4) and the
// next. The matrices are the four quarters of [16, 16], down the rows first.
TEST_F(FragmentsTest, LoadedMatricesHaveThePlacesOfThePtxManual) {
  for (int i = 0; i < 4; ++i) {
    const int first_row = i % 2 * 8, first_col = i / 2 * 8;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = first_row + lane / 4, col = first_col + lane % 4 * 2;
      EXPECT_EQ(Word(i, lane), PairOfA(row, col, row, col + 1)) << i << ", lane " << lane;
    }
  }
}

TEST_F(FragmentsTest, LoadedAndTransposedMatricesHaveThePlacesOfThePtxManual) {
  for (int i = 0; i < 4; ++i) {
    const int first_row = i % 2 * 8, first_col = i / 2 * 8;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = first_row + lane % 4 * 2, col = first_col + lane / 4;
      EXPECT_EQ(Word(4 + i, lane), PairOfA(row, col, row + 1, col)) << i << ", lane " << lane;
    }
  }
}

// A lane has four numbers of a result [16, 8]: those in rows lane / 4 and lane / 4 + 8, and in
// columns 2 * (lane % 4) and the next.
TEST_F(FragmentsTest, ProductsHaveThePlacesAndSumsOfThePtxManual) {
  const auto expect_equal = [&](int first, int num_cols, const auto& wanted) {
    for (int i = 0; i < num_cols / 8 * 4; ++i) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int row = lane / 4 + i % 4 / 2 * 8;
        const int col = i / 4 * 8 + lane % 4 * 2 + i % 2;
        EXPECT_EQ(Number(first + i, lane), static_cast<float>(wanted(row, col)))
            << "number " << first + i << ", lane " << lane;
      }
    }
  };
  expect_equal(0, kFragmentRows, [](int row, int col) {
    int sum = 0;
    for (int k = 0; k < kFragmentCols; ++k) sum += AElement(row, k) * BElement(col, k);
    return sum;
  });
  expect_equal(8, kFragmentCols, [](int row, int col) {
    int sum = 0;
    for (int k = 0; k < kFragmentRows; ++k) sum += AElement(row, k) * BElement(k, col);
    return sum;
  });
}

}  // namespace
}  // namespace megascale::gpu
