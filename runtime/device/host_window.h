// Lets host code fill or read tensors of any device, piece by piece: weights that are made on the
// host, a checkpoint's bytes, logits. Where the host may touch the device's memory it works in
// place; else it goes through two buffers of pinned memory: while the device takes one piece, the
// host makes the next. Not for steps: it waits for the device.
//
//   HostWindow window(&device, stream);
//   RETURN_IF_ERROR(window.Write(weights, [&](int64_t first, HostVector piece) {
//     return Fill(first, piece);                // piece = weights[first, first + piece.size())
//   }));
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/tensor.h"

namespace megascale::device {

// Threads: one at a time, and not the stream's; no task on the stream may wait for this thread.
class HostWindow {
 public:
  // The largest piece where the host cannot touch the memory; in place a piece is the whole vector.
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  static constexpr size_t kPinnedBytes = 2 * kPieceBytes;

  // `device` and `stream` must outlive the window; takes kPinnedBytes of pinned memory at the first
  // use that needs it.
  HostWindow(Device* device, stream::Stream* stream) : device_(*device), stream_(*stream) {}

  using Work = absl::FunctionRef<absl::Status(int64_t first, const tensor::HostVector& piece)>;

  // Calls `fill` for consecutive pieces of `vector`, each of which it overwrites: on this thread,
  // one after the other. On return the device has all of them. Errors: those of `fill`, after which
  // the vector is undefined; ResourceExhausted - no pinned memory; Internal - the device failed.
  absl::Status Write(const tensor::Vector& vector, Work fill);

  // Calls `look` for consecutive pieces of `vector`, with the values that the work issued to the
  // stream before has left there. Errors: as Write.
  absl::Status Read(const tensor::Vector& vector, Work look);

 private:
  // The beginning of Write and Read: waits for the stream. Returns the whole vector if the host may
  // touch it, otherwise takes pinned memory and returns an empty view.
  absl::StatusOr<tensor::HostVector> Begin(const tensor::Vector& vector);
  // Returns the elements of `vector` from `first` on that fit into pinned piece `index`.
  struct Piece {
    tensor::HostVector here;
    std::byte* there;
  };
  Piece PieceAt(const tensor::Vector& vector, int64_t first, int index) const;
  // Waits until the device has taken as many pieces as `count`. Errors: of these pieces.
  absl::Status AwaitTaken(int64_t count);

  Device& device_;
  stream::Stream& stream_;
  std::unique_ptr<Memory> buffer_;  // two pieces; null: not needed until now
  std::mutex mutex_;
  std::condition_variable taken_;
  int64_t num_taken_ = 0;  // pieces of this Write; guarded by mutex_, as the next
  absl::Status error_;     // of a piece; the first
};

// Overwrites `to` with the values of `from`; a HostWindow for one read. Shapes: equal sizes and
// types.
absl::Status CopyToHost(Device* device, stream::Stream* stream, const tensor::Vector& from,
                        const tensor::HostVector& to);

}  // namespace megascale::device
