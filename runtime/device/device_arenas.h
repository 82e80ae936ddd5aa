// The memory that one rank takes of its device. It lives as long as this object.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/device/device.h"
#include "runtime/tensor/arena.h"
#include "runtime/tensor/tensor.h"

namespace megascale::device {

class DeviceArenas {
 public:
  // `device` must outlive this.
  explicit DeviceArenas(Device* device) : device_(device) {}

  // Each of these takes one block of zeroed memory; `name` says in errors what it is for.
  // Errors: see Device::Allocate.
  absl::StatusOr<tensor::Arena> Allocate(absl::string_view name, size_t bytes);
  // Gives each of `spaces` that has elements its data, one after the other.
  absl::Status Fill(absl::string_view name, const std::vector<tensor::Vector*>& spaces);
  // The same, where possible in memory that ranks on this machine may read: see readable().
  absl::Status FillForPeers(absl::string_view name, const std::vector<tensor::Vector*>& spaces);

  // Returns the blocks that peers may read, in the order in which they were taken.
  std::vector<const base::SharedMemory*> readable() const;

 private:
  Device* const device_;
  std::vector<std::unique_ptr<Memory>> blocks_;
};

}  // namespace megascale::device
