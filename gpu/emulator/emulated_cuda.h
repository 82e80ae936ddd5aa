// A machine with GPUs that are not there: it fills the table of the CUDA runtime (gpu/cuda) with
// functions that behave as CUDA's at its strictest.
//
//   EmulatedMachine machine({.seed = 7});
//   const cuda::CudaApi* cuda = EmulatedCuda();
//
//   - Device memory has addresses that the host cannot touch: a stray access ends the process with
//     a line that names the memory. The devices work on the same bytes at other addresses, a
//     constant offset away, each block followed by a page that nobody may touch.
//   - Memory is not zero when it is new.
//   - Work runs late, on one thread of the machine, in an order drawn by a seed among those that
//     streams and events allow.
//   - Kernels are those of gpu/kernels, compiled for the host: block_executor.h runs them and finds
//     their races. A kernel that breaks a rule logs a line and fails the device.
//   - Errors of work come late, and stay: every later call of the device returns them.
//   - Calls that are not allowed while a stream is captured are refused, and end the capture; so is
//     the first launch of a kernel, which may load it.
//
// Not emulated: the default stream, managed memory, peers, kernels that are launched from several
// devices at the same time.
//
// Threads: any, as CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/kernel_images.h"

namespace megascale::emulator {

class Machine;

struct EmulatedOptions {
  uint64_t seed = 1;  // of the order of work, and of threads and blocks
  int num_devices = 1;
  // Each device stands for the one of another process: freeing memory waits for the work of the
  // calling thread's device. Default: for the work of all, as within a process.
  bool has_process_per_device = false;
  size_t memory_bytes = size_t{2} << 30;  // of each device
  // Copies between host and device run only while nothing else can: what does not wait for them is
  // done before them.
  bool copies_last = false;
  int64_t fail_at_work = 0;  // the kernel, copy or fill that fails, from 1; 0: none
  cudaError_t failure = cudaErrorLaunchFailure;  // how it fails
  int num_multiprocessors = 4;
  std::string device_name = "Emulated GPU";
  int driver_version = 13000;
};

// One at a time in a process. Requires at its end: all memory, streams, events and graphs were
// freed.
class EmulatedMachine {
 public:
  explicit EmulatedMachine(const EmulatedOptions& options = {});
  ~EmulatedMachine();
  EmulatedMachine(const EmulatedMachine&) = delete;
  EmulatedMachine& operator=(const EmulatedMachine&) = delete;

  // Kernels, copies and fills that have run.
  int64_t num_work() const;

 private:
  const std::unique_ptr<Machine> machine_;
};

// Returns the table, whose functions act on the machine that exists when they are called.
const cuda::CudaApi* EmulatedCuda();

// What stands for cuda::KernelImages(): one image, with all kernels that emulator::FindKernel
// finds.
absl::Span<const cuda::KernelImage> EmulatedImages();

// Sets the name under which stray accesses to a block of device memory are reported.
void NameDeviceMemory(const void* block, absl::string_view name);

// Calls that the host made of some functions of the table, since the machine began.
struct EmulatedCalls {
  int64_t allocations = 0;     // cudaMalloc, cudaHostAlloc
  int64_t launches = 0;        // cudaLaunchKernelExC, captured or not
  int64_t instantiations = 0;  // cudaGraphInstantiate
  int64_t graph_nodes = 0;     // kernels, copies and fills in graphs that were instantiated
  int64_t graph_launches = 0;  // cudaGraphLaunch
};
EmulatedCalls CountEmulatedCalls();

// The following serve emulations of other libraries (cuBLASLt, NCCL).

// Returns where this program finds `bytes` bytes of device memory. Errors: InvalidArgument - they
// do not lie in one block of device memory.
absl::StatusOr<std::byte*> WorkingAddress(const void* address, size_t bytes);

// Queues `work` on a stream, as the launch of a kernel is; it is captured as one is. It runs on the
// machine's thread and must not wait for other work. A status other than OK fails the device.
using Work = std::function<absl::Status()>;
cudaError_t IssueWork(cudaStream_t stream, Work work);

// The same for work that waits for others (an exchange between ranks): `start` is called when the
// stream reaches it and returns at once; the stream goes on when `done` was called, on any thread.
// A device that failed meanwhile still waits for `done`.
using Done = std::function<void(const absl::Status& status)>;
cudaError_t IssueStart(cudaStream_t stream, std::function<void(Done done)> start);

}  // namespace megascale::emulator
