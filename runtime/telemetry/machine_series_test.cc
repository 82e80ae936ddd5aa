#include "runtime/telemetry/machine_series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "absl/strings/string_view.h"

namespace megascale::telemetry {
namespace {

using ::testing::ElementsAre;

// A second in which a rank of the job and one of another are on the machine.
v1::MachineSample SampleAt(int64_t nanos, double compute_share) {
  v1::MachineSample sample;
  sample.set_monotonic_nanos(nanos);
  sample.set_busy_cores(1.5);
  v1::ProcessSample* rank = sample.add_ranks();
  rank->set_job_id("j");
  rank->set_compute_share(compute_share);
  rank->set_memory_bytes(int64_t{1} << 40);
  sample.add_ranks()->set_job_id("another");
  return sample;
}

std::vector<float> ColumnOf(const v1::MachineSeries& series, absl::string_view metric) {
  for (const v1::MetricColumn& column : series.columns()) {
    if (column.metric() == metric) return {column.values().begin(), column.values().end()};
  }
  return {};
}

TEST(MachineSeriesTest, HasTheSamplesInWhichRanksOfTheJobWereThere) {
  std::vector<v1::MachineSample> samples = {SampleAt(1, 0.25), SampleAt(2, 0.5), SampleAt(3, 1)};
  samples[1].mutable_ranks()->DeleteSubrange(0, 1);
  const v1::MachineSeries series = SeriesOf(samples, "j");
  EXPECT_THAT(series.monotonic_nanos(), ElementsAre(1, 3));
  ASSERT_EQ(series.columns_size(), 9);
  EXPECT_EQ(series.columns(0).metric(), kComputeShare);
  for (const v1::MetricColumn& column : series.columns()) EXPECT_EQ(column.values_size(), 2);
  EXPECT_THAT(ColumnOf(series, kComputeShare), ElementsAre(0.25F, 1));
  EXPECT_THAT(ColumnOf(series, kBusyCores), ElementsAre(1.5F, 1.5F));
  EXPECT_THAT(ColumnOf(series, kMemoryBytes), ElementsAre(0x1p40F, 0x1p40F));
  EXPECT_EQ(SeriesOf(samples, "unknown").columns_size(), 0);
}

TEST(MachineSeriesTest, SharesAreMeansOfTheRanksAndMemoryIsTheirSum) {
  v1::MachineSample sample = SampleAt(1, 0.25);
  *sample.add_ranks() = sample.ranks(0);
  sample.mutable_ranks(2)->set_compute_share(0.75);
  for (const char* name : {"eth0", "eth1"}) {
    v1::InterfaceSample* interface = sample.add_interfaces();
    interface->set_name(name);
    interface->set_received_bytes(10);
    interface->set_sent_bytes(20);
    interface->set_errors(1);
  }
  sample.set_retransmitted_segments(5);
  sample.set_disk_read_bytes(3);
  sample.set_disk_written_bytes(4);
  const v1::MachineSeries series = SeriesOf(std::vector<v1::MachineSample>{sample}, "j");
  EXPECT_THAT(ColumnOf(series, kComputeShare), ElementsAre(0.5F));
  EXPECT_THAT(ColumnOf(series, kMemoryBytes), ElementsAre(0x1p41F));
  EXPECT_THAT(ColumnOf(series, kNetworkBytes), ElementsAre(60));
  EXPECT_THAT(ColumnOf(series, kLostPackets), ElementsAre(7));
  EXPECT_THAT(ColumnOf(series, kDiskBytes), ElementsAre(7));
}

TEST(MachineSeriesTest, WhatOneRankDoesNotMeasureHasNoValue) {
  std::vector<v1::MachineSample> samples = {SampleAt(1, 0.25), SampleAt(2, 0.5)};
  samples[1].mutable_ranks(0)->set_awaiting_share(0.25);
  samples[1].mutable_ranks(0)->set_wait_share(0.5);
  const std::vector<float> values = ColumnOf(SeriesOf(samples, "j"), kAwaitingShare);
  ASSERT_EQ(values.size(), 2u);
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(values[1], 0.25F);
}

// An answer has at most 1 MiB.
TEST(MachineSeriesTest, FifteenMinutesAreLessThanFiftyKilobytes) {
  const std::vector<v1::MachineSample> samples(900, SampleAt(int64_t{1} << 50, 0.25));
  EXPECT_LT(SeriesOf(samples, "j").ByteSizeLong(), size_t{50'000});
}

}  // namespace
}  // namespace megascale::telemetry
