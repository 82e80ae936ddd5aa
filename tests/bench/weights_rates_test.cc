#include "tests/bench/weights_rates.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "runtime/device/host_window.h"
#include "runtime/device/testing/test_devices.h"

namespace megascale::bench {
namespace {

// Returns the weights of all layers, as they lie in the memory of a device.
std::vector<float> WeightsOn(device::Device* device, int64_t* num_elements) {
  std::vector<float> all;
  const auto stream = device->MakeStream("look").value();
  const auto look = [&](int layer, const tensor::Vector& weights) {
    EXPECT_EQ(layer == 0, all.empty());
    const auto begin = static_cast<int64_t>(all.size());
    all.resize(all.size() + static_cast<size_t>(weights.size));
    return device::CopyToHost(
        device, stream.get(), weights,
        tensor::HostVector::Of(absl::MakeSpan(all)).Slice(begin, weights.size));
  };
  const model::ModelConfig config = SmallModel();
  const auto rate = MeasureWeights({.config = config,
                                    .num_layers = static_cast<int>(config.num_layers),
                                    .num_threads = 2,
                                    .device = device,
                                    .look = look});
  EXPECT_TRUE(rate.ok()) << rate.status();
  if (rate.ok()) *num_elements = rate->elements;
  return all;
}

// Whatever the device, the benchmark makes the weights that a job begins with.
TEST(WeightsRatesTest, EveryDeviceGetsTheSameWeights) {
  std::vector<float> expected;
  for (const device::TestDevice& test : device::AllDevices()) {
    int64_t num_elements = 0;
    const std::vector<float> weights = WeightsOn(test.make(/*seed=*/1).get(), &num_elements);
    EXPECT_EQ(num_elements, static_cast<int64_t>(weights.size())) << test.name;
    EXPECT_GT(weights.size(), 100'000u) << test.name;
    if (expected.empty()) expected = weights;
    EXPECT_TRUE(weights == expected) << test.name;
  }
}

TEST(WeightsRatesTest, TheLinesOfEveryDeviceArePrinted) {
  PrintWeightsHead();
  for (const device::TestDevice& test : device::AllDevices()) {
    EXPECT_EQ(
        PrintWeights({.config = SmallModel()}, test.name.c_str(), test.make(/*seed=*/1).get()),
        absl::OkStatus());
  }
}

}  // namespace
}  // namespace megascale::bench
