// cuBLASLt without a device, for tests: fills the same table as the library. Descriptors hold their
// attributes and refuse wrong sizes. The heuristic, its preferences and the check of algorithms
// work as the manual says, on a few pretended algorithms. A product is computed in float64 and
// rounded once to the type of its result, so that all algorithms give the same bits.
//
// Products run in the order of their stream, through the `enqueue` function of the emulated
// runtime, and find device memory with kernels::host::Translate. The part of the workspace that an
// algorithm needs, and the end of the workspace that it was given, are overwritten with NaNs.
//
// It is stricter than the library where this finds bugs: an attribute that it does not emulate may
// not be set, sizes of 0 are refused, and every handle and descriptor must still exist.
//
// Threads: any. The program has one emulated library, as it would have one real library.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "gpu/cuda/cublas_lt_api.h"

namespace megascale::emulator {

// Runs the work on the stream, after everything that was enqueued before.
using Enqueue = std::function<void(cudaStream_t stream, std::function<void()> work)>;

// Returns the table. Resets the counts and the faults below.
cuda::CublasLtApi MakeCublasLt(Enqueue enqueue);

struct CublasLtCounts {
  int created = 0;     // handles, descriptors, layouts and preferences, since MakeCublasLt
  int alive = 0;       // of these
  int heuristics = 0;  // requests to the heuristic
  int products = 0;
  cublasLtMatmulAlgo_t last_algorithm = {};  // of a product that was started
};
CublasLtCounts CountsOfCublasLt();

// Differences from a library and a device without faults.
struct CublasLtFaults {
  size_t version = 130100;     // of cublasLtGetVersion
  int refused_algorithm = -1;  // id of an algorithm that this device does not run
  bool has_heuristic = true;
  bool has_activations = true;     // GELU and its gradient as epilogues
  bool has_bias_gradients = true;  // as epilogues
  cublasStatus_t create_status = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t product_status = CUBLAS_STATUS_SUCCESS;
};
void SetFaultsOfCublasLt(const CublasLtFaults& faults);

}  // namespace megascale::emulator
