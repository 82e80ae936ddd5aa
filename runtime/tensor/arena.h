// Memory for tensors, planned before a job's first step: one zeroed block, handed out from front to
// back and freed as a whole.
//
//   size_t bytes = Arena::BytesFor(DType::kF32, n) + ...;
//   ASSIGN_OR_RETURN(Arena arena, Arena::Create(bytes));
//   Vector grad = arena.Allocate(DType::kF32, n);
//
// Threads: one at a time. Ownership: views die with the arena; moving the arena keeps them valid.
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
  // looks at shapes and addresses of tensors, which may be larger than this machine's memory.
  // Errors: ResourceExhausted - the process may not have that many addresses.
  static absl::StatusOr<Arena> Reserve(size_t capacity_bytes);

  // Hands out memory that belongs to somebody else, a device's for example, and outlives the arena.
  // Requires: `begin` is aligned to kAlignment, and the memory is zeroed.
  static Arena Over(void* begin, size_t capacity_bytes);

  // Returns the bytes that Allocate(dtype, count) takes from the capacity.
  static size_t BytesFor(DType dtype, int64_t count);

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // Returns `count` zeroed elements. Requires: count >= 0 and enough capacity (CHECK): callers sum
  // up all sizes first, so running out is a bug.
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

// Gives memory for an arena's capacity in bytes: the host's (Arena::Create) or a device's.
using AllocateArena = absl::FunctionRef<absl::StatusOr<Arena>(size_t capacity_bytes)>;

}  // namespace megascale::tensor
