// device::ProductTuner of a GPU: measures the algorithms of cuBLASLt with CUDA events, on the
// stream and in the memory that the products will use. A table's text is AlgorithmTable's.
//
// A product is measured with numbers from a fixed seed, because the speed of a GPU depends on the
// numbers. The tuner tries all algorithms that the library's heuristic names, up to 16; if a
// product takes very long, only the first few. Products that a table of this kind of device has
// (ops/products/device_table.h) are not measured. Instead the table's algorithms are checked, and
// an algorithm that the library refuses here is ignored.
//
// Private to gpu/assembly.cc and tests. Threads: as device::ProductTuner.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "absl/types/span.h"
#include "gpu/cuda/cublas_lt_api.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/ops/products/algorithm_table.h"
#include "gpu/ops/products/device_table.h"
#include "runtime/device/product_tuner.h"

namespace megascale::gpu {

// The table that the operators of a device use. Threads: any.
class ProductTableInUse {
 public:
  AlgorithmTable Get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return table_;
  }
  void Set(AlgorithmTable table) {
    const std::lock_guard<std::mutex> lock(mutex_);
    table_ = std::move(table);
  }

 private:
  mutable std::mutex mutex_;
  AlgorithmTable table_;
};

struct ProductTunerOptions {
  const cuda::CudaApi* cuda = nullptr;  // both outlive the tuner
  const cuda::CublasLtApi* cublas_lt = nullptr;
  int device = 0;  // as CUDA counts them
  bool allow_tf32 = false;
  absl::Span<const DeviceTableFile> device_tables = {};  // outlive the tuner
  std::shared_ptr<ProductTableInUse> table;              // set by Use
};
std::unique_ptr<device::ProductTuner> MakeProductTuner(ProductTunerOptions options);

}  // namespace megascale::gpu
