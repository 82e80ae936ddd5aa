#include "gpu/device/cuda_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gpu/cuda/cuda_status.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/device/staged_communicator.h"

namespace megascale::gpu {
namespace {

using cuda::CudaApi;

constexpr int kCapabilityMajorMin = 8;

// What the makers state, dense, without sparsity. Source: data sheets of the H200, H100 and A100.
struct KnownPeak {
  absl::string_view name_part;  // the first that the device's name contains counts
  device::PeakRates peak;
};
constexpr KnownPeak kKnownPeaks[] = {
    {"H200", {.fp64 = 34e12, .fp32 = 67e12, .bf16 = 989e12, .memory = 4.8e12}},
    {"H100 PCIe", {.fp64 = 26e12, .fp32 = 51e12, .bf16 = 756e12, .memory = 2.0e12}},
    {"H100", {.fp64 = 34e12, .fp32 = 67e12, .bf16 = 989e12, .memory = 3.35e12}},
    {"A100", {.fp64 = 9.7e12, .fp32 = 19.5e12, .bf16 = 312e12, .memory = 1.55e12}},
};

device::PeakRates PeakOf(absl::string_view name) {
  for (const KnownPeak& known : kKnownPeaks) {
    if (absl::StrContains(name, known.name_part)) return known.peak;
  }
  return {};
}

// Memory of the device.
class CudaMemory final : public device::Memory {
 public:
  CudaMemory(const CudaApi* cuda, int device, void* data, size_t size_bytes,
             std::atomic<int64_t>* used_bytes)
      : Memory(data, size_bytes, used_bytes), cuda_(*cuda), device_(device) {}
  // A device that has failed frees nothing; its error is reported by its streams.
  ~CudaMemory() override {
    (void)cuda_.cudaSetDevice(device_);
    (void)cuda_.cudaFree(data());
  }

 private:
  const CudaApi& cuda_;
  const int device_;
};

class PinnedMemory final : public device::Memory {
 public:
  PinnedMemory(const CudaApi* cuda, int device, void* data, size_t size_bytes,
               std::atomic<int64_t>* pinned_bytes)
      : Memory(data, size_bytes, pinned_bytes), cuda_(*cuda), device_(device) {}
  ~PinnedMemory() override {
    (void)cuda_.cudaSetDevice(device_);
    (void)cuda_.cudaFreeHost(data());
  }

 private:
  const CudaApi& cuda_;
  const int device_;
};

class CudaDevice final : public device::Device {
 public:
  CudaDevice(const CudaDeviceOptions& options, device::Description description)
      : options_(options), cuda_(*options.cuda), description_(std::move(description)) {}
  ~CudaDevice() override {
    (void)cuda_.cudaSetDevice(options_.index);
    kernels_.reset();
    if (fill_stream_ != nullptr) (void)cuda_.cudaStreamDestroy(fill_stream_);
  }

  device::Description Describe() const override { return description_; }

  absl::StatusOr<std::unique_ptr<device::Memory>> Allocate(absl::string_view name,
                                                           size_t size_bytes) override {
    RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaSetDevice(options_.index)));
    void* data = nullptr;
    // An address even for nothing: an empty tensor may still count as given.
    const size_t taken_bytes = std::max<size_t>(size_bytes, 1);
    const absl::Status taken = MEGASCALE_CUDA_CALL(cuda_, cudaMalloc(&data, taken_bytes));
    if (!taken.ok()) return base::Annotate(taken, WhatFor(name, size_bytes));
    auto memory =
        std::make_unique<CudaMemory>(&cuda_, options_.index, data, size_bytes, &used_bytes_);
    RETURN_IF_ERROR(base::Annotate(FillZero(data, taken_bytes), name));
    if (options_.on_allocate != nullptr) options_.on_allocate(data, name);
    return memory;
  }
  absl::StatusOr<std::unique_ptr<device::Memory>> AllocateForPeers(absl::string_view name,
                                                                   size_t size_bytes) override {
    return Allocate(name, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<device::Memory>> AllocateHost(absl::string_view name,
                                                               size_t size_bytes) override {
    RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaSetDevice(options_.index)));
    void* data = nullptr;
    const size_t taken_bytes = std::max<size_t>(size_bytes, 1);
    const absl::Status taken =
        MEGASCALE_CUDA_CALL(cuda_, cudaHostAlloc(&data, taken_bytes, cudaHostAllocDefault));
    if (!taken.ok()) return base::Annotate(taken, WhatFor(name, size_bytes));
    std::memset(data, 0, taken_bytes);
    return std::make_unique<PinnedMemory>(&cuda_, options_.index, data, size_bytes, &pinned_bytes_);
  }

  tensor::HostVector OnHost(const tensor::Vector& /*vector*/) const override { return {}; }

  absl::StatusOr<std::unique_ptr<stream::Stream>> MakeStream(std::string name) override {
    // Operators need the kernels, and their maker cannot return an error.
    if (options_.make_ops != nullptr) RETURN_IF_ERROR(Kernels().status());
    return CudaStream::Create({.cuda = &cuda_,
                               .device = options_.index,
                               .uses_graphs = options_.uses_graphs,
                               .num_ended = &num_ended_},
                              std::move(name));
  }

  std::unique_ptr<ops::Ops> MakeOps(stream::Stream* stream, tensor::DType compute,
                                    int /*num_threads*/) override {
    MEGASCALE_CHECK(options_.make_ops != nullptr);
    CudaStream* const own = Own(stream);
    const absl::StatusOr<cuda::KernelLibrary*> kernels = Kernels();
    // MakeStream has loaded them.
    MEGASCALE_CHECK_MSG(kernels.ok(), kernels.status().ToString());
    return options_.make_ops(
        {.cuda = &cuda_, .kernels = *kernels, .stream = own, .compute = compute});
  }

  absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeCommunicator(
      comm::HostCommunicator* host, stream::Stream* stream) override {
    CudaStream* const own = Own(stream);
    // The caller's thread may not have used the device before.
    RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaSetDevice(options_.index)));
    if (options_.make_communicator == nullptr) {
      return device::MakeStagedCommunicator(this, host, stream);
    }
    return options_.make_communicator(this, host, own);
  }

  device::ProductTuner* product_tuner() override { return options_.product_tuner.get(); }

  bool starts_groups_together() const override { return options_.make_communicator != nullptr; }
  // The staged communicator uses copies alone, which wait for nobody.
  bool needs_launch_order() const override { return options_.make_communicator != nullptr; }

 private:
  CudaStream* Own(stream::Stream* stream) const {
    auto* const own = dynamic_cast<CudaStream*>(stream);
    MEGASCALE_CHECK(own != nullptr && own->device() == options_.index);
    return own;
  }

  std::string WhatFor(absl::string_view name, size_t size_bytes) const {
    return absl::StrCat(name, ": ", size_bytes, " bytes; ", used_bytes(), " are in use");
  }

  // Waits: the memory may be used by any stream.
  absl::Status FillZero(void* data, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fill_stream_ == nullptr) {
      RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(
          cuda_, cudaStreamCreateWithFlags(&fill_stream_, cudaStreamNonBlocking)));
    }
    RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaMemsetAsync(data, 0, bytes, fill_stream_)));
    return MEGASCALE_CUDA_CALL(cuda_, cudaStreamSynchronize(fill_stream_));
  }

  absl::StatusOr<cuda::KernelLibrary*> Kernels() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kernels_ == nullptr) {
      RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaSetDevice(options_.index)));
      ASSIGN_OR_RETURN(kernels_, cuda::KernelLibrary::Load(&cuda_, options_.images));
    }
    return kernels_.get();
  }

  const CudaDeviceOptions options_;
  const CudaApi& cuda_;
  const device::Description description_;
  std::mutex mutex_;                    // guards all below
  cudaStream_t fill_stream_ = nullptr;  // made by the first memory
  std::unique_ptr<cuda::KernelLibrary> kernels_;
};

// Returns nullopt if nobody can tell.
absl::StatusOr<std::optional<int64_t>> FreeBytes(const CudaDeviceOptions& options) {
  if (options.free_bytes == nullptr) return std::nullopt;
  std::array<char, 32> bus_id = {};
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(
      *options.cuda,
      cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), options.index)));
  return options.free_bytes(bus_id.data());
}

// Asks the driver only: no context is made, which would take the device's memory.
absl::StatusOr<device::Description> Describe(const CudaDeviceOptions& options) {
  const CudaApi& cuda = *options.cuda;
  int count = 0;
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda, cudaGetDeviceCount(&count)));
  if (options.index < 0 || options.index >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("device: cuda needs GPU ", options.index, " of this machine; found ", count,
                     " (nvidia-smi and CUDA_VISIBLE_DEVICES show which)"));
  }
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda, cudaGetDeviceProperties(&properties, options.index)));
  const std::string capability = absl::StrCat(properties.major, ".", properties.minor);
  if (properties.major < kCapabilityMajorMin) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device: cuda needs compute capability ", kCapabilityMajorMin, ".0 or newer; found ",
        properties.name, " with ", capability, "; use another GPU"));
  }
  int driver = 0, runtime = 0;
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda, cudaDriverGetVersion(&driver)));
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda, cudaRuntimeGetVersion(&runtime)));
  ASSIGN_OR_RETURN(const std::optional<int64_t> free_bytes, FreeBytes(options));
  return device::Description{
      .name = properties.name,
      .numerics = absl::StrCat(properties.name, ", compute capability ", capability, ", ",
                               properties.multiProcessorCount, " multiprocessors, driver ",
                               cuda::CudaVersionText(driver), ", CUDA ",
                               cuda::CudaVersionText(runtime), options.numerics),
      .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
      .free_bytes = free_bytes,
      .peak = PeakOf(properties.name),
      .num_ranks = options.num_ranks};
}

}  // namespace

absl::StatusOr<std::unique_ptr<device::Device>> MakeCudaDevice(const CudaDeviceOptions& options) {
  MEGASCALE_CHECK(options.cuda != nullptr && options.num_ranks > 0);
  ASSIGN_OR_RETURN(device::Description description, Describe(options));
  return std::make_unique<CudaDevice>(options, std::move(description));
}

}  // namespace megascale::gpu
