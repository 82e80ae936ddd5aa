// The functions of the CUDA runtime that the program uses, as a table. The program fills the table
// from the library on this machine; tests fill it with the functions of an emulator (gpu/emulator).
// Names, arguments and contracts are CUDA's own.
//
//   ASSIGN_OR_RETURN(const CudaApi* cuda, LoadCuda());
//   RETURN_IF_ERROR(ToStatus(*cuda, cuda->cudaMalloc(&memory, bytes), "cudaMalloc"));
//
// Never include cuda_runtime.h or call ::cudaMalloc, because then the program could not even start
// without the library. Threads: any.
#pragma once

// The templates of cuda_runtime.h overload the functions, so that decltype(&function) is ambiguous.
#ifdef __CUDA_RUNTIME_H__
#error "include gpu/cuda/cuda_api.h first; nccl.h comes from gpu/cuda/nccl_api.h"
#endif
// With this macro, the table's names would mean other functions.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#error "the program has no default stream: undefine CUDA_API_PER_THREAD_DEFAULT_STREAM"
#endif

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu/cuda/library.h"

namespace megascale::cuda {

// clang-format off
#define MEGASCALE_CUDA_FUNCTIONS(_)                                           \
  /* devices and versions */                                                  \
  _(cudaGetDeviceCount) _(cudaGetDeviceProperties) _(cudaDeviceGetAttribute)  \
  _(cudaDeviceGetPCIBusId) _(cudaDeviceGetStreamPriorityRange)                \
  _(cudaSetDevice) _(cudaGetDevice) _(cudaDeviceSynchronize)                  \
  _(cudaMemGetInfo) _(cudaDriverGetVersion) _(cudaRuntimeGetVersion)          \
  /* memory */                                                                \
  _(cudaMalloc) _(cudaFree) _(cudaHostAlloc) _(cudaFreeHost)                  \
  _(cudaMemcpyAsync) _(cudaMemsetAsync)                                       \
  /* streams and events */                                                    \
  _(cudaStreamCreateWithFlags) _(cudaStreamCreateWithPriority)                \
  _(cudaStreamDestroy) _(cudaStreamSynchronize) _(cudaStreamQuery)            \
  _(cudaStreamWaitEvent)                                                      \
  _(cudaEventCreateWithFlags) _(cudaEventDestroy) _(cudaEventRecord)          \
  _(cudaEventRecordWithFlags) _(cudaEventQuery) _(cudaEventSynchronize)       \
  _(cudaEventElapsedTime)                                                     \
  /* kernels */                                                               \
  _(cudaLibraryLoadData) _(cudaLibraryUnload) _(cudaLibraryGetKernel)         \
  _(cudaLaunchKernelExC) _(cudaFuncSetAttribute) _(cudaFuncGetAttributes)     \
  /* graphs */                                                                \
  _(cudaStreamBeginCapture) _(cudaStreamEndCapture) _(cudaStreamIsCapturing)  \
  _(cudaThreadExchangeStreamCaptureMode) _(cudaGraphInstantiate)              \
  _(cudaGraphLaunch) _(cudaGraphExecDestroy) _(cudaGraphDestroy)              \
  /* errors */                                                                \
  _(cudaGetErrorName) _(cudaGetErrorString) _(cudaGetLastError)               \
  _(cudaPeekAtLastError)
// clang-format on

struct CudaApi {
  MEGASCALE_CUDA_FUNCTIONS(MEGASCALE_TABLE_MEMBER)
};

// The oldest supported CUDA, in the format of cudaRuntimeGetVersion.
constexpr int kCudaVersionMin = 13000;

// Returns the table of the library on this machine, which it opens at the first call. Errors:
// FailedPrecondition, one line - the library or the driver is missing or older than CUDA 13.0.
absl::StatusOr<const CudaApi*> LoadCuda();

// The two halves of LoadCuda. LoadCudaFrom returns the table of the first of `files` that can be
// opened.
absl::StatusOr<CudaApi> LoadCudaFrom(const std::vector<std::string>& files);
absl::Status CheckCudaDriver(const CudaApi& cuda);

// Returns a version of CUDA for people: 13010 is "13.1".
std::string CudaVersionText(int version);

}  // namespace megascale::cuda
