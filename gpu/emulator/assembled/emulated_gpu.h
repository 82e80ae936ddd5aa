// A whole GPU on the emulator, put together as the program puts together a real one: for tests of
// engines and of programs.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gpu/assembly.h"
#include "gpu/gpu_device.h"
#include "runtime/device/device.h"

namespace megascale::emulator {

// Returns the tables of an emulated GPU without NCCL, for tests that make an EmulatedMachine of
// their own.
const gpu::GpuTables& EmulatedTables();

// Makes a device of the emulated machine of this process, which begins with the first one and lives
// on. `seed`: of the machine's order of work; only the first call's counts. Errors: as
// gpu::MakeGpuDevice.
absl::StatusOr<std::unique_ptr<device::Device>> MakeEmulatedGpu(const gpu::GpuRequest& request,
                                                                uint64_t seed);

// The same on a machine of kNumNcclGpus devices, for ranks that are threads of this process and
// exchange through an emulated NCCL whose exchanges hold their device (nccl/emulated_nccl.h).
// Copies between host and device run last of all work that is ready. A process uses this or
// MakeEmulatedGpu, not both.
inline constexpr int kNumNcclGpus = 6;
absl::StatusOr<std::unique_ptr<device::Device>> MakeEmulatedNcclGpu(const gpu::GpuRequest& request,
                                                                    uint64_t seed);

}  // namespace megascale::emulator
