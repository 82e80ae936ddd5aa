// Memory for tensors, planned before a job's first step: one zeroed block, handed out front to back
// and given back as a whole.
//
//   size_t bytes = Arena::BytesFor(DType::kF32, n) + ...;
//   ASSIGN_OR_RETURN(Arena arena, Arena::Create(bytes));
//   Vector grad = arena.Allocate(DType::kF32, n);
//
// Threads: one at a time. Ownership: views die with the arena; moving the arena leaves them valid.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "runtime/tensor/tensor.h"

namespace megascale::tensor {

class Arena {
 public:
  // Each allocation starts at a multiple of this: a cache line, the widest vector.
  static constexpr size_t kAlignment = 64;

  // Errors: ResourceExhausted - the machine does not grant `capacity_bytes` of memory.
  static absl::StatusOr<Arena> Create(size_t capacity_bytes);

  // What Allocate(dtype, count) takes from the capacity.
  static size_t BytesFor(DType dtype, int64_t count);

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // `count` zeroed elements. Requires: count >= 0 and enough capacity (CHECK): sizes are summed
  // before, so running out is a bug.
  Vector Allocate(DType dtype, int64_t count);
  // rows x cols zeroed elements with stride == cols.
  Matrix AllocateMatrix(DType dtype, int64_t rows, int64_t cols);

  size_t used_bytes() const { return used_bytes_; }
  size_t capacity_bytes() const { return capacity_bytes_; }

 private:
  char* begin_ = nullptr;
  size_t capacity_bytes_ = 0;
  size_t used_bytes_ = 0;
};

}  // namespace megascale::tensor
