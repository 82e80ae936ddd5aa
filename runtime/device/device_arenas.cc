#include "runtime/device/device_arenas.h"

#include "runtime/base/status.h"

namespace megascale::device {
namespace {

size_t BytesFor(const std::vector<tensor::Vector*>& spaces) {
  size_t bytes = 0;
  for (const tensor::Vector* space : spaces) {
    bytes += tensor::Arena::BytesFor(space->dtype, space->size);
  }
  return bytes;
}

void Place(const std::vector<tensor::Vector*>& spaces, const Memory& block) {
  tensor::Arena arena = tensor::Arena::Over(block.data(), block.size_bytes());
  for (tensor::Vector* space : spaces) {
    if (space->size > 0) *space = arena.Allocate(space->dtype, space->size);
  }
}

}  // namespace

absl::StatusOr<tensor::Arena> DeviceArenas::Allocate(absl::string_view name, size_t bytes) {
  ASSIGN_OR_RETURN(blocks_.emplace_back(), device_->Allocate(name, bytes));
  return tensor::Arena::Over(blocks_.back()->data(), bytes);
}

absl::Status DeviceArenas::Fill(absl::string_view name,
                                const std::vector<tensor::Vector*>& spaces) {
  ASSIGN_OR_RETURN(blocks_.emplace_back(), device_->Allocate(name, BytesFor(spaces)));
  Place(spaces, *blocks_.back());
  return absl::OkStatus();
}

absl::Status DeviceArenas::FillForPeers(absl::string_view name,
                                        const std::vector<tensor::Vector*>& spaces) {
  ASSIGN_OR_RETURN(blocks_.emplace_back(), device_->AllocateForPeers(name, BytesFor(spaces)));
  Place(spaces, *blocks_.back());
  return absl::OkStatus();
}

std::vector<const base::SharedMemory*> DeviceArenas::readable() const {
  std::vector<const base::SharedMemory*> readable;
  for (const std::unique_ptr<Memory>& block : blocks_) {
    if (block->shared() != nullptr) readable.push_back(block->shared());
  }
  return readable;
}

}  // namespace megascale::device
