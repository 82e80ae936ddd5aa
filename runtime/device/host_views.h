// Turns a view of a device's memory into one of host memory: for devices whose memory is the
// host's, alone. Others copy (host_window.h).
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
