#include "runtime/device/host_window.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::device {

absl::Status HostWindow::Write(const tensor::Vector& vector, Work fill) {
  return ForPieces(vector, fill, /*writes=*/true);
}

absl::Status HostWindow::Read(const tensor::Vector& vector, Work look) {
  return ForPieces(vector, look, /*writes=*/false);
}

absl::Status HostWindow::ForPieces(const tensor::Vector& vector, Work work, bool writes) {
  if (vector.size == 0) return absl::OkStatus();
  RETURN_IF_ERROR(stream_.Synchronize());
  if (const tensor::HostVector in_place = device_.OnHost(vector)) return work(0, in_place);
  if (buffer_ == nullptr) {
    ASSIGN_OR_RETURN(buffer_, device_.AllocateHost("a host window", kPieceBytes));
  }
  const auto element_bytes = static_cast<int64_t>(tensor::SizeOf(vector.dtype));
  const int64_t piece_size = static_cast<int64_t>(kPieceBytes) / element_bytes;
  for (int64_t first = 0; first < vector.size; first += piece_size) {
    const tensor::HostVector piece = {buffer_->data(), vector.dtype,
                                      std::min(piece_size, vector.size - first)};
    const auto bytes = static_cast<size_t>(piece.bytes());
    std::byte* const there = vector.as<std::byte>() + first * element_bytes;
    if (writes) {
      RETURN_IF_ERROR(work(first, piece));
      stream_.RunAndWait([&] { stream_.Copy(there, piece.data, bytes); });
      RETURN_IF_ERROR(stream_.Synchronize());
    } else {
      stream_.RunAndWait([&] { stream_.Copy(piece.data, there, bytes); });
      RETURN_IF_ERROR(stream_.Synchronize());
      RETURN_IF_ERROR(work(first, piece));
    }
  }
  return absl::OkStatus();
}

absl::Status CopyToHost(Device* device, stream::Stream* stream, const tensor::Vector& from,
                        const tensor::HostVector& to) {
  MEGASCALE_CHECK(from.size == to.size && from.dtype == to.dtype);
  const auto copy = [&to](int64_t first, const tensor::HostVector& piece) {
    const auto bytes = static_cast<size_t>(piece.bytes());
    const auto element_bytes = static_cast<int64_t>(tensor::SizeOf(piece.dtype));
    std::memcpy(to.as<std::byte>() + first * element_bytes, piece.data, bytes);
    return absl::OkStatus();
  };
  return HostWindow(device, stream).Read(from, copy);
}

}  // namespace megascale::device
