#include "gpu/cuda/cuda_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "gpu/cuda/cublas_lt_api.h"
#include "gpu/cuda/cuda_status.h"
#include "gpu/cuda/nccl_api.h"
#include "gpu/cuda/nvml_api.h"
#include "gpu/cuda/nvml_metrics.h"

namespace megascale::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kOld = {"gpu/cuda/testing/fake_old_libraries.so"};
const std::vector<std::string> kIncomplete = {"gpu/cuda/testing/fake_incomplete_library.so"};
const std::vector<std::string> kMissing = {"libcudart.so.4711", "/nowhere/libcudart.so"};

void ExpectOneLine(const absl::Status& status, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

// All members of a table are pointers.
template <typename Table>
size_t NumMissing(const Table& table) {
  std::vector<void*> members(sizeof(Table) / sizeof(void*));
  std::memcpy(members.data(), &table, sizeof(Table));
  size_t num_missing = 0;
  for (const void* member : members) num_missing += member == nullptr ? 1 : 0;
  return num_missing;
}

TEST(CudaApiTest, RefusesAnOldLibraryInOneLine) {
  ExpectOneLine(LoadCudaFrom(kOld).status(),
                {"the CUDA runtime", "13.0 or newer", "found 12.4", kOld[0]});
  ExpectOneLine(LoadCublasLtFrom(kOld).status(), {"cuBLASLt", "13.0 or newer", "found 12.4"});
  ExpectOneLine(LoadNcclFrom(kOld).status(), {"NCCL", "2.27 or newer", "found 2.19.3"});
}

TEST(CudaApiTest, RefusesAMissingLibraryInOneLine) {
  ExpectOneLine(LoadCudaFrom(kMissing).status(),
                {"the CUDA runtime", "13.0 or newer", "found none", kMissing[0]});
  ExpectOneLine(LoadCublasLtFrom(kMissing).status(), {"cuBLASLt", "found none"});
  ExpectOneLine(LoadNcclFrom(kMissing).status(), {"NCCL", "found none"});
}

TEST(CudaApiTest, NamesTheFunctionThatALibraryLacks) {
  ExpectOneLine(LoadCudaFrom(kIncomplete).status(),
                {kIncomplete[0] + " without cudaGetDeviceCount", "install a newer one"});
}

TEST(CudaApiTest, RefusesAMachineWithoutADriverOrWithAnOldOne) {
  CudaApi cuda;
  cuda.cudaDriverGetVersion = [](int* version) {
    *version = 0;
    return cudaSuccess;
  };
  ExpectOneLine(CheckCudaDriver(cuda), {"NVIDIA driver", "CUDA 13.0 or newer", "found none"});
  cuda.cudaDriverGetVersion = [](int* version) {
    *version = 12080;
    return cudaSuccess;
  };
  ExpectOneLine(CheckCudaDriver(cuda), {"CUDA 13.0 or newer", "found one for CUDA 12.8"});
  cuda.cudaDriverGetVersion = [](int* version) {
    *version = 13010;
    return cudaSuccess;
  };
  EXPECT_EQ(CheckCudaDriver(cuda), absl::OkStatus());
}

TEST(NvmlApiTest, TellsTheFreeMemoryOfAGpuThatItKnows) {
  const auto nvml = LoadNvmlFrom({"gpu/cuda/testing/fake_nvml.so"});
  ASSERT_EQ(nvml.status(), absl::OkStatus());
  EXPECT_EQ(FreeBytes(*nvml, "0000:3b:00.0"), int64_t{3} << 30);
  EXPECT_EQ(FreeBytes(*nvml, "0000:5d:00.0"), std::nullopt);
  ExpectOneLine(LoadNvmlFrom(kIncomplete).status(), {kIncomplete[0] + " without nvmlInit_v2"});
  ExpectOneLine(LoadNvmlFrom(kMissing).status(), {"NVML", "found none"});
}

TEST(NvmlMetricsTest, ReadsWhatEachGpuCanTell) {
  const auto nvml = LoadNvmlMetricsFrom({"gpu/cuda/testing/fake_nvml.so"});
  ASSERT_EQ(nvml.status(), absl::OkStatus());
  const std::vector<telemetry::v1::GpuSample> gpus = ReadGpus(*nvml);
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_DOUBLE_EQ(gpus[0].busy_share(), 0.97);
  EXPECT_DOUBLE_EQ(gpus[0].memory_busy_share(), 0.41);
  EXPECT_EQ(gpus[0].memory_used_bytes(), int64_t{77} << 30);
  EXPECT_EQ(gpus[0].memory_bytes(), int64_t{80} << 30);
  EXPECT_DOUBLE_EQ(gpus[0].temperature_celsius(), 84);
  EXPECT_DOUBLE_EQ(gpus[0].power_watts(), 698.5);
  EXPECT_DOUBLE_EQ(gpus[0].core_clock_megahertz(), 1410);
  EXPECT_DOUBLE_EQ(gpus[0].memory_clock_megahertz(), 2619);
  ASSERT_EQ(gpus[0].throttled_by_size(), 2) << "an idle GPU is not throttled";
  EXPECT_EQ(gpus[0].throttled_by(0), "power cap");
  EXPECT_EQ(gpus[0].throttled_by(1), "heat, by hardware");
  EXPECT_EQ(gpus[0].corrected_errors(), 12);
  EXPECT_EQ(gpus[0].uncorrected_errors(), 1);
  EXPECT_EQ(gpus[1].index(), 1);
  EXPECT_TRUE(gpus[1].has_memory_used_bytes());
  EXPECT_FALSE(gpus[1].has_temperature_celsius()) << "unknown is not zero";
  EXPECT_FALSE(gpus[1].has_uncorrected_errors());
  ExpectOneLine(LoadNvmlMetricsFrom(kMissing).status(), {"NVML", "found none"});
}

// The toolkit that compiled this brings the libraries; they open without a driver.
TEST(CudaApiTest, EveryTableIsFilledFromTheToolkit) {
  const auto cuda = LoadCudaFrom(ToolkitFiles("libcudart.so.13"));
  ASSERT_EQ(cuda.status(), absl::OkStatus());
  EXPECT_EQ(NumMissing(*cuda), 0u);
  const auto cublas_lt = LoadCublasLt();
  ASSERT_EQ(cublas_lt.status(), absl::OkStatus());
  EXPECT_EQ(NumMissing(**cublas_lt), 0u);
  const auto nccl = LoadNccl();
  ASSERT_EQ(nccl.status(), absl::OkStatus());
  EXPECT_EQ(NumMissing(**nccl), 0u);
}

TEST(CudaStatusTest, NamesTheCallAndTheError) {
  const auto cuda = LoadCudaFrom(ToolkitFiles("libcudart.so.13"));
  ASSERT_EQ(cuda.status(), absl::OkStatus());
  EXPECT_EQ(ToStatus(*cuda, cudaSuccess, "cudaMalloc"), absl::OkStatus());
  const absl::Status memory = ToStatus(*cuda, cudaErrorMemoryAllocation, "cudaMalloc");
  EXPECT_EQ(memory,
            absl::ResourceExhaustedError("cudaMalloc: cudaErrorMemoryAllocation: out of memory"));
  const absl::Status other = ToStatus(*cuda, cudaErrorLaunchFailure, "cudaStreamSynchronize");
  EXPECT_EQ(other.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(other.message()),
              AllOf(HasSubstr("cudaStreamSynchronize: cudaErrorLaunchFailure: ")));
}

}  // namespace
}  // namespace megascale::cuda
