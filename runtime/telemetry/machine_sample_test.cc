#include "runtime/telemetry/machine_sample.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/stop_signal.h"
#include "runtime/telemetry/gpu_metrics.h"

namespace megascale::telemetry {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(10);

MachineTexts Texts() {
  MachineTexts texts;
  texts.stat = "cpu  100 10 50 9000 70 3 2 5 0 0\ncpu0 1 2 3\n";
  texts.loadavg = "3.25 1.00 0.50 2/300 4711\n";
  texts.meminfo = "MemTotal:       16000 kB\nMemAvailable:    8000 kB\n";
  texts.vmstat = "pgfault 900\npgmajfault 12\n";
  texts.diskstats =
      "   8       0 sda 10 0 200 5 20 0 400 6 0 0 0\n"
      "   8       1 sda1 10 0 200 5 20 0 400 6 0 0 0\n"
      "   7       0 loop0 10 0 999 5 20 0 999 6 0 0 0\n"
      " 259       0 nvme0n1 1 0 100 5 2 0 50 6 0 0 0\n"
      " 259       1 nvme0n1p1 1 0 100 5 2 0 50 6 0 0 0\n";
  texts.net_dev =
      "Inter-|   Receive                                                |  Transmit\n"
      " face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop\n"
      "    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n"
      "  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0\n";
  texts.net_snmp =
      "Ip: Forwarding\nIp: 1\n"
      "Tcp: RtoAlgorithm RetransSegs InErrs\nTcp: 1 77 0\n";
  texts.cpu_stat = "usage_usec 5\nthrottled_usec 250000\n";
  return texts;
}

TEST(MachineSampleTest, ReadsTheKernelsTexts) {
  const MachineCounters counters = ParseMachine(Texts(), kTick);
  EXPECT_EQ(counters.busy, 170 * kTick);
  EXPECT_EQ(counters.throttled, absl::Milliseconds(250));
  EXPECT_DOUBLE_EQ(counters.load, 3.25);
  EXPECT_EQ(counters.memory_available_bytes, 8000 * 1024);
  EXPECT_EQ(counters.major_faults, 12);
  EXPECT_EQ(counters.disk_read_bytes, 300 * 512);
  EXPECT_EQ(counters.disk_written_bytes, 450 * 512);
  EXPECT_EQ(counters.retransmitted_segments, 77);
  ASSERT_EQ(counters.interfaces.size(), 1u);
  EXPECT_EQ(counters.interfaces.at("eth0").received_bytes, 1000);
  EXPECT_EQ(counters.interfaces.at("eth0").sent_bytes, 2000);
  EXPECT_EQ(counters.interfaces.at("eth0").errors, 10);
}

TEST(MachineSampleTest, MissingAndMalformedTextsAreZeros) {
  MachineTexts texts;
  texts.stat = "cpu x y\n";
  texts.loadavg = "-";
  texts.net_dev = "eth0: 1 2\n:\n";
  texts.net_snmp = "Tcp: A\nTcp:\n";
  texts.diskstats = "8 0 sda\n";
  const MachineCounters counters = ParseMachine(texts, kTick);
  EXPECT_EQ(counters.busy, absl::ZeroDuration());
  EXPECT_EQ(counters.load, 0);
  EXPECT_TRUE(counters.interfaces.empty());
  EXPECT_EQ(counters.retransmitted_segments, 0);
}

TEST(MachineSampleTest, AProcessMayHaveAnyName) {
  const ProcessCounters counters = ParseProcess(
      "77 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 100 50 0 0 20 0 1 0 999 4096 25 1", kTick, 4096);
  EXPECT_EQ(counters.busy, 150 * kTick);
  EXPECT_EQ(counters.memory_bytes, 25 * 4096);
  EXPECT_EQ(ParseProcess("", kTick, 4096).memory_bytes, 0);
}

TEST(MachineSampleTest, RatesArePerSecondAndNeverNegative) {
  const MachineCounters before = ParseMachine(Texts(), kTick);
  MachineCounters now = before;
  now.busy += absl::Seconds(3);
  now.throttled += absl::Milliseconds(500);
  now.disk_read_bytes += 4000;
  now.retransmitted_segments = 7;  // the counter went back
  now.interfaces["eth0"].received_bytes += 100;
  now.interfaces["eth1"].received_bytes = 5;
  const v1::MachineSample sample = SampleOf(before, now, absl::Seconds(2));
  EXPECT_DOUBLE_EQ(sample.busy_cores(), 1.5);
  EXPECT_DOUBLE_EQ(sample.throttled_share(), 0.25);
  EXPECT_DOUBLE_EQ(sample.disk_read_bytes(), 2000);
  EXPECT_DOUBLE_EQ(sample.retransmitted_segments(), 0);
  ASSERT_EQ(sample.interfaces_size(), 1);
  EXPECT_DOUBLE_EQ(sample.interfaces(0).received_bytes(), 50);
}

// Everything at its limit, with values as large as they get.
TEST(MachineSampleTest, AMessageWithAllSamplesHasLessThanTwoMebibytes) {
  SampleRing ring;
  for (size_t i = 0; i < SampleRing::kSamplesMax; ++i) {
    v1::MachineSample sample;
    sample.set_memory_available_bytes(int64_t{1} << 50);
    for (int rank = 0; rank < SampleRing::kRanksMax; ++rank) {
      v1::ProcessSample* process = sample.add_ranks();
      process->set_job_id("a-job-with-a-long-name");
      process->set_rank(12000);
      process->set_step(int64_t{1} << 30);
      process->set_busy_cores(1.5);
      process->set_memory_bytes(int64_t{1} << 40);
      process->set_compute_share(0.5);
      process->set_wait_share(0.5);
      process->set_awaiting_share(0.5);
      process->set_transfer_share(0.5);
      process->set_tokens_per_second(1e6);
    }
    for (int gpu = 0; gpu < SampleRing::kGpusMax + 1 && i % 5 == 0; ++gpu) {
      v1::GpuSample* shown = sample.add_gpus();
      shown->set_index(gpu);
      shown->set_busy_share(0.5);
      shown->set_memory_busy_share(0.5);
      shown->set_memory_used_bytes(int64_t{80} << 30);
      shown->set_temperature_celsius(80);
      shown->set_power_watts(700);
      shown->set_core_clock_megahertz(1980);
      shown->set_memory_clock_megahertz(2619);
      shown->add_throttled_by("power cap");
      shown->set_corrected_errors(1 << 20);
      shown->set_uncorrected_errors(1);
    }
    ring.Add(sample);
  }
  EXPECT_EQ(ring.samples().front().gpus_size(), SampleRing::kGpusMax);
  v1::Evidence evidence;
  for (const v1::MachineSample& sample : ring.samples()) *evidence.add_samples() = sample;
  EXPECT_LT(evidence.ByteSizeLong(), 2u << 20);
}

// A driver that hangs must not stop its reader.
TEST(GpuMetricsTest, WhatIsReadIsTakenOnceAndAHangHoldsUpNobody) {
  struct Driver {
    std::atomic<int> reads = 0;
    base::StopSignal hang;
  };
  const auto driver = std::make_shared<Driver>();
  {
    GpuMetrics metrics(
        [driver] {
          if (++driver->reads == 2) driver->hang.WaitFor(absl::Minutes(1));
          return std::vector<v1::GpuSample>(2);
        },
        absl::Milliseconds(1));
    const auto taken = [&] {
      const absl::Time deadline = absl::Now() + absl::Seconds(30);
      std::vector<v1::GpuSample> samples = metrics.Take();
      for (; samples.empty() && absl::Now() < deadline; samples = metrics.Take()) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      return samples.size();
    };
    EXPECT_EQ(taken(), 2u);
    EXPECT_TRUE(metrics.Take().empty()) << "the second read hangs";
  }
  driver->hang.Notify();
}

TEST(GpuMetricsTest, AMachineWithoutGpusHasNoSamples) {
  EXPECT_TRUE(GpuMetrics(nullptr).Take().empty());
}

TEST(MachineSampleTest, TheRingKeepsFifteenMinutes) {
  SampleRing ring;
  for (size_t i = 0; i < SampleRing::kSamplesMax + 5; ++i) {
    v1::MachineSample sample;
    sample.set_monotonic_nanos(static_cast<int64_t>(i));
    for (int rank = 0; rank < SampleRing::kRanksMax + 3; ++rank) sample.add_ranks();
    ring.Add(sample);
  }
  EXPECT_EQ(ring.samples().size(), SampleRing::kSamplesMax);
  EXPECT_EQ(ring.samples().front().monotonic_nanos(), 5);
  EXPECT_EQ(ring.samples().front().ranks_size(), SampleRing::kRanksMax);
}

}  // namespace
}  // namespace megascale::telemetry
