// The vocabulary of kernels on the host: vocabulary.h explains the words, and host_executor.h
// declares what they need on the host. For tests only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpu/kernels/host_executor.h"

#define MEGASCALE_KERNEL(kernel_name, Params, threads_max_of_it)                    \
  static void kernel_name##_body(const Params& params);                             \
  static const ::megascale::kernels::host::Kernel kernel_name##_kernel = {          \
      #kernel_name, sizeof(Params), threads_max_of_it, [](const void* its_params) { \
        kernel_name##_body(*static_cast<const Params*>(its_params));                \
      }};                                                                           \
  static const ::megascale::kernels::host::Registration kernel_name##_registration( \
      &kernel_name##_kernel);                                                       \
  static void kernel_name##_body(const Params& params)

namespace megascale::kernels {

using host::Where;
using std::max;
using std::min;

template <typename T>
class Global {
 public:
  explicit Global(T* data) : data_(data) {}
  template <typename Void>
  explicit Global(Void* data) : data_(static_cast<T*>(data)) {}

  T& operator[](int64_t i) const { return *At<T>(i); }
  Global operator+(int64_t n) const { return Global(data_ + n); }
  explicit operator bool() const { return data_ != nullptr; }
  template <int N>
  Pack<std::remove_const_t<T>, N> Load(int64_t i) const {
    return *At<const Pack<std::remove_const_t<T>, N>>(i);
  }
  template <int N>
  void Store(int64_t i, const Pack<T, N>& pack) const {
    *At<Pack<T, N>>(i) = pack;
  }
  T* data() const { return data_; }

 private:
  template <typename Element>
  Element* At(int64_t i) const {
    return static_cast<Element*>(
        const_cast<void*>(host::Translate(data_ + i, sizeof(Element), alignof(Element))));
  }
  T* data_;
};

// An element of shared memory, whose reads and writes are checked.
template <typename T>
class SharedElement {
 public:
  explicit SharedElement(size_t offset) : offset_(offset) {}
  operator T() const {
    T value;
    std::memcpy(&value, host::TouchShared(offset_, sizeof(T), alignof(T), host::Access::kRead),
                sizeof(T));
    return value;
  }
  const SharedElement& operator=(const T& value) const {
    std::memcpy(host::TouchShared(offset_, sizeof(T), alignof(T), host::Access::kWrite), &value,
                sizeof(T));
    return *this;
  }
  const SharedElement& operator=(const SharedElement& other) const {
    return *this = static_cast<T>(other);
  }
  const SharedElement& operator+=(const T& value) const { return *this = T(*this) + value; }

 private:
  size_t offset_;
};

template <typename T>
class Shared {
 public:
  explicit Shared(size_t offset) : offset_(offset) {}

  SharedElement<T> operator[](int64_t i) const { return SharedElement<T>(ByteAt(i)); }
  Shared operator+(int64_t n) const { return Shared(ByteAt(n)); }
  template <int N>
  Pack<T, N> Load(int64_t i) const {
    return SharedElement<Pack<T, N>>(ByteAt(i));
  }
  template <int N>
  void Store(int64_t i, const Pack<T, N>& pack) const {
    SharedElement<Pack<T, N>>(ByteAt(i)) = pack;
  }
  size_t offset() const { return offset_; }

 private:
  size_t ByteAt(int64_t i) const {
    return static_cast<size_t>(static_cast<int64_t>(offset_) + i * static_cast<int64_t>(sizeof(T)));
  }
  size_t offset_;
};

template <typename T>
Shared<T> DynamicShared(int byte_offset) {
  return Shared<T>(static_cast<size_t>(byte_offset));
}

inline int ThreadIndex() { return host::Here().thread; }
inline int NumThreads() { return host::Here().num_threads; }
inline int Lane() { return ThreadIndex() % kLanes; }
inline int Warp() { return ThreadIndex() / kLanes; }
inline int NumWarps() { return NumThreads() / kLanes; }
inline int BlockIndex() { return host::Here().block[0]; }
inline int BlockIndexY() { return host::Here().block[1]; }
inline int BlockIndexZ() { return host::Here().block[2]; }
inline int NumBlocks() { return host::Here().grid[0]; }
inline int NumBlocksY() { return host::Here().grid[1]; }

inline void SyncThreads(Where caller = {}, Where here = Where::current()) {
  host::SyncThreads({here, caller});
}
inline void SyncWarp(Where caller = {}, Where here = Where::current()) {
  host::SyncWarp({here, caller});
}

template <typename T>
T Shuffle(T value, int lane, Where caller = {}, Where here = Where::current()) {
  struct Args {
    T value;
    int from;
    T result;
  } args = {value, lane, value};
  host::MeetLanes(&args,
                  [](void* const* lanes) {
                    for (int i = 0; i < kLanes; ++i) {
                      auto* mine = static_cast<Args*>(lanes[i]);
                      mine->result = static_cast<Args*>(lanes[mine->from % kLanes])->value;
                    }
                  },
                  "a shuffle", {here, caller});
  return args.result;
}
template <typename T>
T ShuffleXor(T value, int mask, Where caller = {}, Where here = Where::current()) {
  return Shuffle(value, Lane() ^ mask, caller, here);
}

template <int kBytes, typename T>
void CopyAsync(const Shared<T>& to, const Global<const T>& from, bool is_valid = true) {
  host::StartCopy(to.offset(), from.data(), kBytes, is_valid);
}
inline void CommitCopies() { host::CommitCopies(); }
template <int kGroupsLeft>
void WaitCopies(Where caller = {}, Where here = Where::current()) {
  host::WaitCopies(kGroupsLeft, {here, caller});
}

inline void LoadMatrices(uint32_t (&to)[4], const Shared<BFloat16>& row, Where caller = {},
                         Where here = Where::current()) {
  host::LoadMatrices(to, row.offset(), /*transposed=*/false, {here, caller});
}
inline void LoadMatricesTransposed(uint32_t (&to)[4], const Shared<BFloat16>& row,
                                   Where caller = {}, Where here = Where::current()) {
  host::LoadMatrices(to, row.offset(), /*transposed=*/true, {here, caller});
}
inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        Where caller = {}, Where here = Where::current()) {
  host::MultiplyAdd(d, a, b, {here, caller});
}

inline float Reciprocal(float x) { return 1.0f / x; }
inline double SinPi(double x) { return std::sin(M_PI * std::remainder(x, 2.0)); }
inline double CosPi(double x) { return std::cos(M_PI * std::remainder(x, 2.0)); }
inline double Exp2(double x) { return std::exp2(x); }
inline float Exp(float x) { return std::exp(x); }
inline float Exp2(float x) { return std::exp2(x); }
inline float Log(float x) { return std::log(x); }
inline float Tanh(float x) { return std::tanh(x); }
inline float Erf(float x) { return std::erf(x); }
inline float Sqrt(float x) { return std::sqrt(x); }
inline float ReciprocalSqrt(float x) { return 1.0f / std::sqrt(x); }
inline double Exp(double x) { return std::exp(x); }
inline double Log(double x) { return std::log(x); }
inline double Sqrt(double x) { return std::sqrt(x); }
inline double Pow(double x, double y) { return std::pow(x, y); }
inline float FusedMultiplyAdd(float a, float b, float c) { return std::fma(a, b, c); }

inline float ToFloat(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline BFloat16 ToBFloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  if (std::isnan(x)) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

}  // namespace megascale::kernels
