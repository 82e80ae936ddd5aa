// A machine with emulated GPUs: it fills the table of the CUDA runtime (gpu/cuda) with functions
// that behave like CUDA's under the strictest reading of its contracts.
//
//   EmulatedMachine machine({.seed = 7});
//   const cuda::CudaApi* cuda = EmulatedCuda();
//
//   - Device memory has addresses that the host cannot access: a stray access ends the process with
//     a line that names the memory. The devices access the same bytes at other addresses, a
//     constant offset away. Each block is followed by a page that nobody may access.
//   - New memory is not zero.
//   - Work runs late, on one thread of the machine. A seed decides the order, among the orders that
//     streams and events allow.
//   - Kernels are those of gpu/kernels, compiled for the host; block_executor.h runs them and finds
//     their races. If a kernel breaks a rule, a line is logged, and the device fails.
//   - Errors of work are reported late, and stay: every later call of the device returns them.
//   - Calls that are not allowed while a stream is captured are refused, and end the capture. The
//     first launch of a kernel is not allowed then, because it may load the kernel.
//
// Not emulated: the default stream, managed memory, peers, kernels that are launched from several
// devices at the same time.
//
// Threads: any, as with CUDA.
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
  uint64_t seed = 1;  // for the order of work, and of threads and blocks
  int num_devices = 1;
  // Each device stands for a device of another process: freeing memory waits for the work of the
  // calling thread's device. Default: it waits for the work of all devices, as within a process.
  bool has_process_per_device = false;
  size_t memory_bytes = size_t{2} << 30;  // of each device
  // Copies between host and device run only when nothing else can run, so that work that does not
  // wait for them runs before them.
  bool copies_last = false;
  int64_t fail_at_work = 0;  // number of the kernel, copy or fill that fails, from 1; 0: none
  cudaError_t failure = cudaErrorLaunchFailure;  // how it fails
  int num_multiprocessors = 4;
  std::string device_name = "Emulated GPU";
  int driver_version = 13000;
};

// A process has one at a time. When it is destroyed, all memory, streams, events and graphs must
// have been freed.
class EmulatedMachine {
 public:
  explicit EmulatedMachine(const EmulatedOptions& options = {});
  ~EmulatedMachine();
  EmulatedMachine(const EmulatedMachine&) = delete;
  EmulatedMachine& operator=(const EmulatedMachine&) = delete;

  // Returns the number of kernels, copies and fills that have run.
  int64_t num_work() const;

 private:
  const std::unique_ptr<Machine> machine_;
};

// Returns the table, whose functions act on the machine that exists when they are called.
const cuda::CudaApi* EmulatedCuda();

// Replaces cuda::KernelImages(): one image, with all kernels that emulator::FindKernel finds.
absl::Span<const cuda::KernelImage> EmulatedImages();

// Sets the name under which stray accesses to a block of device memory are reported.
void NameDeviceMemory(const void* block, absl::string_view name);

// Numbers of calls to some functions of the table since the machine was made.
struct EmulatedCalls {
  int64_t allocations = 0;     // cudaMalloc, cudaHostAlloc
  int64_t launches = 0;        // cudaLaunchKernelExC, captured or not
  int64_t instantiations = 0;  // cudaGraphInstantiate
  int64_t graph_nodes = 0;     // kernels, copies and fills in graphs that were instantiated
  int64_t graph_launches = 0;  // cudaGraphLaunch
};
EmulatedCalls CountEmulatedCalls();

// The following functions are for emulations of other libraries (cuBLASLt, NCCL).

// Returns the address at which this program finds `bytes` bytes of device memory. Errors:
// InvalidArgument - the bytes do not lie in one block of device memory.
absl::StatusOr<std::byte*> WorkingAddress(const void* address, size_t bytes);

// Queues or captures `work` on a stream, like the launch of a kernel. `work` runs on the machine's
// thread and must not wait for other work. If it returns an error, the device fails.
using Work = std::function<absl::Status()>;
cudaError_t IssueWork(cudaStream_t stream, Work work);

// The same for work that waits for others, such as an exchange between ranks. `start` is called
// when the stream reaches it, and must return at once. The stream continues when `done` has been
// called, on any thread. A device that has failed in the meantime still waits for `done`.
using Done = std::function<void(const absl::Status& status)>;
cudaError_t IssueStart(cudaStream_t stream, std::function<void(Done done)> start);

}  // namespace megascale::emulator
