#include "runtime/device/hang.h"

#include "absl/strings/cord.h"
#include "runtime/base/check.h"

namespace megascale::device {
namespace {
constexpr char kHangPayload[] = "megascale.device.hang";
}  // namespace

absl::Status AsHang(absl::Status error) {
  MEGASCALE_CHECK(!error.ok());
  error.SetPayload(kHangPayload, absl::Cord());
  return error;
}

bool IsHang(const absl::Status& error) { return error.GetPayload(kHangPayload).has_value(); }

}  // namespace megascale::device
