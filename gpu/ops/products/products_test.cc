// Products over the emulated cuBLASLt: results against the float64 reference, and which algorithm
// makes them.
#include "gpu/ops/products/products.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu/emulator/block_executor.h"
#include "gpu/emulator/cublas_lt/algorithms.h"
#include "gpu/emulator/cublas_lt/emulated_cublas_lt.h"
#include "gtest/gtest.h"
#include "runtime/ops/conformance.h"
#include "runtime/tensor/tensor.h"

namespace megascale::gpu {
namespace {

using emulator::CountsOfCublasLt;
using emulator::SetFaultsOfCublasLt;
using ops::MatMulArgs;
using ops::Transpose;
using ops::TwinMatrix;
using ops::Twins;
using ops::TwinVector;
using tensor::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;

void CastOnHost(const tensor::Vector& from, const tensor::Vector& to) {
  ASSERT_EQ(from.dtype, DType::kBF16);
  ASSERT_EQ(to.dtype, DType::kF32);
  for (int64_t i = 0; i < from.size; ++i) {
    to.as<float>()[i] = tensor::ToFloat(from.as<tensor::BFloat16>()[i]);
  }
}

void AddOnHost(const tensor::Vector& from, const tensor::Vector& to) {
  ASSERT_EQ(from.dtype, DType::kF32);
  ASSERT_EQ(to.dtype, DType::kF32);
  for (int64_t i = 0; i < from.size; ++i) to.as<float>()[i] += from.as<float>()[i];
}

bool AreSame(const cublasLtMatmulAlgo_t& a, const cublasLtMatmulAlgo_t& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// The emulated library on a stream whose work runs at once.
class ProductsTest : public ::testing::Test {
 protected:
  static constexpr size_t kWorkspaceBytes = size_t{1} << 20;

  ~ProductsTest() override { EXPECT_EQ(CountsOfCublasLt().alive, 0); }

  Products::Options Options(DType compute) {
    Products::Options options;
    options.api = &api_;
    options.compute = compute;
    const auto begin = reinterpret_cast<uintptr_t>(workspace_.data());
    options.workspace = workspace_.data() + (256 - begin % 256);
    options.workspace_bytes = kWorkspaceBytes;
    options.fill_zero = [](void* data, size_t bytes) { std::memset(data, 0, bytes); };
    options.cast = CastOnHost;
    options.add = AddOnHost;
    return options;
  }
  std::unique_ptr<Products> Make(Products::Options options) {
    auto products = Products::Create(std::move(options));
    EXPECT_EQ(products.status(), absl::OkStatus());
    return *std::move(products);
  }

  // A product of zeros: for tests that look at its algorithm alone.
  MatMulArgs Zeros(DType compute, int64_t m, int64_t n, int64_t k, int64_t stride_extra = 0) {
    const auto matrix = [&](int64_t rows, int64_t cols) {
      const int64_t stride = cols + stride_extra;
      zeros_.emplace_back(static_cast<size_t>(rows * stride) + 4);
      auto begin = reinterpret_cast<uintptr_t>(zeros_.back().data());
      return tensor::Matrix{reinterpret_cast<void*>((begin + 15) / 16 * 16), compute, rows, cols,
                            stride};
    };
    MatMulArgs args;
    args.a = matrix(m, k);
    args.b = matrix(k, n);
    args.c = matrix(m, n);
    return args;
  }

  emulator::AlgorithmWords LastAlgorithm() {
    const cublasLtMatmulAlgo_t last = CountsOfCublasLt().last_algorithm;
    return *emulator::Unpack(&last);
  }

  cuda::CublasLtApi api_ =
      emulator::MakeCublasLt([](cudaStream_t, const std::function<void()>& work) { work(); });
  std::vector<char> workspace_ = std::vector<char>(kWorkspaceBytes + 512);
  std::vector<std::vector<double>> zeros_;
};

// --- Results -------------------------------------------------------------------------------------

struct ProductShape {
  int64_t m, n, k;
};
// As in runtime/ops/ops_conformance_test.cc.
constexpr ProductShape kProductShapes[] = {
    {0, 5, 3},    {5, 0, 3},    {4, 5, 0},     {1, 1, 1},      {3, 1, 17},     {1, 33, 64},
    {17, 31, 65}, {64, 64, 64}, {96, 48, 300}, {128, 256, 32}, {261, 277, 259}};

class ProductConformance : public ProductsTest, public ::testing::WithParamInterface<DType> {
 protected:
  // `which`: 0 overwrites c, 1 adds to it, 2 adds a bias.
  void Check(const ProductShape& s, Transpose a_transposed, Transpose b_transposed, int which,
             bool float_result, int64_t padding) {
    SCOPED_TRACE(::testing::Message() << "m " << s.m << " n " << s.n << " k " << s.k << " which "
                                      << which << " float result " << float_result);
    Twins twins(GetParam(), s.m * 1000 + s.n);
    const bool ta = a_transposed == Transpose::kYes, tb = b_transposed == Transpose::kYes;
    const TwinMatrix a = twins.Input(ta ? s.k : s.m, ta ? s.m : s.k, padding);
    const TwinMatrix b = twins.Input(tb ? s.n : s.k, tb ? s.k : s.n, padding);
    const TwinVector bias = twins.InputVector(s.n);
    const TwinMatrix c = which == 1 ? (float_result ? twins.Float(s.m, s.n, padding)
                                                    : twins.Input(s.m, s.n, padding))
                                    : (float_result ? twins.FloatOutput(s.m, s.n, padding)
                                                    : twins.Output(s.m, s.n, padding));
    MatMulArgs args;
    args.transpose_a = a_transposed;
    args.transpose_b = b_transposed;
    args.accumulate = which == 1;
    args.a = a.exact, args.b = b.exact, args.c = c.exact;
    if (which == 2) args.bias = bias.exact;
    exact_->MatMul(args);
    args.a = a.tested, args.b = b.tested, args.c = c.tested;
    if (which == 2) args.bias = bias.tested;
    ASSERT_EQ(products_->MatMul(args), absl::OkStatus());
    twins.ExpectClose("MatMul", c);
  }

  std::unique_ptr<ops::Ops> exact_ = ops::MakeReferenceOps();
  std::unique_ptr<Products> products_ = Make(Options(GetParam()));
};

INSTANTIATE_TEST_SUITE_P(Emulated, ProductConformance, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(tensor::Name(info.param)); });

TEST_P(ProductConformance, ProductsOfAllLayoutsMatch) {
  for (const ProductShape& shape : kProductShapes) {
    for (Transpose a : {Transpose::kNo, Transpose::kYes}) {
      for (Transpose b : {Transpose::kNo, Transpose::kYes}) {
        for (int which : {0, 1, 2}) {
          Check(shape, a, b, which, /*float_result=*/false, /*padding=*/3);
          Check(shape, a, b, which, /*float_result=*/true, /*padding=*/3);
        }
      }
    }
  }
}

TEST_P(ProductConformance, ProductsOfContiguousMatricesMatch) {
  for (const ProductShape& shape : {ProductShape{64, 64, 64}, {64, 32, 512}, {8, 16, 0}}) {
    for (int which : {0, 1, 2}) {
      Check(shape, Transpose::kNo, Transpose::kYes, which, /*float_result=*/true, /*padding=*/0);
    }
  }
}

// The activation's input is stored beside its output, or read for its gradient. Rows lie further
// apart than they are long, by different numbers.
TEST_F(ProductsTest, GeluAndItsGradientAreMadeWithTheProduct) {
  const auto exact_ops = ops::MakeReferenceOps();
  for (const bool has_bias : {false, true}) {
    for (const auto& [m, n, k] : {ProductShape{17, 24, 40}, {64, 32, 512}, {5, 8, 0}}) {
      SCOPED_TRACE(::testing::Message() << m << ", " << n << ", " << k << " bias " << has_bias);
      Twins twins(DType::kBF16);
      const TwinMatrix a = twins.Input(m, k, 8, 0.1), b = twins.Input(n, k, 8);
      const TwinVector bias = twins.InputVector(n);
      const TwinMatrix in = twins.Output(m, n, 8), out = twins.Output(m, n, 16);
      const TwinMatrix d_out = twins.Input(m, k, 0, 0.1), weight = twins.Input(k, n, 8);
      const TwinMatrix at = twins.Input(m, n, 16, 3), d_in = twins.Output(m, n, 8);
      const TwinMatrix scratch = twins.Output(m, n, 8);
      const auto forward = [&](auto side) {
        return MatMulArgs{.a = side(a),
                          .b = side(b),
                          .c = side(in),
                          .transpose_b = Transpose::kYes,
                          .bias = has_bias ? side(bias) : tensor::Vector(),
                          .activated = side(out)};
      };
      const auto backward = [&](auto side) {
        return MatMulArgs{.a = side(d_out),
                          .b = side(weight),
                          .c = side(scratch),
                          .bias = {},
                          .activation_in = side(at),
                          .d_activation_in = side(d_in)};
      };
      const auto exact = [](const auto& twin) { return twin.exact; };
      const auto tested = [](const auto& twin) { return twin.tested; };
      exact_ops->MatMul(forward(exact));
      exact_ops->MatMul(backward(exact));
      const auto products = Make(Options(DType::kBF16));
      for (const MatMulArgs& args : {forward(tested), backward(tested)}) {
        ASSERT_TRUE(Products::Fuses(args));
        ASSERT_EQ(products->MatMul(args), absl::OkStatus());
      }
      twins.ExpectClose("MatMul", in);
      twins.ExpectClose("Epilogue", out);
      twins.ExpectClose("Epilogue", d_in);
      const Epilogue expected = has_bias ? Epilogue::kBiasGelu : Epilogue::kGelu;
      bool is_forward = false, is_backward = false;
      for (const auto& [product, algorithm] : products->table().products()) {
        is_forward = is_forward || product.epilogue == expected;
        is_backward = is_backward || product.epilogue == Epilogue::kGeluGradient;
      }
      EXPECT_TRUE(is_forward && is_backward);
      EXPECT_EQ(*AlgorithmTable::FromJson(products->table().ToJson()), products->table());
    }
  }
}

// It is added to what is there, as over the micro-batches of a step, whether the weight's gradient
// is or not.
TEST_F(ProductsTest, TheGradientOfABiasIsMadeWithThatOfItsWeight) {
  const auto exact_ops = ops::MakeReferenceOps();
  const auto products = Make(Options(DType::kBF16));
  for (const bool accumulate : {false, true}) {
    for (const auto& [m, n, k] : {ProductShape{17, 24, 40}, {64, 32, 512}, {1, 3, 1}}) {
      SCOPED_TRACE(::testing::Message() << m << ", " << n << ", " << k << " adds " << accumulate);
      Twins twins(DType::kBF16);
      const TwinMatrix d_out = twins.Input(k, m, 3), in = twins.Input(k, n, 5);
      const TwinMatrix d_weight = accumulate ? twins.Float(m, n, 3) : twins.FloatOutput(m, n, 3);
      const TwinVector d_bias = twins.FloatVector(m);
      const auto call = [&](auto side) {
        return MatMulArgs{.a = side(d_out),
                          .b = side(in),
                          .c = side(d_weight),
                          .transpose_a = Transpose::kYes,
                          .accumulate = accumulate,
                          .bias = {},
                          .d_bias = side(d_bias)};
      };
      exact_ops->MatMul(call([](const auto& twin) { return twin.exact; }));
      const MatMulArgs args = call([](const auto& twin) { return twin.tested; });
      ASSERT_TRUE(Products::Fuses(args));
      ASSERT_EQ(products->MatMul(args), absl::OkStatus());
      twins.ExpectClose("MatMul", d_weight);
      twins.ExpectClose("ColumnSums", d_bias);
    }
  }
  for (const auto& [product, algorithm] : products->table().products()) {
    EXPECT_EQ(product.epilogue, Epilogue::kBiasGradient);
  }
  EXPECT_EQ(*AlgorithmTable::FromJson(products->table().ToJson()), products->table());
}

TEST_F(ProductsTest, AGradientOfABiasIsNotFusedWhereItsProductIsEmptyOrOfAnotherType) {
  const auto fuses = [&](DType compute, DType result, int64_t m, int64_t n, int64_t k) {
    MatMulArgs args = Zeros(compute, m, n, k);
    std::swap(args.a.rows, args.a.cols);
    args.a.stride = args.a.cols;
    args.transpose_a = Transpose::kYes;
    args.c.dtype = result;
    args.d_bias = {zeros_.front().data(), DType::kF32, m};
    return Products::Fuses(args);
  };
  EXPECT_TRUE(fuses(DType::kBF16, DType::kF32, 8, 16, 8));
  EXPECT_FALSE(fuses(DType::kF32, DType::kF32, 8, 16, 8));
  EXPECT_FALSE(fuses(DType::kBF16, DType::kBF16, 8, 16, 8));
  EXPECT_FALSE(fuses(DType::kBF16, DType::kF32, 0, 16, 8));
  EXPECT_FALSE(fuses(DType::kBF16, DType::kF32, 8, 0, 8));
  EXPECT_FALSE(fuses(DType::kBF16, DType::kF32, 8, 16, 0));
}

TEST_F(ProductsTest, OtherActivationsTypesAndLayoutsAreNotFused) {
  const auto fuses = [&](DType dtype, auto change) {
    MatMulArgs args = Zeros(dtype, 8, 16, 8);
    args.activated = Zeros(dtype, 8, 16, 8).c;
    change(args);
    return Products::Fuses(args);
  };
  EXPECT_TRUE(fuses(DType::kBF16, [](MatMulArgs&) {}));
  EXPECT_FALSE(fuses(DType::kF32, [](MatMulArgs&) {}));
  EXPECT_FALSE(
      fuses(DType::kBF16, [](MatMulArgs& args) { args.activation = ops::ActivationKind::kGelu; }));
  EXPECT_FALSE(fuses(DType::kBF16,
                     [](MatMulArgs& args) { args.activation = ops::ActivationKind::kSwiGlu; }));
  EXPECT_FALSE(fuses(DType::kBF16, [](MatMulArgs& args) { args.c.stride = 20; }));
  EXPECT_FALSE(fuses(DType::kBF16, [](MatMulArgs& args) {
    args.activated.data = args.activated.as<tensor::BFloat16>() + 1;
  }));
  const auto loses = [&](auto change) {
    MatMulArgs args = Zeros(DType::kBF16, 8, 16, 8);
    args.activated = Zeros(DType::kBF16, 8, 16, 8).c;
    change(args);
    return !Products::Fuses(args);
  };
  EXPECT_TRUE(loses([](MatMulArgs& args) { args.activation = ops::ActivationKind::kGelu; }));
  EXPECT_FALSE(loses([](MatMulArgs&) {}));
}

TEST_F(ProductsTest, Fp32IsRoundedToTf32OnlyWhereTheJobAllowsIt) {
  const float x = 1 + 0x1p-20f;  // is 1 in TF32
  for (const bool allowed : {false, true}) {
    Products::Options options = Options(DType::kF32);
    options.allow_tf32 = allowed;
    MatMulArgs args = Zeros(DType::kF32, 1, 1, 1);
    *args.a.as<float>() = x, *args.b.as<float>() = 1;
    const auto products = Make(std::move(options));
    ASSERT_EQ(products->MatMul(args), absl::OkStatus());
    EXPECT_EQ(*args.c.as<float>(), allowed ? 1.0f : x);
    EXPECT_EQ(products->table().products().begin()->first.tf32, allowed);
  }
  Products::Options options = Options(DType::kBF16);
  options.allow_tf32 = true;
  const auto products = Make(std::move(options));
  ASSERT_EQ(products->MatMul(Zeros(DType::kBF16, 1, 1, 1)), absl::OkStatus());
  EXPECT_FALSE(products->table().products().begin()->first.tf32);
}

TEST_F(ProductsTest, RunsInTheOrderOfItsStream) {
  std::vector<std::function<void()>> queue;
  cudaStream_t seen = nullptr;
  api_ = emulator::MakeCublasLt([&](cudaStream_t stream, std::function<void()> work) {
    seen = stream;
    queue.push_back(std::move(work));
  });
  Products::Options options = Options(DType::kF32);
  int on_stream = 0;
  options.stream = reinterpret_cast<cudaStream_t>(&on_stream);
  const auto products = Make(std::move(options));
  MatMulArgs args = Zeros(DType::kF32, 1, 1, 1);
  *args.a.as<float>() = 2, *args.b.as<float>() = 3, *args.c.as<float>() = 7;
  ASSERT_EQ(products->MatMul(args), absl::OkStatus());
  EXPECT_EQ(*args.c.as<float>(), 7);
  ASSERT_EQ(queue.size(), 1u);
  EXPECT_EQ(seen, reinterpret_cast<cudaStream_t>(&on_stream));
  queue.front()();
  EXPECT_EQ(*args.c.as<float>(), 6);
}

TEST_F(ProductsTest, WorksOnAddressesThatTheHostCannotTouch) {
  std::vector<float> memory = {5, 6, 0};
  constexpr uintptr_t kDevice = uintptr_t{1} << 46;
  const auto bytes = memory.size() * sizeof(float);
  emulator::SetMemoryWindow(
      {kDevice, kDevice + bytes,
       static_cast<ptrdiff_t>(reinterpret_cast<uintptr_t>(memory.data()) - kDevice)});
  Products::Options options = Options(DType::kF32);
  options.workspace = nullptr;
  options.workspace_bytes = 0;
  const auto matrix = [&](int index) {
    return tensor::Matrix{reinterpret_cast<void*>(kDevice + index * sizeof(float)), DType::kF32, 1,
                          1, 1};
  };
  MatMulArgs args;
  args.a = matrix(0), args.b = matrix(1), args.c = matrix(2);
  const auto products = Make(std::move(options));
  EXPECT_EQ(products->MatMul(args), absl::OkStatus());
  emulator::SetMemoryWindow({});
  EXPECT_EQ(memory[2], 30);
}

TEST_F(ProductsTest, MakesNothingInLaterCallsOfAProduct) {
  const auto products = Make(Options(DType::kBF16));
  MatMulArgs args = Zeros(DType::kBF16, 16, 32, 8);
  std::vector<tensor::BFloat16> biases(64);
  args.bias = {biases.data(), DType::kBF16, 32};
  ASSERT_EQ(products->MatMul(args), absl::OkStatus());
  const emulator::CublasLtCounts first = CountsOfCublasLt();
  EXPECT_EQ(first.heuristics, 1);
  args.bias.data = biases.data() + 32;  // the address is that of the call, not of the plan
  biases[32] = tensor::ToBFloat16(3);
  ASSERT_EQ(products->MatMul(args), absl::OkStatus());
  EXPECT_EQ(tensor::ToFloat(*args.c.as<tensor::BFloat16>()), 3);
  const emulator::CublasLtCounts second = CountsOfCublasLt();
  EXPECT_EQ(second.created, first.created);
  EXPECT_EQ(second.heuristics, first.heuristics);
  EXPECT_EQ(second.products, first.products + 1);
}

TEST_F(ProductsTest, GivesAProductOneAlgorithmWhateverItsStrides) {
  const auto products = Make(Options(DType::kBF16));
  ASSERT_EQ(products->MatMul(Zeros(DType::kBF16, 16, 32, 8)), absl::OkStatus());
  ASSERT_EQ(products->MatMul(Zeros(DType::kBF16, 16, 32, 8, 8)), absl::OkStatus());
  EXPECT_EQ(CountsOfCublasLt().heuristics, 1);
  EXPECT_EQ(products->table().products().size(), 1u);
  // Rows at multiples of 2 bytes only: another product.
  ASSERT_EQ(products->MatMul(Zeros(DType::kBF16, 16, 32, 8, 1)), absl::OkStatus());
  EXPECT_EQ(CountsOfCublasLt().heuristics, 2);
  ASSERT_EQ(products->table().products().size(), 2u);
  EXPECT_EQ(products->table().products().begin()->first.a_alignment, 2);
  EXPECT_EQ(LastAlgorithm().id, 24);  // the one that needs no alignment
}

// --- The choice of algorithms --------------------------------------------------------------------

TEST_F(ProductsTest, SplitsKOnlyWithPartsInFp32) {
  const auto products = Make(Options(DType::kBF16));
  ASSERT_EQ(products->MatMul(Zeros(DType::kBF16, 64, 64, 1024)), absl::OkStatus());
  EXPECT_EQ(LastAlgorithm().split_k, 4);
  EXPECT_EQ(LastAlgorithm().reduction_scheme,
            static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
}

TEST_F(ProductsTest, ChoosesWithinTheWorkspace) {
  Products::Options options = Options(DType::kBF16);
  options.workspace_bytes = 64 * 64 * 4 * sizeof(float) - 256;
  const auto products = Make(std::move(options));
  ASSERT_EQ(products->MatMul(Zeros(DType::kBF16, 64, 64, 1024)), absl::OkStatus());
  EXPECT_EQ(LastAlgorithm().split_k, 1);
}

// Times algorithms by a table, in the order in which they are tried; the last time is for all that
// come later.
Products::Timer TimerOf(std::vector<int> microseconds) {
  auto next = std::make_shared<size_t>(0);
  return [=](const std::function<absl::Status()>& run) -> absl::StatusOr<absl::Duration> {
    const absl::Status started = run();
    const size_t index = std::min((*next)++, microseconds.size() - 1);
    if (!started.ok()) return started;
    return absl::Microseconds(microseconds[index]);
  };
}

TEST_F(ProductsTest, ATableThatWasTunedMakesTheSameChoiceAgain) {
  const MatMulArgs args = Zeros(DType::kBF16, 64, 64, 1024);
  std::string text;
  cublasLtMatmulAlgo_t tuned = {};
  {
    const auto products = Make(Options(DType::kBF16));
    ASSERT_EQ(products->Tune(args, TimerOf({9, 8, 3, 8})), absl::OkStatus());
    ASSERT_EQ(products->MatMul(args), absl::OkStatus());
    tuned = CountsOfCublasLt().last_algorithm;
    text = products->table().ToJson();
  }
  EXPECT_NE(emulator::Unpack(&tuned)->hidden, 0u);
  api_ = emulator::MakeCublasLt([](cudaStream_t, const std::function<void()>& work) { work(); });
  Products::Options options = Options(DType::kBF16);
  options.table = *AlgorithmTable::FromJson(text);
  const auto products = Make(std::move(options));
  ASSERT_EQ(products->MatMul(args), absl::OkStatus());
  EXPECT_TRUE(AreSame(tuned, CountsOfCublasLt().last_algorithm));
  EXPECT_EQ(CountsOfCublasLt().heuristics, 0);
  EXPECT_EQ(products->table().ToJson(), text);
  // The heuristic alone would have chosen another.
  ASSERT_EQ(Make(Options(DType::kBF16))->MatMul(args), absl::OkStatus());
  EXPECT_FALSE(AreSame(tuned, CountsOfCublasLt().last_algorithm));
}

TEST_F(ProductsTest, TuningTakesTheFirstOfEqualsAndTimesWhatIsNotInTheTableOnly) {
  const auto products = Make(Options(DType::kF32));
  const MatMulArgs args = Zeros(DType::kF32, 64, 64, 64);
  ASSERT_EQ(products->Tune(args, TimerOf({5})), absl::OkStatus());
  const int started = CountsOfCublasLt().products;
  EXPECT_GT(started, 1);
  ASSERT_EQ(products->Tune(args, TimerOf({9, 1})), absl::OkStatus());
  EXPECT_EQ(CountsOfCublasLt().products, started);
  ASSERT_EQ(products->MatMul(args), absl::OkStatus());
  const auto tuned = CountsOfCublasLt().last_algorithm;
  ASSERT_EQ(Make(Options(DType::kF32))->MatMul(args), absl::OkStatus());
  EXPECT_TRUE(AreSame(tuned, CountsOfCublasLt().last_algorithm));
}

TEST_F(ProductsTest, TuningPassesOverAlgorithmsThatFail) {
  const auto products = Make(Options(DType::kF32));
  const MatMulArgs args = Zeros(DType::kF32, 64, 64, 64);
  int tries = 0;
  const auto timer =
      [&](const std::function<absl::Status()>& run) -> absl::StatusOr<absl::Duration> {
    emulator::CublasLtFaults faults;
    if (++tries == 1) faults.product_status = CUBLAS_STATUS_NOT_SUPPORTED;
    SetFaultsOfCublasLt(faults);
    const absl::Status started = run();
    SetFaultsOfCublasLt({});
    if (!started.ok()) return started;
    return absl::Microseconds(tries);
  };
  ASSERT_EQ(products->Tune(args, timer), absl::OkStatus());
  ASSERT_EQ(products->MatMul(args), absl::OkStatus());
  const auto tuned = CountsOfCublasLt().last_algorithm;
  ASSERT_EQ(Make(Options(DType::kF32))->MatMul(args), absl::OkStatus());
  EXPECT_FALSE(AreSame(tuned, CountsOfCublasLt().last_algorithm));
}

TEST_F(ProductsTest, TuningEndsWithTheErrorOfTheTimer) {
  const auto products = Make(Options(DType::kF32));
  const auto timer = [](const std::function<absl::Status()>&) -> absl::StatusOr<absl::Duration> {
    return absl::InternalError("the device is lost");
  };
  EXPECT_EQ(products->Tune(Zeros(DType::kF32, 8, 8, 8), timer).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(products->table().products().empty());
}

// Returns a table with one entry: that of `args`, as the heuristic chooses, with a change.
template <typename Change>
AlgorithmTable TableOf(std::unique_ptr<Products> products, const MatMulArgs& args, Change change) {
  EXPECT_EQ(products->Prepare(args), absl::OkStatus());
  EXPECT_EQ(CountsOfCublasLt().products, 0);
  auto [product, algorithm] = *products->table().products().begin();
  change(algorithm);
  AlgorithmTable table;
  table.Set(product, algorithm);
  return table;
}

TEST_F(ProductsTest, MakesAnAlgorithmOfItsAttributesForAnotherVersionOfTheLibrary) {
  const MatMulArgs args = Zeros(DType::kBF16, 64, 64, 1024);
  Products::Options options = Options(DType::kBF16);
  options.table = TableOf(Make(Options(DType::kBF16)), args, [](Algorithm& algorithm) {
    algorithm.library_version = 130000;
    algorithm.stages = CUBLASLT_MATMUL_STAGES_32xAUTO;
  });
  ASSERT_EQ(Make(std::move(options))->MatMul(args), absl::OkStatus());
  EXPECT_EQ(LastAlgorithm().hidden, 0u);  // the words of the other version were not used
  EXPECT_EQ(LastAlgorithm().stages, static_cast<uint32_t>(CUBLASLT_MATMUL_STAGES_32xAUTO));
  EXPECT_EQ(LastAlgorithm().split_k, 4);
}

TEST_F(ProductsTest, RefusesATableThatTheLibraryRefusesAndNamesProductAndVersion) {
  const MatMulArgs args = Zeros(DType::kBF16, 64, 32, 16);
  const auto refusal = [&](auto change) {
    Products::Options options = Options(DType::kBF16);
    options.table = TableOf(Make(Options(DType::kBF16)), args, change);
    const auto products = Make(std::move(options));
    const absl::Status status = products->MatMul(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(products->Prepare(args), status);
    EXPECT_EQ(products->Tune(args, TimerOf({1})), absl::OkStatus());  // never chooses anew
    EXPECT_EQ(CountsOfCublasLt().products, 0);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("BF16 [64, 16] x [16, 32] to BF16"), HasSubstr("cuBLASLt 13.1.0"),
                      HasSubstr("--allow-changed products")));
    return std::string(status.message());
  };
  const auto forget_words = [](Algorithm& algorithm) { algorithm.words = {}; };
  EXPECT_THAT(refusal([&](Algorithm& algorithm) {
                forget_words(algorithm);
                algorithm.id = 7;
              }),
              HasSubstr("the algorithm (7, chosen by version 130100)"));
  EXPECT_THAT(refusal([&](Algorithm& algorithm) {
                forget_words(algorithm);
                algorithm.tile = CUBLASLT_MATMUL_TILE_8x8;
              }),
              HasSubstr("cublasLtMatmulAlgoCheck: CUBLAS_STATUS_NOT_SUPPORTED"));
  EXPECT_THAT(refusal([](Algorithm& algorithm) { algorithm.tile = 1; }),
              HasSubstr("its words and its attributes differ"));
  EXPECT_THAT(refusal([](Algorithm& algorithm) {
                algorithm.split_k = 2;
                algorithm.reduction_scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
              }),
              HasSubstr("its sums are not repeatable"));
  EXPECT_THAT(refusal([&](Algorithm& algorithm) {
                forget_words(algorithm);
                algorithm.id = 21, algorithm.cluster_shape = 0;
                algorithm.tile = CUBLASLT_MATMUL_TILE_64x64;
                algorithm.split_k = 1000;
                algorithm.reduction_scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
              }),
              HasSubstr("needs a workspace of 8192000 bytes, not 1048576"));
}

TEST_F(ProductsTest, RefusesATableOfAnotherKindOfDevice) {
  const MatMulArgs args = Zeros(DType::kBF16, 64, 32, 16);
  Products::Options options = Options(DType::kBF16);
  options.table = TableOf(Make(Options(DType::kBF16)), args, [](Algorithm&) {});
  emulator::CublasLtFaults faults;
  faults.refused_algorithm = options.table.products().begin()->second.id;
  SetFaultsOfCublasLt(faults);
  EXPECT_EQ(Make(options)->MatMul(args).code(), absl::StatusCode::kFailedPrecondition);
  // Without a table the heuristic names another.
  options.table = {};
  EXPECT_EQ(Make(std::move(options))->MatMul(args), absl::OkStatus());
  EXPECT_NE(LastAlgorithm().id, faults.refused_algorithm);
}

// --- Errors --------------------------------------------------------------------------------------

TEST_F(ProductsTest, ReportsWhatTheLibraryCannotDo) {
  const MatMulArgs args = Zeros(DType::kBF16, 64, 32, 16);
  const auto products = Make(Options(DType::kBF16));
  emulator::CublasLtFaults faults;
  faults.has_heuristic = false;
  SetFaultsOfCublasLt(faults);
  const absl::Status none = products->MatMul(args);
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()),
              AllOf(HasSubstr("cuBLASLt 13.1.0 has no repeatable algorithm"),
                    HasSubstr("BF16 [64, 16] x [16, 32] to BF16")));
  faults = {};
  faults.product_status = CUBLAS_STATUS_EXECUTION_FAILED;
  SetFaultsOfCublasLt(faults);
  const absl::Status failed = products->MatMul(args);
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr("cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"),
                    HasSubstr("BF16 [64, 16] x [16, 32] to BF16")));
  SetFaultsOfCublasLt({});
  EXPECT_EQ(products->MatMul(args), absl::OkStatus());
}

TEST_F(ProductsTest, NeedsADevice) {
  emulator::CublasLtFaults faults;
  faults.create_status = CUBLAS_STATUS_NOT_INITIALIZED;
  SetFaultsOfCublasLt(faults);
  const absl::Status status = Products::Create(Options(DType::kBF16)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cublasLtCreate"));
}

TEST_F(ProductsTest, SaysWhereTheWorkspaceHoldsNoCopyOfTheBias) {
  Products::Options options = Options(DType::kBF16);
  options.workspace_bytes = 256;
  const auto products = Make(std::move(options));
  MatMulArgs args = Zeros(DType::kBF16, 4, 128, 4);
  std::vector<tensor::BFloat16> bias(128);
  args.bias = {bias.data(), DType::kBF16, 128};
  EXPECT_EQ(products->MatMul(args), absl::OkStatus());
  args.c.dtype = DType::kF32;
  const absl::Status status = products->MatMul(args);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("has 256 bytes"), HasSubstr("needs 512")));
}

TEST_F(ProductsTest, ArgumentsThatDoNotFitAreABug) {
  const auto products = Make(Options(DType::kBF16));
  MatMulArgs args = Zeros(DType::kBF16, 4, 4, 4);
  args.b.rows = 5;
  EXPECT_DEATH((void)products->MatMul(args), "b is BF16");
}

}  // namespace
}  // namespace megascale::gpu
