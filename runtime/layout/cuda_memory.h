// The GPU memory that a rank needs besides its tensors. gpu/ allocates the workspaces by these
// numbers. What the CUDA driver and NCCL take is an estimate, because we do not control it. No GPU
// has confirmed the estimates yet (docs/results/gpu-pending.md).
#pragma once

#include <cstdint>

namespace megascale::layout {

// The workspace of cuBLASLt. Only a stream that makes matrix products has one: the compute stream.
inline constexpr int64_t kCudaProductBytes = int64_t{32} << 20;
// The first workspace of a stream's own kernels. A kernel that needs more gets another workspace,
// of at least twice the size. The smaller workspaces are freed only at the end.
inline constexpr int64_t kCudaKernelBytes = int64_t{16} << 20;

// Maximum number of blocks of a norm's backward. Each block keeps two rows of partial sums in the
// kernels' workspace.
inline constexpr int64_t kCudaNormBlocksMax = 512;

// CUDA graphs (gpu/graphs): the maximum number of launches in a graph, and of graphs in a stream.
inline constexpr int64_t kCudaGraphLaunchesMax = 128;
inline constexpr int64_t kCudaGraphsMax = 512;
// What the CUDA driver keeps on the device for a launch in an instantiated graph: its arguments and
// the commands that start it. NVIDIA documents no number. 64 KiB is a safe assumption, because
// vLLM's issue 50780 reports 24 MiB for a graph of a whole forward pass, which has hundreds of
// launches.
inline constexpr int64_t kCudaGraphLaunchBytes = int64_t{64} << 10;
// An operator launches one kernel or two: norms, cross-entropy and attention launch a second kernel
// in their backward passes.
inline constexpr int64_t kCudaLaunchesPerOperator = 2;

// CUDA's context of one process on a Hopper GPU, with the code of our kernels and of the libraries.
inline constexpr int64_t kCudaContextBytes = int64_t{512} << 20;

// NCCL's buffers of one communicator: 16 channels, each with two peers (one for each direction of a
// ring or tree), each with one buffer for each of the three protocols. Sources: NCCL's user guide,
// NCCL_BUFFSIZE (4 MiB); src/include/device.h of NCCL 2.27: NCCL_LL128_MAX_NTHREADS (640) *
// NCCL_LL128_ELEMS_PER_THREAD (120) * NCCL_STEPS (8) * 8 bytes, and NCCL_LL_MAX_NTHREADS (512) *
// NCCL_LL_LINES_PER_THREAD (8) * NCCL_STEPS * 16 bytes; issue NVIDIA/nccl#864: linear in channels.
inline constexpr int64_t kNcclSimpleBytes = int64_t{4} << 20;
inline constexpr int64_t kNcclLl128Bytes = int64_t{640} * 120 * 8 * 8;
inline constexpr int64_t kNcclLlBytes = int64_t{512} * 8 * 8 * 16;
inline constexpr int64_t kNcclCommunicatorBytes =
    16 * 2 * (kNcclSimpleBytes + kNcclLl128Bytes + kNcclLlBytes);

}  // namespace megascale::layout
