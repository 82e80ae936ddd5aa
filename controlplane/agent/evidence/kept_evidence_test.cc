// Tests of recent_exchanges.h and machine_reader.h.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/evidence/machine_reader.h"
#include "controlplane/agent/evidence/recent_exchanges.h"

namespace megascale::agent {
namespace {

TEST(RecentExchangesTest, RunningCallsHaveAnEntryForEachPeer) {
  const auto region =
      base::SharedMemory::Create("kept_evidence_test", telemetry::ExchangeBytes(1)).value();
  telemetry::ExchangeWriter writer(region.get(), 0, [] { return 500; });
  RecentExchanges recent(region.get(), 0);
  const int data = writer.Register("data/0");
  const int norm = writer.Register("world");
  comm::CallEvent call;
  call.instruction_id = 9;
  call.payload_bytes = 64;
  writer.Begin(norm, call);
  writer.End(norm, call);
  writer.Begin(norm, call);
  writer.Begin(data, call);
  writer.Update(data, {{1, 10, 5, 5, 10, 0}, {2, 10, 10, 10, 10, 10}});
  recent.Drain(900);
  const telemetry::v1::Evidence evidence = recent.Read();
  ASSERT_EQ(evidence.running_size(), 3);
  EXPECT_EQ(evidence.running(0).group(), "data/0");
  EXPECT_EQ(evidence.running(0).peer(), 1);
  EXPECT_EQ(evidence.running(0).transmitted_bytes(), 5);
  EXPECT_EQ(evidence.running(1).received_bytes(), 10);
  EXPECT_EQ(evidence.running(2).group(), "world");
  EXPECT_EQ(evidence.running(2).peer(), -1);
  ASSERT_EQ(evidence.completed_size(), 1);
  EXPECT_EQ(evidence.completed(0).instruction(), 9u);
  EXPECT_TRUE(evidence.completed(0).ok());
}

constexpr int64_t kLook = 100'000'000;  // how often the agent looks

class InFlightTest : public testing::Test {
 protected:
  InFlightTest() { channel_ = writer_.Register("data/0"); }

  comm::CallEvent Call(uint64_t sequence) const {
    comm::CallEvent call;
    call.sequence = sequence;
    return call;
  }
  void Move(int peer, int64_t transmitted_bytes) {
    writer_.Update(channel_, {{peer, 1 << 20, transmitted_bytes, 0, 1 << 20, 0}});
  }
  void Look() { recent_.Drain(now_ += kLook); }
  std::vector<telemetry::v1::InFlightSample> Samples() const {
    const telemetry::v1::Evidence evidence = recent_.Read();
    return {evidence.in_flight().begin(), evidence.in_flight().end()};
  }

  std::unique_ptr<base::SharedMemory> region_ =
      base::SharedMemory::Create("in_flight_test", telemetry::ExchangeBytes(1)).value();
  telemetry::ExchangeWriter writer_{region_.get(), 0, [this] { return now_; }};
  RecentExchanges recent_{region_.get(), 0};
  int channel_ = 0;
  int64_t now_ = 5'000'000'000;
};

TEST_F(InFlightTest, ACallIsSampledEachTimeThatBytesMovedAndEachSecondWhileItIsStuck) {
  writer_.Begin(channel_, Call(3));
  for (int i = 1; i <= 5; ++i) {
    Move(1, 10 * i);
    Look();
  }
  ASSERT_EQ(Samples().size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(Samples()[i].state().transmitted_bytes(), 10 * (static_cast<int64_t>(i) + 1));
    EXPECT_EQ(Samples()[i].seen_nanos(), 5'000'000'000 + kLook * (static_cast<int64_t>(i) + 1));
    EXPECT_EQ(Samples()[i].state().sequence(), 3u);
  }
  for (int i = 0; i < 30; ++i) Look();  // 3 s in which nothing moves
  const std::vector<telemetry::v1::InFlightSample> samples = Samples();
  ASSERT_EQ(samples.size(), 8u);
  for (size_t i = 5; i < 8; ++i) {
    EXPECT_EQ(samples[i].seen_nanos() - samples[i - 1].seen_nanos(), 10 * kLook);
    EXPECT_EQ(samples[i].state().transmitted_bytes(), 50);
  }
  writer_.End(channel_, Call(3));
  for (int i = 0; i < 20; ++i) Look();
  EXPECT_EQ(Samples().size(), 8u) << "it has ended";
}

TEST_F(InFlightTest, TheNewestSamplesAndCallsAreKept) {
  for (uint64_t call = 1; call <= RecentExchanges::kHistoryCalls + 10; ++call) {
    writer_.Begin(channel_, Call(call));
    if (call % 2 == 0) {
      Move(static_cast<int>(call % 7), static_cast<int64_t>(call));
      Look();
    }
    writer_.End(channel_, Call(call));
  }
  Look();
  const telemetry::v1::Evidence evidence = recent_.Read();
  EXPECT_EQ(evidence.completed_size(), static_cast<int>(RecentExchanges::kHistoryCalls));
  ASSERT_EQ(evidence.in_flight_size(), static_cast<int>(RecentExchanges::kInFlightSamples));
  EXPECT_EQ(evidence.in_flight(511).state().sequence(), RecentExchanges::kHistoryCalls + 10);
  EXPECT_EQ(evidence.in_flight(0).state().sequence(), RecentExchanges::kHistoryCalls + 10 - 1022);
  EXPECT_EQ(RecentExchanges::kInFlightSamples, 512u);
  EXPECT_EQ(RecentExchanges::kHistoryCalls, 4096u);
  EXPECT_LT(evidence.ByteSizeLong(), size_t{1} << 20);
}

class SharesTest : public InFlightTest {
 protected:
  // What has moved to and from a member; each way has 100 bytes.
  static comm::PeerProgress Member(int rank, int64_t delivered, int64_t received) {
    return {rank, 100, delivered, delivered, 100, received};
  }
  void ExpectShares(double awaiting, double transfer) {
    const RecentExchanges::Shares shares = recent_.TakeShares();
    EXPECT_DOUBLE_EQ(shares.awaiting, awaiting);
    EXPECT_DOUBLE_EQ(shares.transfer, transfer);
  }
};

TEST_F(SharesTest, NothingIsSharedBeforeALookOrWithoutACall) {
  ExpectShares(0, 0);
  Look();
  ExpectShares(0, 0);
}

// All wait alike but the one that comes late, which is in no call.
TEST_F(SharesTest, ARankAwaitsAMemberThatHasSentNothing) {
  writer_.Begin(channel_, Call(3));
  writer_.Update(channel_, {Member(1, 100, 100), Member(2, 100, 0), Member(3, 100, 100)});
  Look();
  ExpectShares(1, 0);
  Look();
  writer_.Update(channel_, {Member(1, 100, 100), Member(2, 100, 100), Member(3, 100, 100)});
  Look();
  writer_.End(channel_, Call(3));
  Look();
  Look();
  ExpectShares(0.25, 0);
}

// A rank whose link is slow misses bytes of all members, the others those of this one.
TEST_F(SharesTest, TheTransferShareCountsMembersThatHaveCome) {
  writer_.Begin(channel_, Call(3));
  writer_.Update(channel_,
                 {Member(1, 10, 100), Member(2, 100, 20), Member(3, 10, 0), Member(4, 100, 100)});
  Look();
  ExpectShares(1, 0.5);
  const int other = writer_.Register("data/1");
  writer_.Begin(other, Call(1));
  writer_.Update(other, {Member(1, 100, 10), Member(2, 100, 10)});
  Look();
  ExpectShares(1, 1);
}

TEST_F(SharesTest, WhereNothingIsToComeTheMemberHasComeOnceItTakes) {
  writer_.Begin(channel_, Call(3));
  writer_.Update(channel_, {{1, 100, 0, 0, 0, 0}});
  Look();
  ExpectShares(1, 0);
  writer_.Update(channel_, {{1, 100, 50, 50, 0, 0}});
  Look();
  ExpectShares(0, 1);
}

TEST_F(SharesTest, ACollectiveWithoutBytesAwaitsItsMembersAndMessagesCountForNothing) {
  comm::CallEvent call = Call(3);
  call.operation = comm::Operation::kBarrier;
  writer_.Begin(channel_, call);
  Look();
  ExpectShares(1, 0);
  writer_.End(channel_, call);
  call.operation = comm::Operation::kRecv;
  writer_.Begin(channel_, call);
  writer_.Update(channel_, {Member(1, 100, 10)});
  Look();
  ExpectShares(0, 0);
}

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(MachineReaderTest, MakesASampleOfTwoReadings) {
  const std::string proc = absl::StrCat(testing::TempDir(), "/proc");
  const auto write = [&](int ticks) {
    Write(proc + "/stat", absl::StrCat("cpu ", ticks, " 0 0 0 0 0 0 0 0 0\n"));
    Write(proc + "/loadavg", "1.5 0 0 1/1 1\n");
    Write(proc + "/77/stat",
          absl::StrCat("77 (x) S 1 2 3 4 5 6 7 8 9 10 ", ticks, " 0 0 0 20 0 1 0 9 4096 25 1"));
  };
  MachineReader reader(testing::TempDir(), proc);
  const std::vector<SampledRank> ranks = {{.job_id = "j",
                                           .rank = 3,
                                           .pid = 77,
                                           .step = 8,
                                           .exchanges = RecentExchanges::Shares{0.5, 0.75},
                                           .tokens_per_second = 5120}};
  const auto tick = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  write(100);
  ASSERT_TRUE(reader.IsDue(absl::Seconds(10)));
  reader.Read(absl::Seconds(10), ranks);
  EXPECT_EQ(reader.Samples().samples_size(), 0);
  EXPECT_FALSE(reader.IsDue(absl::Seconds(10.5)));
  write(150);
  telemetry::v1::GpuSample gpu;
  gpu.set_temperature_celsius(84);
  reader.Read(absl::Seconds(11), ranks, {gpu});
  const telemetry::v1::Evidence evidence = reader.Samples();
  ASSERT_EQ(evidence.samples_size(), 1);
  const telemetry::v1::MachineSample& sample = evidence.samples(0);
  EXPECT_NEAR(sample.busy_cores(), 50 * tick, 1e-6);
  EXPECT_DOUBLE_EQ(sample.load(), 1.5);
  EXPECT_GT(sample.disk_free_bytes(), 0);
  EXPECT_EQ(sample.monotonic_nanos(), 11'000'000'000);
  ASSERT_EQ(sample.ranks_size(), 1);
  EXPECT_EQ(sample.ranks(0).rank(), 3);
  EXPECT_EQ(sample.ranks(0).step(), 8);
  EXPECT_NEAR(sample.ranks(0).busy_cores(), 50 * tick, 1e-6);
  EXPECT_DOUBLE_EQ(sample.ranks(0).tokens_per_second(), 5120);
  EXPECT_DOUBLE_EQ(sample.ranks(0).awaiting_share(), 0.5);
  EXPECT_DOUBLE_EQ(sample.ranks(0).transfer_share(), 0.75);
  ASSERT_EQ(sample.gpus_size(), 1);
  EXPECT_DOUBLE_EQ(sample.gpus(0).temperature_celsius(), 84);
}

TEST(MachineReaderTest, ShowsTheRanksOfOneJobIfAskedSo) {
  MachineReader reader(testing::TempDir());
  const std::vector<SampledRank> ranks = {{.job_id = "j", .rank = 3}, {.job_id = "k", .rank = 4}};
  reader.Read(absl::Seconds(10), ranks);
  reader.Read(absl::Seconds(11), ranks);
  EXPECT_EQ(reader.Samples().samples(0).ranks_size(), 2);
  const telemetry::v1::Evidence of_job = reader.Samples("k");
  ASSERT_EQ(of_job.samples_size(), 1);
  ASSERT_EQ(of_job.samples(0).ranks_size(), 1);
  EXPECT_EQ(of_job.samples(0).ranks(0).rank(), 4);
}

TEST(MachineReaderTest, SumsUpHowTheRanksOfAJobSpentTheirSteps) {
  MachineReader reader(testing::TempDir());
  for (int64_t second = 0; second < 10; ++second) {
    reader.Read(absl::Seconds(100 + second),
                {{.job_id = "j", .rank = 3, .step = second, .compute_share = 0.5},
                 {.job_id = "k", .rank = 3, .step = second, .compute_share = 1}});
  }
  telemetry::v1::StepRange range;
  range.set_first_step(5);
  range.set_last_step(7);
  const telemetry::v1::Evidence evidence = reader.Work("j", {range});
  EXPECT_EQ(evidence.samples_size(), 0);
  ASSERT_EQ(evidence.work_size(), 1);
  EXPECT_EQ(evidence.work(0).rank(), 3);
  EXPECT_EQ(evidence.work(0).ranges(0).num_steps(), 3);
  EXPECT_DOUBLE_EQ(evidence.work(0).ranges(0).compute_seconds(), 1.5);
}

}  // namespace
}  // namespace megascale::agent
