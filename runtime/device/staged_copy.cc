#include "runtime/device/staged_copy.h"

#include <algorithm>
#include <cstring>

#include "absl/memory/memory.h"
#include "runtime/base/status.h"

namespace megascale::device {

absl::StatusOr<std::unique_ptr<StagedCopy>> StagedCopy::Create(Device* device,
                                                               stream::Stream* stream,
                                                               const tensor::Vector& example,
                                                               size_t piece_bytes) {
  auto copy = absl::WrapUnique(new StagedCopy(stream, piece_bytes));
  if (!device->OnHost(example)) {
    ASSIGN_OR_RETURN(copy->pieces_,
                     device->AllocateHost("pieces of a copy to the host", 2 * piece_bytes));
  }
  return copy;
}

void StagedCopy::Issue(const std::byte* from, size_t bytes, size_t index) {
  auto* const piece = static_cast<std::byte*>(pieces_->data()) + index % 2 * piece_bytes_;
  stream_.Copy(piece, from, bytes);
  stream_.Notify([this](const absl::Status& status) {
    // Under the lock: who continues may destroy this.
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_arrived_;
    if (error_.ok()) error_ = status;
    arrived_.notify_all();
  });
}

absl::Status StagedCopy::AwaitPiece() {
  ++num_awaited_;
  std::unique_lock<std::mutex> lock(mutex_);
  arrived_.wait(lock, [this] { return num_arrived_ >= num_awaited_; });
  return error_;
}

absl::Status StagedCopy::Run(const tensor::Vector& from, void* to) {
  const auto size = static_cast<size_t>(from.bytes());
  if (pieces_ == nullptr) {
    stream_.Copy(to, from.data, size);
    return absl::OkStatus();
  }
  const auto* const begin = from.as<std::byte>();
  const auto bytes_of = [&](size_t offset) { return std::min(piece_bytes_, size - offset); };
  absl::Status status;
  if (size > 0) Issue(begin, bytes_of(0), 0);
  for (size_t index = 0, offset = 0; offset < size; ++index, offset += piece_bytes_) {
    const size_t next = offset + piece_bytes_;
    const bool has_next = next < size && status.ok();
    // The piece that it overwrites was emptied in the round before.
    if (has_next) Issue(begin + next, bytes_of(next), index + 1);
    status.Update(AwaitPiece());
    if (status.ok()) {
      const auto* const piece =
          static_cast<const std::byte*>(pieces_->data()) + index % 2 * piece_bytes_;
      std::memcpy(static_cast<std::byte*>(to) + offset, piece, bytes_of(offset));
    }
    if (!has_next) break;
  }
  return status;
}

}  // namespace megascale::device
