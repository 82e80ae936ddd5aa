// Bytes that the host writes and the device reads, again and again: a step's batch. The host writes
// into ordinary or pinned memory, and Upload brings it to the device's. Where the host may touch
// the device's memory both are one, and nothing is copied.
//
//   ASSIGN_OR_RETURN(auto batch, UploadBuffer::Create(&device, "the batch", bytes));
//   FillBatch(batch->host());
//   batch->Upload(*stream);                     // on the stream's thread
//
// Threads: one at a time. Cost: the bytes on the device, and as many pinned ones if it has memory
// of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/device/device.h"
#include "runtime/stream/stream.h"

namespace megascale::device {

class UploadBuffer {
 public:
  // `name` says in errors what it is for. Errors: as Device::Allocate and Device::AllocateHost.
  static absl::StatusOr<std::unique_ptr<UploadBuffer>> Create(Device* device,
                                                              absl::string_view name,
                                                              size_t size_bytes);

  // Where the host writes. Requires: all earlier work of the device that reads these bytes has
  // ended.
  void* host() const { return pinned_ != nullptr ? pinned_->data() : memory_->data(); }
  // Where the device reads, in work behind Upload.
  void* device() const { return memory_->data(); }

  // Issues the copy of all bytes, if one is needed. Requires: called on the stream's thread.
  void Upload(stream::Stream& stream) const;

 private:
  UploadBuffer(std::unique_ptr<Memory> memory, std::unique_ptr<Memory> pinned)
      : memory_(std::move(memory)), pinned_(std::move(pinned)) {}

  const std::unique_ptr<Memory> memory_;
  const std::unique_ptr<Memory> pinned_;  // null: the host writes to `memory_`
};

}  // namespace megascale::device
