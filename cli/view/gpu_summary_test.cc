// Tests of gpu_summary.h and gpu_history.h.
#include "cli/view/gpu_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "cli/view/gpu_history.h"

namespace megascale::cli {
namespace {

using telemetry::v1::GpuSample;
using ::testing::ElementsAre;

GpuSample Busy() {
  GpuSample gpu;
  gpu.set_busy_share(0.97);
  gpu.set_memory_used_bytes(int64_t{70} << 30);
  gpu.set_memory_bytes(int64_t{80} << 30);
  gpu.set_temperature_celsius(64);
  gpu.set_power_watts(698.6);
  gpu.set_corrected_errors(0);
  gpu.set_uncorrected_errors(0);
  return gpu;
}

TEST(GpuSummaryTest, AMachineIsTheMeanTheSumOrTheHighestOfItsGpus) {
  GpuSample hot = Busy();
  hot.set_busy_share(0.5);
  hot.set_temperature_celsius(91);
  hot.add_throttled_by("power cap");
  hot.add_throttled_by("heat");
  hot.set_corrected_errors(12);
  hot.set_uncorrected_errors(1);
  const GpuSample busy = Busy();
  const GpuSummary summary = SummaryOf({&busy, &hot});
  EXPECT_THAT(GpuCells(summary),
              ElementsAre("2", "74 %", "140.0 of 160.0 GiB", "91 C", "1397 W",
                          "1 throttled (heat, power cap); 1 uncorrected memory errors; "
                          "12 corrected memory errors"));
  const std::vector<GpuValue> values = GpuValues(summary);
  EXPECT_EQ(values[0].name, "gpu_busy_share");
  EXPECT_DOUBLE_EQ(values[0].value.value(), 0.735);
  EXPECT_DOUBLE_EQ(values[5].value.value(), 1) << values[5].name;
}

TEST(GpuSummaryTest, AGpuThatIsWellHasNoNotes) {
  const GpuSample busy = Busy();
  EXPECT_THAT(GpuCells(SummaryOf({&busy})),
              ElementsAre("1", "97 %", "70.0 of 80.0 GiB", "64 C", "699 W", ""));
}

TEST(GpuSummaryTest, WhatNoGpuTellsIsEmptyAndNotZero) {
  GpuSample silent;
  silent.set_memory_used_bytes(int64_t{1} << 30);
  EXPECT_THAT(GpuCells(SummaryOf({&silent})), ElementsAre("1", "", "1.0 GiB", "", "", ""));
  for (const GpuValue& value : GpuValues(SummaryOf({&silent}))) {
    const bool is_known = value.name == "gpu_memory_used_bytes" || value.name == "gpus_throttled";
    EXPECT_EQ(value.value.has_value(), is_known) << value.name;
  }
  EXPECT_THAT(GpuCells(SummaryOf({})), ElementsAre("", "", "", "", "", ""));
  for (const GpuValue& value : GpuValues(SummaryOf({}))) EXPECT_FALSE(value.value.has_value());
}

// A report comes from another machine.
TEST(GpuSummaryTest, ReasonsArePrintableAndFew) {
  GpuSample gpu;
  for (int i = 0; i < 100; ++i) gpu.add_throttled_by(std::string(i + 1, '\x1b'));
  const GpuSummary summary = SummaryOf({&gpu});
  EXPECT_EQ(summary.throttled_by.size(), 8u);
  EXPECT_EQ(GpuCells(summary).back().find('\x1b'), std::string::npos);
}

// A report comes from another machine.
TEST(GpuSummaryTest, NumbersThatNoGpuCanHaveAreUnknown) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  GpuSample wrong;
  wrong.set_busy_share(kNan);
  wrong.set_memory_used_bytes(kMax);
  wrong.set_memory_bytes(-1);
  wrong.set_temperature_celsius(1e300);
  wrong.set_power_watts(-1e300);
  wrong.set_corrected_errors(kMax);
  wrong.set_uncorrected_errors(std::numeric_limits<int64_t>::min());
  EXPECT_THAT(GpuCells(SummaryOf({&wrong, &wrong})), ElementsAre("2", "", "", "", "", ""));
  const GpuSample busy = Busy();
  EXPECT_THAT(GpuCells(SummaryOf({&wrong, &busy})),
              ElementsAre("2", "97 %", "70.0 of 80.0 GiB", "64 C", "699 W", ""));
}

// --- by step ------------------------------------------------------------------------------------

class GpuHistoryTest : public testing::Test {
 protected:
  // A second at whose end `step` is the newest completed step; < 0: GPUs are not in this sample.
  void Sample(int64_t step, double celsius) {
    telemetry::v1::MachineSample* sample = evidence_.add_samples();
    telemetry::v1::ProcessSample* other = sample->add_ranks();
    other->set_job_id("k");
    other->set_step(1000);
    telemetry::v1::ProcessSample* rank = sample->add_ranks();
    rank->set_job_id("j");
    rank->set_step(step);
    if (celsius >= 0) sample->add_gpus()->set_temperature_celsius(celsius);
  }
  double At(int64_t step) const {
    GpuHistory history("j");
    history.Add(evidence_);
    return history.At(step).temperature_celsius.value_or(-1);
  }

  telemetry::v1::Evidence evidence_;
};

TEST_F(GpuHistoryTest, AStepHasTheSampleBeforeItsEnd) {
  Sample(10, 50);
  Sample(11, -1);
  Sample(12, 60);
  Sample(12, 61);
  Sample(14, -1);
  EXPECT_EQ(At(10), -1) << "it ended before the first sample";
  EXPECT_EQ(At(11), 50);
  EXPECT_EQ(At(12), 50);
  EXPECT_EQ(At(13), 61);
  EXPECT_EQ(At(14), 61);
  EXPECT_EQ(At(15), -1) << "it has not ended";
}

TEST_F(GpuHistoryTest, StepsThatAreComputedAgainHaveTheirNewSamples) {
  for (int64_t step = 10; step < 20; ++step) Sample(step, 50);
  for (int64_t step = 14; step < 18; ++step) Sample(step, 70);
  EXPECT_EQ(At(13), 50);
  EXPECT_EQ(At(16), 70);
  EXPECT_EQ(At(18), -1);
}

TEST_F(GpuHistoryTest, MachinesAreSummedUp) {
  Sample(10, 50);
  Sample(12, 80);
  GpuHistory history("j");
  history.Add(evidence_);
  history.Add(evidence_);
  history.Add(telemetry::v1::Evidence());
  EXPECT_EQ(history.At(11).count, 2);
  EXPECT_EQ(history.newest_step(), 12);
  EXPECT_EQ(GpuHistory("j").newest_step(), 0);
}

}  // namespace
}  // namespace megascale::cli
