// The vocabulary on a device: see vocabulary.h. For nvcc only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

// `threads_max`: of a block. The compiler gives each thread an equal share of the registers.
#define MEGASCALE_KERNEL(name, Params, threads_max)         \
  extern "C" __global__ void __launch_bounds__(threads_max) \
      name(const __grid_constant__ Params params)

namespace megascale::kernels {

// Places in the source matter to the emulator only.
struct Where {
  MEGASCALE_DEVICE static constexpr Where current() { return {}; }
};

template <typename T>
class Pointer {
 public:
  MEGASCALE_DEVICE explicit Pointer(T* data) : data_(data) {}

  MEGASCALE_DEVICE T& operator[](int64_t i) const { return data_[i]; }
  MEGASCALE_DEVICE Pointer operator+(int64_t n) const { return Pointer(data_ + n); }
  MEGASCALE_DEVICE explicit operator bool() const { return data_ != nullptr; }
  template <int N>
  MEGASCALE_DEVICE Pack<std::remove_const_t<T>, N> Load(int64_t i) const {
    return *reinterpret_cast<const Pack<std::remove_const_t<T>, N>*>(data_ + i);
  }
  template <int N>
  MEGASCALE_DEVICE void Store(int64_t i, const Pack<T, N>& pack) const {
    *reinterpret_cast<Pack<T, N>*>(data_ + i) = pack;
  }
  MEGASCALE_DEVICE T* data() const { return data_; }

 private:
  T* data_;
};

// Converts the `void` pointers of parameters to typed pointers.
template <typename T>
class Global : public Pointer<T> {
 public:
  MEGASCALE_DEVICE explicit Global(T* data) : Pointer<T>(data) {}
  template <typename Void>
  MEGASCALE_DEVICE explicit Global(Void* data) : Pointer<T>(static_cast<T*>(data)) {}
  MEGASCALE_DEVICE Global operator+(int64_t n) const { return Global(this->data() + n); }
  // Stores by one instruction. The compiler would split the store of a struct.
  template <int N>
  MEGASCALE_DEVICE void Store(int64_t i, const Pack<T, N>& pack) const {
    if constexpr (sizeof(pack) == 16) {
      StoreAs<uint4>(i, pack);
    } else if constexpr (sizeof(pack) == 8) {
      StoreAs<uint2>(i, pack);
    } else {
      Pointer<T>::Store(i, pack);
    }
  }

 private:
  template <typename Word, int N>
  MEGASCALE_DEVICE void StoreAs(int64_t i, const Pack<T, N>& pack) const {
    Word word;
    memcpy(&word, &pack, sizeof(word));
    __stwb(reinterpret_cast<Word*>(this->data() + i), word);
  }
};
template <typename T>
class Shared : public Pointer<T> {
 public:
  MEGASCALE_DEVICE explicit Shared(T* data) : Pointer<T>(data) {}
  MEGASCALE_DEVICE Shared operator+(int64_t n) const { return Shared(this->data() + n); }
};

template <typename T>
MEGASCALE_DEVICE Shared<T> DynamicShared(int byte_offset) {
  extern __shared__ __align__(128) unsigned char megascale_dynamic_shared[];
  return Shared<T>(reinterpret_cast<T*>(megascale_dynamic_shared + byte_offset));
}

MEGASCALE_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
MEGASCALE_DEVICE int NumThreads() { return static_cast<int>(blockDim.x); }
MEGASCALE_DEVICE int Lane() { return ThreadIndex() % kLanes; }
MEGASCALE_DEVICE int Warp() { return ThreadIndex() / kLanes; }
MEGASCALE_DEVICE int NumWarps() { return NumThreads() / kLanes; }
MEGASCALE_DEVICE int BlockIndex() { return static_cast<int>(blockIdx.x); }
MEGASCALE_DEVICE int BlockIndexY() { return static_cast<int>(blockIdx.y); }
MEGASCALE_DEVICE int BlockIndexZ() { return static_cast<int>(blockIdx.z); }
MEGASCALE_DEVICE int NumBlocks() { return static_cast<int>(gridDim.x); }
MEGASCALE_DEVICE int NumBlocksY() { return static_cast<int>(gridDim.y); }

MEGASCALE_DEVICE void SyncThreads(Where = {}) { __syncthreads(); }
MEGASCALE_DEVICE void SyncWarp(Where = {}) { __syncwarp(); }
template <typename T>
MEGASCALE_DEVICE T Shuffle(T value, int lane, Where = {}) {
  return __shfl_sync(0xffffffffu, value, lane);
}
template <typename T>
MEGASCALE_DEVICE T ShuffleXor(T value, int mask, Where = {}) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

MEGASCALE_DEVICE uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies kBytes (4, 8 or 16) to shared memory without registers; writes zeros if not `is_valid`.
template <int kBytes, typename T>
MEGASCALE_DEVICE void CopyAsync(const Shared<T>& to, const Global<const T>& from,
                                bool is_valid = true) {
  const int bytes = is_valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(SharedAddress(to.data())),
                 "l"(from.data()), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(SharedAddress(to.data())),
                 "l"(from.data()), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}
MEGASCALE_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kGroupsLeft>
MEGASCALE_DEVICE void WaitCopies(Where = {}) {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroupsLeft) : "memory");
}

// Lane i gives the address of 8 elements, which are a row of matrix i / 8. Register j receives from
// matrix j the elements 2 * (lane % 4) and 2 * (lane % 4) + 1 of row lane / 4, or, transposed, of
// column lane / 4.
MEGASCALE_DEVICE void LoadMatrices(uint32_t (&to)[4], const Shared<BFloat16>& row, Where = {}) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row.data()))
               : "memory");
}
MEGASCALE_DEVICE void LoadMatricesTransposed(uint32_t (&to)[4], const Shared<BFloat16>& row,
                                             Where = {}) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row.data()))
               : "memory");
}
MEGASCALE_DEVICE void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                  Where = {}) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The error is at most two units in the last place. An exactly rounded division would cost ten
// instructions.
MEGASCALE_DEVICE float Reciprocal(float x) { return __fdividef(1.0f, x); }
MEGASCALE_DEVICE double SinPi(double x) { return sinpi(x); }
MEGASCALE_DEVICE double CosPi(double x) { return cospi(x); }
MEGASCALE_DEVICE double Exp2(double x) { return exp2(x); }
MEGASCALE_DEVICE float Exp(float x) { return expf(x); }
MEGASCALE_DEVICE float Exp2(float x) { return exp2f(x); }
MEGASCALE_DEVICE float Log(float x) { return logf(x); }
MEGASCALE_DEVICE float Tanh(float x) { return tanhf(x); }
MEGASCALE_DEVICE float Erf(float x) { return erff(x); }
MEGASCALE_DEVICE float Sqrt(float x) { return sqrtf(x); }
MEGASCALE_DEVICE float ReciprocalSqrt(float x) { return rsqrtf(x); }
MEGASCALE_DEVICE double Exp(double x) { return exp(x); }
MEGASCALE_DEVICE double Log(double x) { return log(x); }
MEGASCALE_DEVICE double Sqrt(double x) { return sqrt(x); }
MEGASCALE_DEVICE double Pow(double x, double y) { return pow(x, y); }
MEGASCALE_DEVICE float FusedMultiplyAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }

MEGASCALE_DEVICE float ToFloat(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
MEGASCALE_DEVICE BFloat16 ToBFloat16(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

}  // namespace megascale::kernels
