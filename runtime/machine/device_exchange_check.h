// Tests whether the devices of one machine exchange tensors: an all-reduce among all of them, by
// the communicators that ranks on them would use. Errors and wrong sums fail the part; a slow
// connection passes, and its rate is there to be compared with what the machine should reach.
//
// Threads: one for each device, which end before it returns. Blocking.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "runtime/device/device.h"
#include "runtime/machine/part.h"

namespace megascale::machine {

struct DeviceExchangeOptions {
  int64_t elements = int64_t{4} << 20;         // of each device's buffer, fp32
  int rounds = 4;                              // that are timed; one more comes first
  absl::Duration timeout = absl::Seconds(20);  // of each call
  Tamper tamper = {};                          // of the sums that device 0 has
};

// Adds whole numbers, whose sums are exact in whatever order, and compares every sum on every
// device. The rate is that of the bytes that each device sends, 2(n-1)/n of its buffer, in the best
// round of the slowest device. Memory that cannot be had is a note. Requires: at least two devices,
// which nothing else uses meanwhile.
PartResult CheckDeviceExchange(const std::vector<device::Device*>& devices,
                               const DeviceExchangeOptions& options);

}  // namespace megascale::machine
