#include "gpu/assembly.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/comm/nccl_communicator.h"
#include "gpu/cuda/cuda_status.h"
#include "gpu/device/cuda_device.h"
#include "gpu/ops/kernel_ops.h"
#include "gpu/ops/operators.h"
#include "gpu/ops/products/products.h"
#include "gpu/ops/stream_launcher.h"
#include "gpu/product_tuner.h"
#include "runtime/base/status.h"

namespace megascale::gpu {
namespace {

// What decides how a device computes a product.
struct ProductChoice {
  bool allow_tf32 = false;
  std::shared_ptr<ProductTableInUse> table;
};

// The products of one stream. The library and its workspace are taken by the first product:
// streams that only reduce and update need neither.
class StreamProducts {
 public:
  StreamProducts(const GpuTables& tables, const CudaOpsRequest& request,
                 const ProductChoice& choice, Launcher* launcher)
      : tables_(tables), request_(request), choice_(choice), launcher_(*launcher) {}
  ~StreamProducts() {
    if (workspace_ == nullptr) return;
    // Products may still run, or be a part of work that was not issued.
    request_.stream->work().Finish();
    products_.reset();
    (void)tables_.cuda->cudaFree(workspace_);
  }
  StreamProducts(const StreamProducts&) = delete;
  StreamProducts& operator=(const StreamProducts&) = delete;

  void MatMul(const ops::MatMulArgs& args) { request_.stream->Issued(TryMatMul(args)); }
  // Whether MatMul makes the epilogue, too.
  bool MakesEpilogue(const ops::MatMulArgs& args) {
    if (!Products::Fuses(args)) return false;
    // MatMul reports what goes wrong here.
    if (products_ == nullptr && !Open().ok()) return true;
    return products_->MakesEpilogue(args);
  }

 private:
  absl::Status TryMatMul(const ops::MatMulArgs& args) {
    if (products_ == nullptr) RETURN_IF_ERROR(Open());
    return products_->MatMul(args);
  }

  absl::Status Open() {
    // Once, although each product tries again after an error.
    if (workspace_ == nullptr) {
      RETURN_IF_ERROR(base::Annotate(
          MEGASCALE_CUDA_CALL(*tables_.cuda, cudaMalloc(&workspace_, kProductWorkspaceBytesHopper)),
          "workspace of matrix products"));
    }
    Products::Options options = {
        .api = tables_.cublas_lt,
        .stream = request_.stream->handle(),
        .work = &request_.stream->work(),
        .compute = request_.compute,
        .allow_tf32 = choice_.allow_tf32,
        .workspace = workspace_,
        .workspace_bytes = kProductWorkspaceBytesHopper,
        .table = choice_.table->Get(),
        .fill_zero = [this](void* data, size_t bytes) { launcher_.FillZero(data, bytes); },
        .cast = [this](const tensor::Vector& from,
                       const tensor::Vector& to) { Cast(launcher_, from, to); },
        .add = [this](const tensor::Vector& from,
                      const tensor::Vector& to) { AddScaled(launcher_, 1, from, to); }};
    ASSIGN_OR_RETURN(products_, Products::Create(std::move(options)));
    return absl::OkStatus();
  }

  const GpuTables tables_;
  const CudaOpsRequest request_;
  const ProductChoice choice_;
  Launcher& launcher_;
  void* workspace_ = nullptr;
  std::unique_ptr<Products> products_;
};

std::unique_ptr<ops::Ops> MakeOps(const GpuTables& tables, const ProductChoice& choice,
                                  const CudaOpsRequest& request) {
  CudaStream* const stream = request.stream;
  auto launcher =
      MakeStreamLauncher(request.cuda, request.kernels, &stream->work(),
                         [stream](const absl::Status& status) { stream->Issued(status); });
  const auto products = std::make_shared<StreamProducts>(tables, request, choice, launcher.get());
  return MakeKernelOps(
      request.compute, std::move(launcher),
      {.multiply = [products](const ops::MatMulArgs& args) { products->MatMul(args); },
       .fuses = [products](const ops::MatMulArgs& args) { return products->MakesEpilogue(args); }});
}

}  // namespace

absl::StatusOr<std::unique_ptr<device::Device>> AssembleGpuDevice(const GpuTables& tables,
                                                                  const GpuRequest& request) {
  int count = 0;
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(*tables.cuda, cudaGetDeviceCount(&count)));
  if (request.local_rank >= count && !(request.may_share && count > 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("device: cuda: rank ", request.local_rank,
                     " of this machine needs a GPU of its own; found ", count,
                     "; place fewer ranks here, or let them share with device_sharing: true"));
  }
  const ProductChoice choice = {.allow_tf32 = request.allow_tf32,
                                .table = std::make_shared<ProductTableInUse>()};
  CudaDeviceOptions options = {
      .cuda = tables.cuda,
      .images = tables.images,
      .index = request.local_rank % count,
      .num_ranks = request.may_share ? request.local_rank / count + 1 : 1,
      .numerics = absl::StrCat(", cuBLASLt ", tables.cublas_lt->cublasLtGetVersion(),
                               ", GELU and gradients of biases in bf16 products"),
      .uses_graphs = request.uses_graphs,
      .make_ops = [tables,
                   choice](const CudaOpsRequest& ops) { return MakeOps(tables, choice, ops); },
      .product_tuner = MakeProductTuner({.cuda = tables.cuda,
                                         .cublas_lt = tables.cublas_lt,
                                         .device = request.local_rank % count,
                                         .allow_tf32 = choice.allow_tf32,
                                         .device_tables = tables.device_tables,
                                         .table = choice.table}),
      .on_allocate = tables.on_allocate};
  if (tables.nvml != nullptr) {
    options.free_bytes = [nvml = tables.nvml](const std::string& bus_id) {
      return cuda::FreeBytes(*nvml, bus_id);
    };
  }
  if (tables.open_nccl == nullptr || request.may_share) {
    options.numerics += ", exchanges through the host";
  } else {
    const cuda::NcclApi* nccl = nullptr;
    if (!request.is_alone) {
      ASSIGN_OR_RETURN(nccl, tables.open_nccl());
      int version = 0;
      if (nccl->ncclGetVersion(&version) != ncclSuccess) {
        return absl::FailedPreconditionError("device: cuda: NCCL does not tell its version");
      }
      absl::StrAppend(&options.numerics, ", NCCL ", version);
    }
    options.make_communicator = [nccl, cuda = tables.cuda, request](device::Device* /*device*/,
                                                                    comm::HostCommunicator* host,
                                                                    CudaStream* stream) {
      return cuda::MakeNcclCommunicator(
          {.nccl = nccl,
           .cuda = cuda,
           .host = host,
           .stream = stream->handle(),
           .start_timeout = request.start_timeout,
           .default_timeout = request.call_timeout,
           .before_call = [stream] { stream->work().Issue(); },
           .on_failure = [stream](const absl::Status& status) { stream->Issued(status); }});
    };
  }
  return MakeCudaDevice(options);
}

}  // namespace megascale::gpu
