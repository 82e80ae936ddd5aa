#include "runtime/device/host_window.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::device {

absl::StatusOr<tensor::HostVector> HostWindow::Begin(const tensor::Vector& vector) {
  RETURN_IF_ERROR(stream_.Synchronize());
  const tensor::HostVector in_place = device_.OnHost(vector);
  if (!in_place && buffer_ == nullptr) {
    ASSIGN_OR_RETURN(buffer_, device_.AllocateHost("a host window", kPinnedBytes));
  }
  return in_place;
}

HostWindow::Piece HostWindow::PieceAt(const tensor::Vector& vector, int64_t first,
                                      int index) const {
  const auto element_bytes = static_cast<int64_t>(tensor::SizeOf(vector.dtype));
  const int64_t most = static_cast<int64_t>(kPieceBytes) / element_bytes;
  std::byte* const here =
      static_cast<std::byte*>(buffer_->data()) + static_cast<size_t>(index) * kPieceBytes;
  return {.here = tensor::HostVector::OfBytes(absl::MakeSpan(here, kPieceBytes), vector.dtype)
                      .Slice(0, std::min(most, vector.size - first)),
          .there = vector.as<std::byte>() + first * element_bytes};
}

absl::Status HostWindow::AwaitTaken(int64_t count) {
  std::unique_lock<std::mutex> lock(mutex_);
  taken_.wait(lock, [&] { return num_taken_ >= count; });
  return error_;
}

absl::Status HostWindow::Write(const tensor::Vector& vector, Work fill) {
  if (vector.size == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const tensor::HostVector in_place, Begin(vector));
  if (in_place) return fill(0, in_place);
  num_taken_ = 0;  // no piece is under way
  error_ = absl::OkStatus();
  absl::Status status;
  int64_t num_issued = 0;
  for (int64_t first = 0; first < vector.size; ++num_issued) {
    const Piece piece = PieceAt(vector, first, static_cast<int>(num_issued % 2));
    // The piece before the last one lay in this memory.
    status = AwaitTaken(num_issued - 1);
    if (status.ok()) status = fill(first, piece.here);
    if (!status.ok()) break;
    stream_.RunAndWait([&] {
      stream_.Copy(piece.there, piece.here.data(), static_cast<size_t>(piece.here.bytes()));
      stream_.Notify([this](const absl::Status& taken) {
        const std::lock_guard<std::mutex> lock(mutex_);
        ++num_taken_;
        if (error_.ok()) error_ = taken;
        taken_.notify_all();
      });
    });
    first += piece.here.size();
  }
  // After an error as well: the device still reads the pinned memory.
  status.Update(AwaitTaken(num_issued));
  return status;
}

absl::Status HostWindow::Read(const tensor::Vector& vector, Work look) {
  if (vector.size == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const tensor::HostVector in_place, Begin(vector));
  if (in_place) return look(0, in_place);
  for (int64_t first = 0; first < vector.size;) {
    const Piece piece = PieceAt(vector, first, 0);
    stream_.RunAndWait([&] {
      stream_.Copy(piece.here.data(), piece.there, static_cast<size_t>(piece.here.bytes()));
    });
    RETURN_IF_ERROR(stream_.Synchronize());
    RETURN_IF_ERROR(look(first, piece.here));
    first += piece.here.size();
  }
  return absl::OkStatus();
}

absl::Status CopyToHost(Device* device, stream::Stream* stream, const tensor::Vector& from,
                        const tensor::HostVector& to) {
  MEGASCALE_CHECK(from.size == to.size() && from.dtype == to.dtype());
  const auto copy = [&to](int64_t first, const tensor::HostVector& piece) {
    const auto bytes = static_cast<size_t>(piece.bytes());
    const auto element_bytes = static_cast<int64_t>(tensor::SizeOf(piece.dtype()));
    std::memcpy(to.as<std::byte>() + first * element_bytes, piece.data(), bytes);
    return absl::OkStatus();
  };
  return HostWindow(device, stream).Read(from, copy);
}

}  // namespace megascale::device
