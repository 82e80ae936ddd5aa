// Matrix products of a CUDA device, by cuBLASLt.
//
// Which algorithm makes a product is part of the numerics (algorithm_table.h). A product that is in
// the table is made by the table's algorithm, or not at all; one that is not is made by the first
// that the library's heuristic names, and is added to the table. Algorithms that give different
// bits from one run to the next, or that round between partial sums, are never taken: k is split
// only where the parts are kept in fp32 and added in a separate step.
//
// Numerics: bf16 products are summed in fp32 and rounded once. fp32 products are fp32 all the way,
// unless `allow_tf32`. The library and its version, the kind of device, the table and the size of
// the workspace decide the bits.
//
// Cost: the first call of each product makes descriptors and asks the library. Later calls make
// nothing.
//
// Threads: one, the stream's.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu/cuda/cublas_lt_api.h"
#include "gpu/graphs/stream_work.h"
#include "gpu/ops/products/algorithm_table.h"
#include "runtime/layout/cuda_memory.h"
#include "runtime/ops/ops.h"

namespace megascale::gpu {

// What NVIDIA advises: algorithms that split k need it.
inline constexpr size_t kProductWorkspaceBytesHopper = layout::kCudaProductBytes;
inline constexpr size_t kProductWorkspaceBytes = size_t{4} << 20;  // before Hopper

class Products {
 public:
  struct Options {
    const cuda::CublasLtApi* api = nullptr;  // outlives the object
    cudaStream_t stream = nullptr;
    // The stream's work, of which products become a part; null: each is started at once.
    StreamWork* work = nullptr;
    tensor::DType compute = tensor::DType::kBF16;  // kF32 or kBF16
    // fp32 products may round their operands to TF32 (10 bits of mantissa) and use tensor cores.
    bool allow_tf32 = false;
    // Device memory at a multiple of 256, for this object alone. All ranks and attempts of a job
    // give the same size: it limits which algorithms there are.
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    AlgorithmTable table;
    // What cuBLASLt cannot do, on the same stream. `fill_zero` serves products whose k is 0; `cast`
    // (bf16 to fp32) serves a bias whose product is fp32 in bf16 compute: cuBLASLt adds a bias only
    // in the type of the result, so a copy of it is made in the workspace. `add` adds the gradient
    // of a bias (fp32) to those of earlier micro-batches: cuBLASLt overwrites it, in the workspace.
    std::function<void(void* data, size_t bytes)> fill_zero;
    std::function<void(const tensor::Vector& from, const tensor::Vector& to)> cast;
    std::function<void(const tensor::Vector& from, const tensor::Vector& to)> add;
  };

  // Errors: FailedPrecondition - the library finds no device that it can use.
  static absl::StatusOr<std::unique_ptr<Products>> Create(Options options);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Whether an epilogue of these arguments is made in the same launch as the product: GELU by tanh,
  // or its gradient, of matrices in bf16 whose rows begin at multiples of 16 bytes, which are then
  // rounded once; and the gradient of a bias, with the fp32 gradient of a weight from bf16. Depends
  // on nothing else, so all ranks and attempts round alike.
  static bool Fuses(const ops::MatMulArgs& args);
  // Returns the product with the epilogue that it fuses, if it does and the table does not have
  // kNoAlgorithm for that epilogue, and with no other one. `options`: as for ProductOf.
  static absl::StatusOr<ops::MatMulArgs> WithFusedEpilogue(const ops::MatMulArgs& args,
                                                           const AlgorithmTable& table,
                                                           const Options& options);
  // Whether MatMul is to make the epilogue of these arguments: Fuses, unless the table has
  // kNoAlgorithm for it.
  bool MakesEpilogue(const ops::MatMulArgs& args) const;

  // Starts c (+)= op(a) op(b) [+ bias] with the epilogue that is fused, or adds it to the stream's
  // work, whose errors are reported later; see ops.h. Where m or n is 0 it does nothing.
  // Requires (CHECK): the arguments fit (ops::CheckArguments) and are WithFusedEpilogue.
  // Errors: FailedPrecondition - no algorithm, or the table's is refused by this library or device:
  // the message names product and library version, and nothing was started. Internal - a call of
  // the library failed. What goes wrong on the device shows later, as for all work of the stream.
  absl::Status MatMul(const ops::MatMulArgs& args);

  // Makes what the first MatMul with these arguments would make, and starts nothing: a table that
  // does not fit is found before the first step. Errors: as MatMul.
  absl::Status Prepare(const ops::MatMulArgs& args);

  // Returns the product that MatMul with these arguments would look up in the table; k is 0 where
  // there is nothing to compute. Of the options only types and the workspace's size count.
  static absl::StatusOr<Product> ProductOf(const Options& options, const ops::MatMulArgs& args);

  // Returns how long `run`, which starts one product on the stream, takes on the device; it may run
  // it as often as it likes.
  using Timer =
      std::function<absl::StatusOr<absl::Duration>(const std::function<absl::Status()>& run)>;

  // Times the `num_algorithms` algorithms that the heuristic names first, and puts the fastest into
  // the table; of equals, the one that was named first. One that fails is passed over. Does nothing
  // for a product that the table has. Requires: Options::work is null.
  // Effects: c is undefined afterwards. Errors: as MatMul and the timer.
  absl::Status Tune(const ops::MatMulArgs& args, const Timer& timer, int num_algorithms = 16);

  // Every product that was prepared so far, and those that came with the table.
  const AlgorithmTable& table() const { return options_.table; }

 private:
  struct Call;
  struct Plan;
  struct Started;
  struct PlanKey {
    Product product;
    int64_t a_stride = 0, b_stride = 0, c_stride = 0, aux_stride = 0;

    bool operator==(const PlanKey&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const PlanKey& key) {
      return H::combine(std::move(h), key.product, key.a_stride, key.b_stride, key.c_stride,
                        key.aux_stride);
    }
  };

  explicit Products(Options options);

  absl::StatusOr<Call> MakeCall(const ops::MatMulArgs& args) const;
  absl::StatusOr<const Plan*> PlanOf(const Call& call);
  absl::StatusOr<std::unique_ptr<Plan>> MakePlan(const Call& call) const;
  absl::StatusOr<std::vector<Algorithm>> Candidates(const Call& call, const Plan& plan,
                                                    int num_algorithms) const;
  absl::Status Restore(const Call& call, const Algorithm& algorithm, Plan* plan) const;
  absl::Status Start(const Call& call, const Plan& plan) const;
  // Starts the product of a Started on a stream.
  static absl::Status Run(const void* started, cudaStream_t stream);
  absl::StatusOr<Algorithm> Read(const cublasLtMatmulAlgo_t& words) const;
  absl::StatusOr<cublasLtMatmulAlgo_t> Write(const Product& product,
                                             const Algorithm& algorithm) const;
  absl::Status Called(const char* function, cublasStatus_t status) const;
  std::string Library() const;

  Options options_;
  cublasLtHandle_t handle_ = nullptr;
  absl::flat_hash_map<PlanKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace megascale::gpu
