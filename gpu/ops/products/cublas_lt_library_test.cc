// The installed cuBLASLt, as far as it goes without a device: every function is there, descriptors
// can be made, and their attributes have the sizes and defaults that the emulated library gives
// them.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu/cuda/cublas_lt_api.h"
#include "gpu/emulator/cublas_lt/emulated_cublas_lt.h"
#include "gpu/ops/products/products.h"
#include "gtest/gtest.h"

#ifdef __SANITIZE_ADDRESS__
// cublasLtCreate loses some memory where there is no GPU.
extern "C" const char* __lsan_default_suppressions() { return "leak:libcublasLt.so"; }
#endif

namespace megascale::gpu {
namespace {

using ::testing::HasSubstr;

class CublasLtLibrary : public ::testing::Test {
 protected:
  // Skips visibly where the toolkit has headers but no libraries.
  void SetUp() override {
    const auto loaded = cuda::LoadCublasLt();
    if (!loaded.ok()) GTEST_SKIP() << loaded.status();
    real_ = *loaded;
  }

  const cuda::CublasLtApi* real_ = nullptr;
  cuda::CublasLtApi emulated_ = emulator::MakeCublasLt([](cudaStream_t, const auto&) {});
};

// An attribute of a descriptor in one library.
struct Value {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  size_t bytes = 0;
  uint64_t bits = 0;

  bool operator==(const Value&) const = default;
};
void PrintTo(const Value& value, std::ostream* out) {
  *out << "status " << value.status << ", " << value.bytes << " bytes, " << value.bits;
}

// `get(to, bytes, written)` reads the attribute.
template <typename Get>
Value Read(Get get) {
  Value value;
  value.status = get(nullptr, 0, &value.bytes);
  if (value.status != CUBLAS_STATUS_SUCCESS) return {value.status, 0, 0};
  size_t written = 0;
  EXPECT_EQ(get(&value.bits, value.bytes, &written), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(written, value.bytes);
  return value;
}

// Compares the attributes up to `end` that the emulated library has.
template <typename ReadOf>
void ExpectSame(const char* what, int end, ReadOf read_of) {
  int num_compared = 0;
  for (int id = 0; id < end; ++id) {
    SCOPED_TRACE(::testing::Message() << "attribute " << id << " of a " << what);
    const auto [real, emulated] = read_of(id);
    if (emulated.status != CUBLAS_STATUS_SUCCESS) continue;
    EXPECT_EQ(real, emulated);
    ++num_compared;
  }
  EXPECT_GT(num_compared, 6) << what;
}

TEST_F(CublasLtLibrary, HasEveryFunctionAndAVersion) {
  const void* first = nullptr;
  for (size_t i = 0; i < sizeof(cuda::CublasLtApi) / sizeof(void*); ++i) {
    std::memcpy(&first, reinterpret_cast<const char*>(real_) + i * sizeof(void*), sizeof(first));
    EXPECT_NE(first, nullptr) << "function " << i;
    std::memcpy(&first, reinterpret_cast<const char*>(&emulated_) + i * sizeof(void*),
                sizeof(first));
    EXPECT_NE(first, nullptr) << "emulated function " << i;
  }
  EXPECT_GE(real_->cublasLtGetVersion(), cuda::kCublasLtVersionMin);
}

TEST_F(CublasLtLibrary, AnOperationHasTheAttributesOfTheEmulatedOne) {
  const auto make = [](const cuda::CublasLtApi& api) {
    cublasLtMatmulDesc_t made = nullptr;
    EXPECT_EQ(api.cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    return made;
  };
  const cublasLtMatmulDesc_t real = make(*real_), emulated = make(emulated_);
  const auto read = [](const cuda::CublasLtApi& api, cublasLtMatmulDesc_t from, int id) {
    return Read([&](void* to, size_t bytes, size_t* written) {
      return api.cublasLtMatmulDescGetAttribute(
          from, static_cast<cublasLtMatmulDescAttributes_t>(id), to, bytes, written);
    });
  };
  const auto read_both = [&](int id) {
    return std::pair(read(*real_, real, id), read(emulated_, emulated, id));
  };
  ExpectSame("product", 64, read_both);
  for (const auto& [api, to] :
       {std::pair(real_, real),
        std::pair(const_cast<const cuda::CublasLtApi*>(&emulated_), emulated)}) {
    const int32_t transposed = CUBLAS_OP_T;
    const auto set = [&, api = api, to = to](int id, const void* from, size_t bytes) {
      return api->cublasLtMatmulDescSetAttribute(
          to, static_cast<cublasLtMatmulDescAttributes_t>(id), from, bytes);
    };
    EXPECT_EQ(set(CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(set(CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 2), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(set(CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 4), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(set(999, &transposed, 4), CUBLAS_STATUS_INVALID_VALUE);
  }
  ExpectSame("product", 64, read_both);
  EXPECT_EQ(real_->cublasLtMatmulDescDestroy(real), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(emulated_.cublasLtMatmulDescDestroy(emulated), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLtLibrary, ALayoutHasTheAttributesOfTheEmulatedOne) {
  const auto make = [](const cuda::CublasLtApi& api) {
    cublasLtMatrixLayout_t made = nullptr;
    EXPECT_EQ(api.cublasLtMatrixLayoutCreate(&made, CUDA_R_16BF, 64, 32, 72),
              CUBLAS_STATUS_SUCCESS);
    return made;
  };
  const cublasLtMatrixLayout_t real = make(*real_), emulated = make(emulated_);
  const auto read = [](const cuda::CublasLtApi& api, cublasLtMatrixLayout_t from, int id) {
    return Read([&](void* to, size_t bytes, size_t* written) {
      return api.cublasLtMatrixLayoutGetAttribute(
          from, static_cast<cublasLtMatrixLayoutAttribute_t>(id), to, bytes, written);
    });
  };
  ExpectSame("layout", 16, [&](int id) {
    return std::pair(read(*real_, real, id), read(emulated_, emulated, id));
  });
  EXPECT_EQ(real_->cublasLtMatrixLayoutDestroy(real), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(emulated_.cublasLtMatrixLayoutDestroy(emulated), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLtLibrary, APreferenceHasTheAttributesOfTheEmulatedOne) {
  const auto make = [](const cuda::CublasLtApi& api) {
    cublasLtMatmulPreference_t made = nullptr;
    EXPECT_EQ(api.cublasLtMatmulPreferenceCreate(&made), CUBLAS_STATUS_SUCCESS);
    return made;
  };
  const cublasLtMatmulPreference_t real = make(*real_), emulated = make(emulated_);
  const auto read = [](const cuda::CublasLtApi& api, cublasLtMatmulPreference_t from, int id) {
    return Read([&](void* to, size_t bytes, size_t* written) {
      return api.cublasLtMatmulPreferenceGetAttribute(
          from, static_cast<cublasLtMatmulPreferenceAttributes_t>(id), to, bytes, written);
    });
  };
  ExpectSame("preference", 16, [&](int id) {
    return std::pair(read(*real_, real, id), read(emulated_, emulated, id));
  });
  EXPECT_EQ(real_->cublasLtMatmulPreferenceDestroy(real), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(emulated_.cublasLtMatmulPreferenceDestroy(emulated), CUBLAS_STATUS_SUCCESS);
}

// The values differ: the library's algorithm is not initialised.
TEST_F(CublasLtLibrary, AConfigurationHasTheSizesOfTheEmulatedOne) {
  cublasLtHandle_t handle = nullptr;
  ASSERT_EQ(emulated_.cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulAlgo_t emulated = {};
  ASSERT_EQ(emulated_.cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF,
                                             CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, 21, &emulated),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(emulated_.cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
  const cublasLtMatmulAlgo_t real = {};
  ExpectSame("configuration", 16, [&](int id) {
    const auto bytes_of = [id](const cuda::CublasLtApi& api, const cublasLtMatmulAlgo_t& from) {
      Value value;
      value.status = api.cublasLtMatmulAlgoConfigGetAttribute(
          &from, static_cast<cublasLtMatmulAlgoConfigAttributes_t>(id), nullptr, 0, &value.bytes);
      return value;
    };
    return std::pair(bytes_of(*real_, real), bytes_of(emulated_, emulated));
  });
}

// Where there is a device, the library chooses, and takes its choice back from the text of the
// table; nothing is computed. Elsewhere the refusal names library and reason.
TEST_F(CublasLtLibrary, ProductsTakeTheirTableBackOrSayThatThereIsNoDevice) {
  const auto somewhere = [](uintptr_t at) { return reinterpret_cast<void*>(at << 30); };
  const auto make = [&](AlgorithmTable table) {
    Products::Options options;
    options.api = real_;
    options.workspace = somewhere(1);
    options.workspace_bytes = kProductWorkspaceBytes;
    options.fill_zero = [](void*, size_t) {};
    options.cast = options.add = [](const tensor::Vector&, const tensor::Vector&) {};
    options.table = std::move(table);
    return Products::Create(std::move(options));
  };
  const auto products = make({});
  if (!products.ok()) {
    EXPECT_EQ(products.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(products.status().message()), HasSubstr("cublasLtCreate"));
    EXPECT_THAT(std::string(products.status().message()), HasSubstr("cuBLASLt 13."));
    GTEST_SKIP() << "this machine has no GPU: " << products.status();
  }
  ops::MatMulArgs args;
  args.a = {somewhere(2), tensor::DType::kBF16, 512, 1024, 1024};
  args.b = {somewhere(3), tensor::DType::kBF16, 1024, 256, 256};
  args.c = {somewhere(4), tensor::DType::kBF16, 512, 256, 256};
  ASSERT_EQ((*products)->Prepare(args), absl::OkStatus());
  const auto table = AlgorithmTable::FromJson((*products)->table().ToJson());
  ASSERT_EQ(table.status(), absl::OkStatus());
  ASSERT_EQ(table->products().size(), 1u);
  EXPECT_EQ((*make(*table))->Prepare(args), absl::OkStatus());
  // The attributes alone make an algorithm too.
  auto [product, algorithm] = *table->products().begin();
  algorithm.words = {};
  AlgorithmTable without_words;
  without_words.Set(product, algorithm);
  EXPECT_EQ((*make(without_words))->Prepare(args), absl::OkStatus());
}

}  // namespace
}  // namespace megascale::gpu
