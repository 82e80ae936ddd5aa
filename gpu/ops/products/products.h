// Matrix products of a CUDA device, by cuBLASLt.
//
// The algorithm that computes a product is part of the numerics (algorithm_table.h). A product that
// is in the table is computed by the table's algorithm, or not at all. A product that is not in the
// table is computed by the first algorithm that the library's heuristic names, and is added to the
// table. Algorithms that give different bits from one run to the next, or that round between
// partial sums, are never used. So k is split only if the parts are kept in fp32 and added in a
// separate step.
//
// Numerics: bf16 products are summed in fp32 and rounded once. fp32 products are fp32 all the way,
// unless `allow_tf32`. The library and its version, the kind of device, the table and the size of
// the workspace decide the bits.
//
// Cost: the first call for each product makes descriptors and asks the library. Later calls reuse
// them.
//
// Threads: only the stream's thread.
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

// The size that NVIDIA recommends. Algorithms that split k need a workspace.
inline constexpr size_t kProductWorkspaceBytesHopper = layout::kCudaProductBytes;
inline constexpr size_t kProductWorkspaceBytes = size_t{4} << 20;  // before Hopper

class Products {
 public:
  struct Options {
    const cuda::CublasLtApi* api = nullptr;  // outlives the object
    cudaStream_t stream = nullptr;
    // The stream's work, to which products are added; null: each product is started at once.
    StreamWork* work = nullptr;
    tensor::DType compute = tensor::DType::kBF16;  // kF32 or kBF16
    // fp32 products may round their operands to TF32 (10 bits of mantissa) and use tensor cores.
    bool allow_tf32 = false;
    // Device memory at a multiple of 256 bytes, for this object alone. All ranks and attempts of a
    // job must give the same size, because the size limits which algorithms can be used.
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    AlgorithmTable table;
    // What cuBLASLt cannot do, on the same stream. `fill_zero` is for products whose k is 0. `cast`
    // (bf16 to fp32) is for a bias whose product is fp32 in bf16 compute: cuBLASLt adds a bias only
    // in the type of the result, so `cast` copies the bias to the workspace. `add` adds the
    // gradient of a bias (fp32) to the gradients of earlier micro-batches: cuBLASLt can only
    // overwrite, so it writes the gradient to the workspace first.
    std::function<void(void* data, size_t bytes)> fill_zero;
    std::function<void(const tensor::Vector& from, const tensor::Vector& to)> cast;
    std::function<void(const tensor::Vector& from, const tensor::Vector& to)> add;
  };

  // Errors: FailedPrecondition - the library finds no device that it can use.
  static absl::StatusOr<std::unique_ptr<Products>> Create(Options options);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Whether an epilogue of these arguments can be computed in the same launch as the product. These
  // are: GELU by tanh, or its gradient, of matrices in bf16 whose rows begin at multiples of 16
  // bytes, which are then rounded once; and the gradient of a bias, with the fp32 gradient of a
  // weight from bf16. Depends on nothing else, so all ranks and attempts round in the same way.
  static bool Fuses(const ops::MatMulArgs& args);
  // Returns the product with only its fused epilogue: the epilogue for which Fuses returns true and
  // the table does not have kNoAlgorithm, if there is one. `options`: as for ProductOf.
  static absl::StatusOr<ops::MatMulArgs> WithFusedEpilogue(const ops::MatMulArgs& args,
                                                           const AlgorithmTable& table,
                                                           const Options& options);
  // Whether MatMul computes the epilogue of these arguments: if Fuses returns true and the table
  // does not have kNoAlgorithm for it.
  bool MakesEpilogue(const ops::MatMulArgs& args) const;

  // Starts c (+)= op(a) op(b) [+ bias] with the fused epilogue, or adds it to the stream's work,
  // whose errors are reported later; see ops.h. Does nothing if m or n is 0. Requires (CHECK): the
  // arguments fit (ops::CheckArguments) and are WithFusedEpilogue. Errors: FailedPrecondition -
  // there is no algorithm, or this library or device refuses the table's algorithm; the message
  // names product and library version, and nothing was started. Internal - a call of the library
  // failed. Errors on the device are reported later, as for all work of the stream.
  absl::Status MatMul(const ops::MatMulArgs& args);

  // Makes what the first MatMul with these arguments would make, but starts nothing, so that a
  // table that does not fit is found before the first step. Errors: as MatMul.
  absl::Status Prepare(const ops::MatMulArgs& args);

  // Returns the product that MatMul with these arguments would look up in the table; k is 0 if
  // there is nothing to compute. Uses only the types and the workspace's size of `options`.
  static absl::StatusOr<Product> ProductOf(const Options& options, const ops::MatMulArgs& args);

  // Returns how long `run`, which starts one product on the stream, takes on the device. A timer
  // may call `run` any number of times.
  using Timer =
      std::function<absl::StatusOr<absl::Duration>(const std::function<absl::Status()>& run)>;

  // Times the `num_algorithms` algorithms that the heuristic names first, and puts the fastest into
  // the table; of equally fast algorithms, the one that was named first. An algorithm that fails is
  // skipped. Does nothing for a product that the table has. Requires: Options::work is null.
  // Effects: c is undefined afterwards. Errors: as MatMul and the timer.
  absl::Status Tune(const ops::MatMulArgs& args, const Timer& timer, int num_algorithms = 16);

  // Returns every product that was prepared so far, and the products of Options::table.
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
