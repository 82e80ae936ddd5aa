#include "controlplane/agent/core/gpu_turns.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "controlplane/agent/core/agent_core.h"

namespace megascale::agent {
namespace {

std::vector<telemetry::v1::GpuSample> Gpus(int count, double celsius) {
  std::vector<telemetry::v1::GpuSample> gpus;
  for (int index = 0; index < count; ++index) {
    telemetry::v1::GpuSample& gpu = gpus.emplace_back();
    gpu.set_index(index);
    gpu.set_busy_share(0.99);
    gpu.set_memory_busy_share(0.5);
    gpu.set_memory_used_bytes(int64_t{70} << 30);
    gpu.set_memory_bytes(int64_t{80} << 30);
    gpu.set_temperature_celsius(celsius);
    gpu.set_power_watts(698.5);
    gpu.set_core_clock_megahertz(1755);
    gpu.set_memory_clock_megahertz(2619);
    gpu.add_throttled_by("power cap");
    gpu.set_corrected_errors(3);
    gpu.set_uncorrected_errors(0);
  }
  return gpus;
}

// Reports come after a quarter of a second, or sooner where something has changed.
TEST(GpuTurnsTest, SixteenGpusStayWithinHalfOfAKibibyteInAnySecondAndAllAreTold) {
  for (const absl::Duration interval : {absl::Milliseconds(250), absl::Milliseconds(20)}) {
    GpuTurns turns;
    std::map<absl::Duration, size_t> bytes_at;
    std::map<int, double> told;
    for (absl::Duration now = absl::Seconds(100); now < absl::Seconds(130); now += interval) {
      if (now % absl::Seconds(5) == absl::ZeroDuration()) {
        turns.Take(Gpus(16, absl::ToDoubleSeconds(now)));
      }
      for (const telemetry::v1::GpuSample& gpu : turns.Next(now)) {
        bytes_at[now] += BytesInReport(gpu);
        told[gpu.index()] = gpu.temperature_celsius();
      }
    }
    for (const auto& [begin, first] : bytes_at) {
      size_t of_second = 0;
      for (auto at = bytes_at.find(begin);
           at != bytes_at.end() && at->first < begin + absl::Seconds(1); ++at) {
        of_second += at->second;
      }
      EXPECT_LE(of_second, AgentCore::kUnaskedBytesMax / 2) << begin;
    }
    ASSERT_EQ(told.size(), 16u);
    for (const auto& [index, celsius] : told) EXPECT_GE(celsius, 115) << "GPU " << index;
  }
}

TEST(GpuTurnsTest, ASampleIsToldOnceAndANewerOneTakesItsPlace) {
  GpuTurns turns;
  EXPECT_FALSE(turns.has_gpus());
  EXPECT_TRUE(turns.Next(absl::Seconds(1)).empty());
  turns.Take(Gpus(1, 60));
  turns.Take(Gpus(1, 61));
  EXPECT_TRUE(turns.has_gpus());
  const auto next = turns.Next(absl::Seconds(2));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].temperature_celsius(), 61);
  EXPECT_TRUE(turns.Next(absl::Seconds(9)).empty());
  turns.Take({});
  EXPECT_TRUE(turns.Next(absl::Seconds(10)).empty());
  EXPECT_TRUE(turns.has_gpus());
}

TEST(GpuTurnsTest, ASampleThatIsTooLargeLosesReasonsAndIsTold) {
  GpuTurns turns;
  std::vector<telemetry::v1::GpuSample> gpus = Gpus(2, 60);
  for (int i = 0; i < 10; ++i) gpus[0].add_throttled_by(std::string(40, 'x'));
  turns.Take(gpus);
  std::vector<int> told;
  for (int second = 1; second <= 3; ++second) {
    for (const auto& gpu : turns.Next(absl::Seconds(second))) told.push_back(gpu.index());
  }
  EXPECT_EQ(told, (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace megascale::agent
