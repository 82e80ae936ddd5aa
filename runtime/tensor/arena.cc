#include "runtime/tensor/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::tensor {

absl::StatusOr<Arena> Arena::Create(size_t capacity_bytes) {
  ASSIGN_OR_RETURN(Arena arena, Map(capacity_bytes, PROT_READ | PROT_WRITE, /*flags=*/0));
  // Advice only: without huge pages the same memory works, with more TLB misses.
  if (capacity_bytes > 0) (void)madvise(arena.begin_, capacity_bytes, MADV_HUGEPAGE);
  return arena;
}

absl::StatusOr<Arena> Arena::Reserve(size_t capacity_bytes) {
  return Map(capacity_bytes, PROT_NONE, MAP_NORESERVE);
}

absl::StatusOr<Arena> Arena::Map(size_t capacity_bytes, int protection, int flags) {
  Arena arena;
  if (capacity_bytes == 0) return arena;
  void* begin =
      mmap(nullptr, capacity_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (begin == MAP_FAILED) {
    return base::ErrnoStatus(
        errno, absl::StrCat("allocating ", capacity_bytes,
                            " bytes for tensors (use a smaller model or batch, or more memory)"));
  }
  arena.begin_ = static_cast<char*>(begin);
  arena.owns_ = true;
  arena.capacity_bytes_ = capacity_bytes;
  return arena;
}

Arena Arena::Over(void* begin, size_t capacity_bytes) {
  MEGASCALE_CHECK(reinterpret_cast<uintptr_t>(begin) % kAlignment == 0);
  Arena arena;
  arena.begin_ = static_cast<char*>(begin);
  arena.capacity_bytes_ = capacity_bytes;
  return arena;
}

size_t Arena::BytesFor(DType dtype, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Arena::Arena(Arena&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)),
      owns_(std::exchange(other.owns_, false)),
      capacity_bytes_(std::exchange(other.capacity_bytes_, 0)),
      used_bytes_(std::exchange(other.used_bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(owns_, other.owns_);
  std::swap(capacity_bytes_, other.capacity_bytes_);
  std::swap(used_bytes_, other.used_bytes_);
  return *this;
}

Arena::~Arena() {
  if (owns_) munmap(begin_, capacity_bytes_);
}

Vector Arena::Allocate(DType dtype, int64_t count) {
  MEGASCALE_CHECK(count >= 0);
  const size_t bytes = BytesFor(dtype, count);
  if (bytes > capacity_bytes_ - used_bytes_) {
    base::CheckFailed(__FILE__, __LINE__, "arena has room",
                      absl::StrCat("asked for ", bytes, " bytes, ", used_bytes_, " of ",
                                   capacity_bytes_, " are used"));
  }
  Vector vector{begin_ + used_bytes_, dtype, count};
  used_bytes_ += bytes;
  return vector;
}

Matrix Arena::AllocateMatrix(DType dtype, int64_t rows, int64_t cols) {
  MEGASCALE_CHECK(rows >= 0 && cols >= 0);
  return Matrix{Allocate(dtype, rows * cols).data, dtype, rows, cols, cols};
}

}  // namespace megascale::tensor
