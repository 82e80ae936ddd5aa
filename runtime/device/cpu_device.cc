#include "runtime/device/cpu_device.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/status.h"
#include "runtime/device/direct_communicator.h"
#include "runtime/device/host_views.h"
#include "runtime/stream/host_stream.h"
#include "runtime/tensor/arena.h"

namespace megascale::device {
namespace {

// Memory of this process alone.
class PrivateMemory final : public Memory {
 public:
  PrivateMemory(tensor::Arena arena, std::atomic<int64_t>* used_bytes)
      : Memory(arena.data(), arena.capacity_bytes(), used_bytes), arena_(std::move(arena)) {}

 private:
  const tensor::Arena arena_;
};

class PeersMemory final : public Memory {
 public:
  PeersMemory(std::unique_ptr<base::SharedMemory> memory, std::atomic<int64_t>* used_bytes)
      : Memory(memory->data(), memory->size_bytes(), used_bytes), memory_(std::move(memory)) {}
  const base::SharedMemory* shared() const override { return memory_.get(); }

 private:
  const std::unique_ptr<base::SharedMemory> memory_;
};

class CpuDevice final : public Device {
 public:
  Description Describe() const override {
    const auto limit = base::SmallestMemoryLimit();
    return {.name = "cpu",
            .numerics = ops::InstructionSet(),
            .memory_bytes = limit.has_value() ? limit->limit_bytes : 0};
  }

  absl::StatusOr<std::unique_ptr<Memory>> Allocate(absl::string_view name,
                                                   size_t size_bytes) override {
    absl::StatusOr<tensor::Arena> arena = tensor::Arena::Create(size_bytes);
    if (!arena.ok()) return base::Annotate(arena.status(), name);
    return std::make_unique<PrivateMemory>(*std::move(arena), &used_bytes_);
  }
  absl::StatusOr<std::unique_ptr<Memory>> AllocateForPeers(absl::string_view name,
                                                           size_t size_bytes) override {
    if (size_bytes == 0) return Allocate(name, 0);
    ASSIGN_OR_RETURN(auto memory,
                     base::SharedMemory::Create(absl::StrCat("megascale-", name), size_bytes));
    return std::make_unique<PeersMemory>(std::move(memory), &used_bytes_);
  }
  absl::StatusOr<std::unique_ptr<Memory>> AllocateHost(absl::string_view name,
                                                       size_t size_bytes) override {
    return Allocate(name, size_bytes);
  }

  tensor::HostVector OnHost(const tensor::Vector& vector) const override {
    return HostViews::View(vector);
  }

  absl::StatusOr<std::unique_ptr<stream::Stream>> MakeStream(std::string name) override {
    return stream::HostStream::Create(std::move(name));
  }

  std::unique_ptr<ops::Ops> MakeOps(stream::Stream* /*stream*/, tensor::DType compute,
                                    int num_threads) override {
    return compute == tensor::DType::kF64 ? ops::MakeReferenceOps()
                                          : ops::MakeCpuOps(compute, num_threads);
  }

  absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeCommunicator(
      comm::HostCommunicator* host, stream::Stream* /*stream*/) override {
    return MakeDirectCommunicator(this, host);
  }
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace megascale::device
