// Memory for tensors, planned before a job's first step: one zeroed block, which is given out from
// front to back and freed as a whole.
//
//   size_t bytes = Arena::BytesFor(DType::kF32, n) + ...;
//   ASSIGN_OR_RETURN(Arena arena, Arena::Create(bytes));
//   Vector grad = arena.Allocate(DType::kF32, n);
//
// Threads: one at a time. Ownership: when the arena is destroyed, its views become invalid; when it
// is moved, they stay valid.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/tensor/tensor.h"

namespace megascale::tensor {

class Arena {
 public:
  // Alignment of each allocation: a cache line, and the widest vector.
  static constexpr size_t kAlignment = 64;

  // Errors: ResourceExhausted - the machine does not grant `capacity_bytes` of memory.
  static absl::StatusOr<Arena> Create(size_t capacity_bytes);

  // Reserves addresses without memory; reading or writing there is a fault. For code that only
  // looks at shapes and addresses of tensors. Together the tensors may be larger than this
  // machine's memory. Errors: ResourceExhausted - the process may not have that many addresses.
  static absl::StatusOr<Arena> Reserve(size_t capacity_bytes);

  // Gives out memory that belongs to somebody else, for example to a device. Requires: the memory
  // is zeroed and outlives the arena, and `begin` is aligned to kAlignment.
  static Arena Over(void* begin, size_t capacity_bytes);

  // Returns the bytes that Allocate(dtype, count) takes from the capacity.
  static size_t BytesFor(DType dtype, int64_t count);

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // Returns `count` zeroed elements. Requires (CHECK): count >= 0 and enough capacity. Callers sum
  // up all sizes first, so a lack of capacity is a bug.
  Vector Allocate(DType dtype, int64_t count);
  // Returns rows x cols zeroed elements with stride == cols.
  Matrix AllocateMatrix(DType dtype, int64_t rows, int64_t cols);

  void* data() const { return begin_; }
  size_t capacity_bytes() const { return capacity_bytes_; }

 private:
  // `protection` and `flags` are those of mmap.
  static absl::StatusOr<Arena> Map(size_t capacity_bytes, int protection, int flags);

  char* begin_ = nullptr;
  bool owns_ = false;
  size_t capacity_bytes_ = 0;
  size_t used_bytes_ = 0;
};

// Returns an arena of `capacity_bytes`, in host memory (Arena::Create) or in a device's memory.
using AllocateArena = absl::FunctionRef<absl::StatusOr<Arena>(size_t capacity_bytes)>;

}  // namespace megascale::tensor
