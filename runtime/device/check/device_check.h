// Tests a device: memory, copies, products. Every part has a share of time, and runs at least once.
//
//   for (const NamedResult& it : CheckDevice(device.get(), FullDeviceCheck(), on_part)) …
//
// Requires: nothing else uses the device meanwhile; otherwise the measured rates are too low.
// Threads: one. Blocking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/device/device.h"
#include "runtime/tensor/tensor.h"

namespace megascale::device::check {

// The result of one part.
struct PartResult {
  std::string failure;          // one line; empty: passed
  std::string note;             // why the part was left out; empty: it ran
  double bytes_per_second = 0;  // 0: the part has no such rate
  double flops_per_second = 0;  // 0: the part has no such rate
};

// Changes bytes that came back from the device, so that a test can check that the change is found.
// Empty: nothing is changed.
using Tamper = std::function<void(void* data, size_t size_bytes)>;

struct MemoryOptions {
  size_t size_bytes = size_t{1} << 30;
  size_t piece_bytes = size_t{8} << 20;      // copied at a time; a multiple of 8
  absl::Duration budget = absl::Seconds(1);  // repeats for this long; every other time inverted
  Tamper tamper = {};
};
// Fills memory with a pattern in which every word depends on its place, and reads it back. Fails if
// a byte differs. The rate counts bytes written and read, through the host. If the memory cannot be
// allocated, the result has a note instead.
PartResult CheckMemory(device::Device* device, const MemoryOptions& options);

enum class Direction : uint8_t { kToDevice, kToHost };

struct CopyOptions {
  Direction direction = Direction::kToDevice;
  size_t size_bytes = size_t{64} << 20;      // a multiple of 8
  absl::Duration budget = absl::Seconds(1);  // repeats for this long
  Tamper tamper = {};
};
// Copies a pattern between pinned memory and the device again and again. Fails if a byte differs.
// The rate is that of this direction alone.
PartResult CheckCopies(device::Device* device, const CopyOptions& options);

struct ProductOptions {
  tensor::DType compute = tensor::DType::kBF16;  // or kF32
  int64_t size = 4096;                           // of square matrices; at most 65536
  int num_threads = 1;                           // only CPUs use it
  absl::Duration budget = absl::Seconds(1);      // repeats for this long, at least twice
  Tamper tamper = {};                            // of the exact product
  Tamper tamper_repeated = {};                   // of every product but the first
};
// Multiplies matrices of small whole numbers, whose product is exact in whatever order it is added,
// and matrices of fractions, whose product must have the same bits each time. Fails if an element
// is wrong, or differs from the first time. The rate is that of products alone.
PartResult CheckProducts(device::Device* device, const ProductOptions& options);

struct CheckOptions {
  MemoryOptions memory;
  CopyOptions copies;       // of both directions
  ProductOptions products;  // in fp32 and bf16
};
// On a GPU, the quick check takes about a second, and the full check about eight seconds.
CheckOptions QuickDeviceCheck();
CheckOptions FullDeviceCheck();

struct NamedResult {
  std::string part;  // "copies to the host"
  PartResult result;
  absl::Duration took;
};
// Runs all parts; one that fails does not keep the others from running. `on_part` is called before
// each part with its name.
std::vector<NamedResult> CheckDevice(device::Device* device, const CheckOptions& options,
                                     const std::function<void(absl::string_view)>& on_part);

}  // namespace megascale::device::check
