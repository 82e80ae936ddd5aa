// A whole GPU on the emulator, put together as the program puts together a real GPU, for tests of
// engines and of programs.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gpu/assembly.h"
#include "gpu/gpu_device.h"
#include "runtime/device/device.h"

namespace megascale::emulator {

// Returns the tables of an emulated GPU without NCCL, for tests that make their own
// EmulatedMachine.
const gpu::GpuTables& EmulatedTables();

// Makes a device of this process's emulated machine. The first call makes the machine, which then
// exists until the process ends. `seed`: for the machine's order of work; only the seed of the
// first call counts. Errors: as gpu::MakeGpuDevice.
absl::StatusOr<std::unique_ptr<device::Device>> MakeEmulatedGpu(const gpu::GpuRequest& request,
                                                                uint64_t seed);

// The same on a machine of kNumNcclGpus devices, for ranks that are threads of this process. They
// exchange through an emulated NCCL with holds_device (nccl/emulated_nccl.h). Of all work that is
// ready, copies between host and device run last. A process may use this or MakeEmulatedGpu, not
// both.
inline constexpr int kNumNcclGpus = 6;
absl::StatusOr<std::unique_ptr<device::Device>> MakeEmulatedNcclGpu(const gpu::GpuRequest& request,
                                                                    uint64_t seed);

}  // namespace megascale::emulator
