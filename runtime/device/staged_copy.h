// Copies device memory to ordinary memory of the host at the speed of pinned memory: piece by
// piece, through two pinned pieces. While the device fills one, the host empties the other.
//
//   ASSIGN_OR_RETURN(auto copy, StagedCopy::Create(device, stream.get(), first.data));
//   stream->Enqueue([&](stream::Stream&) { status = copy->Run(tensor, to); });
//
// Where the host may touch the device's memory, there are no pieces, and each copy is one.
//
// Threads: Run on the stream's thread; all else by one thread. Cost: kPinnedBytes of pinned memory,
// taken at the start; a copy allocates nothing.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/tensor.h"

namespace megascale::device {

class StagedCopy {
 public:
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  static constexpr size_t kPinnedBytes = 2 * kPieceBytes;

  // `example`: any tensor of those that will be copied. `stream` should be one that does nothing
  // else, since Run keeps its thread. Both pointers must outlive the object. Errors:
  // ResourceExhausted - no pinned memory.
  static absl::StatusOr<std::unique_ptr<StagedCopy>> Create(Device* device, stream::Stream* stream,
                                                            const tensor::Vector& example,
                                                            size_t piece_bytes = kPieceBytes);

  // Copies all elements of `from` to `to`, behind the work that was issued to the stream before.
  // When it returns the device has read all of `from`, except where there are no pieces: then the
  // copy may still run on the stream. Blocking. Errors: Internal - the device failed.
  absl::Status Run(const tensor::Vector& from, void* to);

 private:
  StagedCopy(stream::Stream* stream, size_t piece_bytes)
      : stream_(*stream), piece_bytes_(piece_bytes) {}
  // Issues the copy of piece `index` of `bytes` bytes from `from`.
  void Issue(const std::byte* from, size_t bytes, size_t index);
  // Waits until the next piece has arrived.
  absl::Status AwaitPiece();

  stream::Stream& stream_;
  const size_t piece_bytes_;
  std::unique_ptr<Memory> pieces_;  // two; null: the host may touch the device's memory
  std::mutex mutex_;
  std::condition_variable arrived_;
  uint64_t num_arrived_ = 0;  // guarded by mutex_, as the next
  absl::Status error_;        // of a piece; the first
  uint64_t num_awaited_ = 0;  // of the stream's thread
};

}  // namespace megascale::device
