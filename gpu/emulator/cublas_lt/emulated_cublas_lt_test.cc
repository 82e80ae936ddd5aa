#include "gpu/emulator/cublas_lt/emulated_cublas_lt.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "gpu/emulator/cublas_lt/algorithms.h"
#include "gtest/gtest.h"

namespace megascale::emulator {
namespace {

// D [4, 2] = A [4, 8] B [8, 2] in bf16 with an fp32 result, column-major.
class EmulatedCublasLt : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(api_.cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(api_.cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    a_ = Layout(CUDA_R_16BF, 4, 8, 8);
    b_ = Layout(CUDA_R_16BF, 8, 2, 8);
    d_ = Layout(CUDA_R_32F, 4, 2, 4);
    ASSERT_EQ(api_.cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
  }

  cublasLtMatrixLayout_t Layout(cudaDataType type, uint64_t rows, uint64_t cols, int64_t distance) {
    cublasLtMatrixLayout_t layout = nullptr;
    EXPECT_EQ(api_.cublasLtMatrixLayoutCreate(&layout, type, rows, cols, distance),
              CUBLAS_STATUS_SUCCESS);
    return layout;
  }
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    EXPECT_EQ(api_.cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)),
              CUBLAS_STATUS_SUCCESS);
  }
  template <typename T>
  void Prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    EXPECT_EQ(
        api_.cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)),
        CUBLAS_STATUS_SUCCESS);
  }

  cublasStatus_t AskHeuristic() {
    results_.resize(100);
    int num_results = 0;
    const cublasStatus_t status = api_.cublasLtMatmulAlgoGetHeuristic(
        handle_, operation_, a_, b_, d_, d_, preference_, 100, results_.data(), &num_results);
    results_.resize(static_cast<size_t>(num_results));
    return status;
  }
  // Multiplies with the first algorithm of `results_`.
  cublasStatus_t Multiply(const void* a, const void* b, float* d, size_t workspace_bytes = 0) {
    return api_.cublasLtMatmul(handle_, operation_, &alpha_, a, a_, b, b_, &beta_, d, d_, d, d_,
                               &results_.front().algo, nullptr, workspace_bytes, nullptr);
  }

  cuda::CublasLtApi api_ =
      MakeCublasLt([](cudaStream_t, const std::function<void()>& work) { work(); });
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> results_;
  float alpha_ = 1, beta_ = 0;
  alignas(16) uint16_t a_data_[64] = {};
  alignas(16) uint16_t b_data_[16] = {};
  alignas(16) float d_data_[8] = {};
};

uint16_t BFloat16Of(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

TEST_F(EmulatedCublasLt, MultipliesAndReadsCOnlyWhereBetaIsNotZero) {
  ASSERT_EQ(AskHeuristic(), CUBLAS_STATUS_SUCCESS);
  a_data_[1] = BFloat16Of(3);      // row 1, column 0
  a_data_[8 + 1] = BFloat16Of(5);  // row 1, column 1
  b_data_[8] = BFloat16Of(2);      // row 0, column 1
  b_data_[9] = BFloat16Of(-1);     // row 1, column 1
  for (float& x : d_data_) x = std::numeric_limits<float>::quiet_NaN();
  ASSERT_EQ(Multiply(a_data_, b_data_, d_data_), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(d_data_[4 + 1], 1);
  EXPECT_EQ(d_data_[0], 0);
  beta_ = 1, alpha_ = 2;
  ASSERT_EQ(Multiply(a_data_, b_data_, d_data_), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(d_data_[4 + 1], 3);
}

TEST(ComputeProduct, RoundsOnceToBFloat16) {
  // 1 + 2^-8 lies in the middle of two numbers of bf16 and goes to the even one, 1. A little more
  // goes up, although fp32 has no room for the little.
  for (const auto& [little, expected] :
       {std::pair(0.0f, 1.0f), std::pair(0x1p-40f, 1 + 0x1p-7f), std::pair(-0x1p-40f, 1.0f)}) {
    const uint16_t a[] = {BFloat16Of(1), BFloat16Of(0x1p-8f), BFloat16Of(little)};
    const uint16_t b[] = {BFloat16Of(1), BFloat16Of(1), BFloat16Of(1)};
    uint16_t d = 0;
    CublasLtProblem problem;
    problem.m = problem.n = 1, problem.k = 3;
    problem.a = {CUDA_R_16BF, false, 1, 3, 1};
    problem.b = {CUDA_R_16BF, false, 3, 1, 3};
    problem.c = problem.d = {CUDA_R_16BF, false, 1, 1, 1};
    problem.a_data = a, problem.b_data = b, problem.c_data = problem.d_data = &d;
    ComputeProduct(problem);
    EXPECT_EQ(d, BFloat16Of(expected)) << little;
  }
}

TEST_F(EmulatedCublasLt, TheHeuristicKeepsToItsPreferences) {
  const auto has = [&](auto is_it) {
    EXPECT_EQ(AskHeuristic(), CUBLAS_STATUS_SUCCESS);
    return std::any_of(results_.begin(), results_.end(), [&](const auto& result) {
      return is_it(*Unpack(&result.algo), result.workspaceSize);
    });
  };
  const auto splits = [](const AlgorithmWords& words, size_t) { return words.split_k > 1; };
  const auto splits_in_place = [](const AlgorithmWords& words, size_t) {
    return words.reduction_scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE;
  };
  const auto needs_alignment = [](const AlgorithmWords& words, size_t) { return words.id == 66; };
  EXPECT_FALSE(has(splits));  // no workspace unless it is given
  EXPECT_TRUE(has(needs_alignment));
  Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{1} << 20);
  EXPECT_TRUE(has(splits_in_place));
  Prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  EXPECT_TRUE(has(splits));
  EXPECT_FALSE(has(splits_in_place));
  Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{8});
  EXPECT_FALSE(has(needs_alignment));
}

TEST_F(EmulatedCublasLt, RefusesWhatTheManualRefuses) {
  const auto asks_with = [&](auto change) {
    const auto a = a_, d = d_;
    change();
    const cublasStatus_t status = AskHeuristic();
    a_ = a, d_ = d;
    return status;
  };
  ASSERT_EQ(asks_with([] {}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(asks_with([&] { a_ = Layout(CUDA_R_16BF, 4, 7, 8); }), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(asks_with([&] { a_ = Layout(CUDA_R_16BF, 4, 8, 3); }), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(asks_with([&] { a_ = Layout(CUDA_R_32F, 4, 8, 8); }), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(asks_with([&] { a_ = nullptr; }), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(asks_with([&] { d_ = Layout(CUDA_R_16F, 4, 2, 4); }), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(asks_with([&] { Set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{CUBLAS_OP_T}); }),
            CUBLAS_STATUS_INVALID_VALUE);
  Set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{CUBLAS_OP_N});
  // A bias has the type of the result.
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS});
  EXPECT_EQ(asks_with([&] { Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_16BF}); }),
            CUBLAS_STATUS_NOT_SUPPORTED);
  Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_32F});
  EXPECT_EQ(asks_with([] {}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(a_data_, b_data_, d_data_), CUBLAS_STATUS_INVALID_VALUE);  // no address
  EXPECT_EQ(
      asks_with([&] { Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_RELU}); }),
      CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(EmulatedCublasLt, RefusesAddressesAndWorkspacesThatDoNotSuitTheAlgorithm) {
  ASSERT_EQ(AskHeuristic(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(a_data_ + 1, b_data_, d_data_), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Multiply(a_data_, nullptr, d_data_), CUBLAS_STATUS_INVALID_VALUE);
  AlgorithmWords words = *Unpack(&results_.front().algo);
  words.id = 24, words.tile = CUBLASLT_MATMUL_TILE_64x64, words.cluster_shape = 0;
  words.split_k = 2, words.reduction_scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  results_.front().algo = Pack(words);
  EXPECT_EQ(api_.cublasLtMatmulAlgoCheck(handle_, operation_, a_, b_, d_, d_,
                                         &results_.front().algo, &results_.front()),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(results_.front().workspaceSize, 2 * 8 * sizeof(float));
  EXPECT_EQ(Multiply(a_data_, b_data_, d_data_), CUBLAS_STATUS_INVALID_VALUE);
  words.reduction_scheme = 0;
  results_.front().algo = Pack(words);
  EXPECT_EQ(Multiply(a_data_, b_data_, d_data_), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(EmulatedCublasLt, AnActivationNeedsItsInputInRowsThatTheManualAllows) {
  d_ = Layout(CUDA_R_16BF, 4, 2, 4);
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_GELU_AUX});
  const auto asks_with = [&](int64_t distance, const void* aux) {
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, distance);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    return AskHeuristic();
  };
  EXPECT_EQ(asks_with(8, b_data_), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(asks_with(0, b_data_), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(asks_with(12, b_data_), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(asks_with(8, b_data_ + 1), CUBLAS_STATUS_NOT_SUPPORTED);
  d_ = Layout(CUDA_R_32F, 4, 2, 4);
  EXPECT_EQ(asks_with(8, b_data_), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(EmulatedCublasLt, KnowsWhichObjectsAreAlive) {
  const int alive = CountsOfCublasLt().alive;
  EXPECT_EQ(api_.cublasLtMatrixLayoutDestroy(a_), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(CountsOfCublasLt().alive, alive - 1);
  EXPECT_EQ(api_.cublasLtMatrixLayoutDestroy(a_), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(AskHeuristic(), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace megascale::emulator
