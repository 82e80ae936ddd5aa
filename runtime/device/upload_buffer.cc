#include "runtime/device/upload_buffer.h"

#include <cstdint>

#include "absl/memory/memory.h"
#include "runtime/base/status.h"

namespace megascale::device {

absl::StatusOr<std::unique_ptr<UploadBuffer>> UploadBuffer::Create(Device* device,
                                                                   absl::string_view name,
                                                                   size_t size_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<Memory> memory, device->Allocate(name, size_bytes));
  const auto size = static_cast<int64_t>(size_bytes / tensor::SizeOf(tensor::DType::kI32));
  std::unique_ptr<Memory> pinned;
  if (!device->OnHost({memory->data(), tensor::DType::kI32, size})) {
    ASSIGN_OR_RETURN(pinned, device->AllocateHost(name, size_bytes));
  }
  return absl::WrapUnique(new UploadBuffer(std::move(memory), std::move(pinned)));
}

void UploadBuffer::Upload(stream::Stream& stream) const {
  if (pinned_ == nullptr) return;
  stream.Copy(memory_->data(), pinned_->data(), memory_->size_bytes());
}

}  // namespace megascale::device
