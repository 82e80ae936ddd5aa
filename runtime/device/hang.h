// Marks the error of a device that hangs: it makes no progress, and no work that it was given ends.
// Code that gets such an error must not wait for a stream of the device.
#pragma once

#include "absl/status/status.h"

namespace megascale::device {

// Returns `error` with the mark, which base::Annotate keeps.
absl::Status AsHang(absl::Status error);
bool IsHang(const absl::Status& error);

}  // namespace megascale::device
