// What a rank takes of a GPU besides its tensors. gpu/ allocates the workspaces by these numbers;
// what the driver and NCCL take is not ours to decide, and estimated. No GPU has confirmed the
// estimates yet (docs/results/gpu-pending.md).
#pragma once

#include <cstdint>

namespace megascale::layout {

// The workspace of cuBLASLt. Only a stream that makes matrix products has one: the compute stream.
inline constexpr int64_t kCudaProductBytes = int64_t{32} << 20;
// The first workspace of a stream's own kernels. A kernel that needs more gets another one, of at
// least twice the size, and the smaller ones stay until the end.
inline constexpr int64_t kCudaKernelBytes = int64_t{16} << 20;

// The blocks of a norm's backward, of which each keeps two rows of partial sums in that workspace.
inline constexpr int64_t kCudaNormBlocksMax = 512;

// CUDA graphs (gpu/graphs): a graph has at most so many launches, and a stream so many graphs.
inline constexpr int64_t kCudaGraphLaunchesMax = 128;
inline constexpr int64_t kCudaGraphsMax = 512;
// What the driver keeps on the device for a launch in an instantiated graph: its arguments and the
// commands that start it. NVIDIA documents no number. 64 KiB is assumed, on the safe side: vLLM's
// issue 50780 reports 24 MiB for a graph of a whole forward pass, which has hundreds of launches.
inline constexpr int64_t kCudaGraphLaunchBytes = int64_t{64} << 10;
// An operator launches one kernel or two: norms, cross-entropy and attention have further ones in
// their backward passes.
inline constexpr int64_t kCudaLaunchesPerOperator = 2;

// CUDA's context of one process on a Hopper GPU, with the code of our kernels and of the libraries.
inline constexpr int64_t kCudaContextBytes = int64_t{512} << 20;

// NCCL's buffers of one communicator: for each channel and each peer in a ring's or tree's
// direction one for each of its three protocols. 16 channels, each with two peers. Sources: NCCL's
// user guide, NCCL_BUFFSIZE (4 MiB); src/include/device.h of NCCL 2.27: NCCL_LL128_MAX_NTHREADS
// (640) * NCCL_LL128_ELEMS_PER_THREAD (120) * NCCL_STEPS (8) * 8 bytes, and NCCL_LL_MAX_NTHREADS
// (512) * NCCL_LL_LINES_PER_THREAD (8) * NCCL_STEPS * 16 bytes; issue NVIDIA/nccl#864: linear in
// channels.
inline constexpr int64_t kNcclSimpleBytes = int64_t{4} << 20;
inline constexpr int64_t kNcclLl128Bytes = int64_t{640} * 120 * 8 * 8;
inline constexpr int64_t kNcclLlBytes = int64_t{512} * 8 * 8 * 16;
inline constexpr int64_t kNcclCommunicatorBytes =
    16 * 2 * (kNcclSimpleBytes + kNcclLl128Bytes + kNcclLlBytes);

}  // namespace megascale::layout
