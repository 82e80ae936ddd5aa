// The CPU's operators as work of the strict device: a call queues the operator with its arguments,
// and the device's thread runs it on the addresses that only the device knows.
#pragma once

#include <memory>

#include "runtime/device/testing/strict_device.h"
#include "runtime/device/testing/strict_stream.h"
#include "runtime/ops/ops.h"

namespace megascale::device {

std::unique_ptr<ops::Ops> MakeStrictOps(StrictDevice* device, StrictStream* stream,
                                        tensor::DType compute, int num_threads);

}  // namespace megascale::device
