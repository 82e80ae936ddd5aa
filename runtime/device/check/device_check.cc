#include "runtime/device/check/device_check.h"

#include <utility>

#include "runtime/base/clock.h"

namespace megascale::device::check {

CheckOptions QuickDeviceCheck() {
  CheckOptions options;
  options.memory = {.size_bytes = size_t{256} << 20, .budget = absl::Milliseconds(300)};
  options.copies = {.budget = absl::Milliseconds(100)};
  options.products = {.size = 2048, .budget = absl::Milliseconds(100)};
  return options;
}

CheckOptions FullDeviceCheck() {
  CheckOptions options;
  options.memory = {.size_bytes = size_t{8} << 30, .budget = absl::Seconds(4)};
  options.copies = {.size_bytes = size_t{256} << 20, .budget = absl::Seconds(1)};
  options.products = {.size = 8192, .budget = absl::Seconds(1)};
  return options;
}

std::vector<NamedResult> CheckDevice(device::Device* device, const CheckOptions& options,
                                     const std::function<void(absl::string_view)>& on_part) {
  std::vector<NamedResult> results;
  const auto run = [&](std::string name, const auto& part) {
    on_part(name);
    const absl::Duration begin = base::RealClock().Monotonic();
    PartResult result = part();
    const absl::Duration took = base::RealClock().Monotonic() - begin;
    results.push_back({std::move(name), std::move(result), took});
  };
  run("memory", [&] { return CheckMemory(device, options.memory); });
  CopyOptions copies = options.copies;
  copies.direction = Direction::kToDevice;
  run("copies to the device", [&] { return CheckCopies(device, copies); });
  copies.direction = Direction::kToHost;
  run("copies to the host", [&] { return CheckCopies(device, copies); });
  ProductOptions products = options.products;
  products.compute = tensor::DType::kF32;
  run("products in fp32", [&] { return CheckProducts(device, products); });
  products.compute = tensor::DType::kBF16;
  run("products in bf16", [&] { return CheckProducts(device, products); });
  return results;
}

}  // namespace megascale::device::check
