// Tests whether the devices of one machine exchange tensors: an all-reduce among all devices, by
// the communicators that ranks on these devices would use. Errors and wrong sums fail the part. A
// slow connection passes; the user can compare its rate with what the machine should reach.
//
// Threads: it starts one for each device; they end before it returns. Blocking.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "runtime/device/device.h"
#include "runtime/machine/part.h"

namespace megascale::machine {

struct DeviceExchangeOptions {
  int64_t elements = int64_t{4} << 20;         // of each device's buffer, fp32
  int rounds = 4;                              // timed rounds, after one untimed round
  absl::Duration timeout = absl::Seconds(20);  // of each call
  Tamper tamper = {};                          // changes the sums of device 0
};

// Adds whole numbers, whose sums are exact in any order, and compares every sum on every device.
// The rate counts the bytes that each device sends, 2(n-1)/n of its buffer, in the best round of
// the slowest device. A lack of memory is a note. Requires: at least two devices, which nothing
// else uses during the test.
PartResult CheckDeviceExchange(const std::vector<device::Device*>& devices,
                               const DeviceExchangeOptions& options);

}  // namespace megascale::machine
