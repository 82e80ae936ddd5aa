// The words in which kernels are written. For nvcc they mean operations of the device
// (device_vocabulary.h). For the host's compiler, in tests, they mean operations of an emulator
// that checks every access to shared memory and every barrier (host_vocabulary.h). A kernel that
// uses only these words runs on both without a change.
//
//   MEGASCALE_KERNEL(ScaleF32, ScaleParams, 256) {        // `params` is its argument
//     Global<const float> x(params.x);
//     Global<float> out(params.out);
//     Shared<float> partial = DynamicShared<float>(0);
//     partial[ThreadIndex()] = x[BlockIndex() * NumThreads() + ThreadIndex()];
//     SyncThreads();
//     ...
//   }
//
// Words, in both headers:
//   Global<T>(pointer)            device memory: [i], + n, Load<N>(i), Store(i, Pack)
//   Shared<T>, DynamicShared<T>(byte offset)   the block's shared memory; the same operations
//   ThreadIndex, NumThreads, Lane, Warp, NumWarps, BlockIndex, BlockIndexY, BlockIndexZ, NumBlocks,
//   NumBlocksY
//   SyncThreads()                 all threads of the block
//   SyncWarp()                    the 32 lanes of a warp
//   Shuffle(value, lane), ShuffleXor(value, mask)         32 lanes, all of them
//   CopyAsync<bytes>(shared, global, is_valid), CommitCopies(), WaitCopies<groups left>()
//   LoadMatrices(registers[4], row), LoadMatricesTransposed(registers[4], row)
//   MultiplyAdd(d[4], a[4], b[2])  d [16, 8] += a [16, 16] b [16, 8], bf16 with fp32 sums
//   Reciprocal (fp32, fast); SinPi(x) and CosPi(x), of x half turns, and Exp2 in fp64
//   min, max, Exp, Exp2, Log, Tanh, Erf, Sqrt, ReciprocalSqrt, ToFloat, ToBFloat16, PackBFloat16
//   Exp, Log, Sqrt, Pow in fp64; FusedMultiplyAdd(a, b, c)  a * b + c in fp32, rounded once
//
//   MEGASCALE_UNROLL before a loop whose indices are places of registers
//
// Rules: blocks have whole warps. Words for all lanes must be executed by all 32 lanes. A function
// that waits takes `Where where = Where::current()` and passes it on, as in SyncThreads(where), so
// that the emulator can tell the function's callers apart. Never use `auto` for an element of
// Shared, because on the host it would be a reference that checks each access.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MEGASCALE_DEVICE __device__ __forceinline__
#define MEGASCALE_UNROLL _Pragma("unroll")
#else
#define MEGASCALE_DEVICE inline
#define MEGASCALE_UNROLL
#endif

namespace megascale::kernels {

// bfloat16 as bits.
struct BFloat16 {
  uint16_t bits;
};

// N elements that are moved together; N * sizeof(T) is 2, 4, 8 or 16.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

constexpr int kLanes = 32;

}  // namespace megascale::kernels

#ifdef __CUDACC__
#include "gpu/kernels/device_vocabulary.h"
#else
#include "gpu/kernels/host_vocabulary.h"
#endif

namespace megascale::kernels {

// Conversions from the element type of a tensor to fp32, and back with rounding.
MEGASCALE_DEVICE float ToFloat(float x) { return x; }
template <typename T>
MEGASCALE_DEVICE T FromFloat(float x);
template <>
MEGASCALE_DEVICE float FromFloat<float>(float x) {
  return x;
}
template <>
MEGASCALE_DEVICE BFloat16 FromFloat<BFloat16>(float x) {
  return ToBFloat16(x);
}

// Packs two bfloat16 into one register, the first in the low half, as MultiplyAdd needs them.
MEGASCALE_DEVICE uint32_t PackBFloat16(float first, float second) {
  return static_cast<uint32_t>(ToBFloat16(first).bits) |
         (static_cast<uint32_t>(ToBFloat16(second).bits) << 16);
}

}  // namespace megascale::kernels
