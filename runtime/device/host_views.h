// Turns a view of a device's memory into a view of host memory. Only for devices whose memory is
// the host's; other devices copy (host_window.h).
#pragma once

#include "runtime/tensor/tensor.h"

namespace megascale::device {

class HostViews {
 public:
  static tensor::HostVector View(const tensor::Vector& vector) {
    return {vector.data, vector.dtype, vector.size};
  }
};

}  // namespace megascale::device
