#include "runtime/engine/tensor_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/comm/testing/test_world.h"
#include "runtime/device/cpu_device.h"
#include "runtime/stream/stream.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::engine {
namespace {

using plan::InstructionId;
using plan::OpKind;
using ::testing::ElementsAre;

constexpr int kRingBytes = 4096;
const InstructionId kForward(OpKind::kForward, 0, 3);

absl::Duration Now() { return base::RealClock().Monotonic(); }

tensor::Vector Of(std::vector<double>& values) {
  return {values.data(), tensor::DType::kF64, static_cast<int64_t>(values.size())};
}

// Returns one of two equal parts.
tensor::Vector PartOf(std::vector<double>& values, int index) {
  const auto size = static_cast<int64_t>(values.size()) / 2;
  return {values.data() + index * size, tensor::DType::kF64, size};
}

// Begins to gather the ranks' `own` into `all`; returns the last exchange.
int64_t Gather(TensorPeers& peers, std::vector<double>& own, std::vector<double>& all) {
  peers.Broadcast(0, Of(own), PartOf(all, 0));
  return peers.Broadcast(1, Of(own), PartOf(all, 1));
}

// Two ranks with their group, and the heartbeat slot and span ring of each. The parameter: whether
// exchanges overlap.
class TensorPeersTest : public ::testing::TestWithParam<bool> {
 protected:
  TensorPeersTest()
      : heartbeats_(base::SharedMemory::Create("heartbeats", telemetry::HeartbeatBytes(2)).value()),
        spans_(base::SharedMemory::Create("spans", telemetry::SpanBytes(2)).value()) {
    telemetry::FormatHeartbeats(*heartbeats_);
  }

  template <typename Body>
  void Run(absl::Duration timeout, const Body& body) {
    comm::ThreadWorld world(comm::OneGroup(2, 1, kRingBytes));
    world.RunConnected([&](int rank, comm::Fabric& fabric) {
      const auto host = fabric.Make("all").value();
      telemetry::HeartbeatWriter heartbeat(heartbeats_.get(), rank);
      heartbeat.Start(::getpid());
      telemetry::SpanWriter spans(spans_.get(), rank);
      InstructionReporter reporter(&heartbeat, &spans);
      reporter_[static_cast<size_t>(rank)] = &reporter;
      const auto device = device::MakeCpuDevice();
      const auto compute = device->MakeStream("compute").value();
      const auto exchanges = device->MakeStream("exchanges").value();
      const auto communicator = device->MakeCommunicator(host.get(), exchanges.get()).value();
      TensorPeers peers({.place = {.size = 2, .index = rank},
                         .reporter = &reporter,
                         .timeout = timeout,
                         .compute = compute.get(),
                         .exchanges = GetParam() ? exchanges.get() : nullptr});
      body(rank, peers, communicator.get());
      EXPECT_TRUE(exchanges->Synchronize().ok());
    });
  }
  void BeginPass(int rank) { reporter(rank).Begin(Pass(), {.attempt = 2, .step = 5}, Now()); }
  static plan::Instruction Pass() {
    plan::Instruction pass;
    pass.id = kForward;
    return pass;
  }
  std::string Shown(int rank) const {
    return telemetry::DescribeDoing(
        telemetry::ReadHeartbeat(*heartbeats_, rank, base::RealClock().Monotonic()));
  }
  InstructionReporter& reporter(int rank) { return *reporter_[static_cast<size_t>(rank)]; }

  std::unique_ptr<base::SharedMemory> heartbeats_;
  std::unique_ptr<base::SharedMemory> spans_;
  std::array<InstructionReporter*, 2> reporter_ = {};
};

INSTANTIATE_TEST_SUITE_P(Exchanges, TensorPeersTest, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Overlap" : "AreWaitedForAtOnce");
});

TEST_P(TensorPeersTest, GathersInRankOrderAndGivesEachItsPartOfTheSum) {
  Run(absl::Seconds(60), [](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    peers.Begin(kForward, communicator);
    std::vector<double> own = {1.0 + rank, 10.0 + rank};
    std::vector<double> all(4);
    peers.Wait(Gather(peers, own, all));
    EXPECT_THAT(all, ElementsAre(1, 10, 2, 11));
    std::vector<double> sum(2);
    peers.Reduce(0, PartOf(all, 0), Of(sum));
    peers.Wait(peers.Reduce(1, PartOf(all, 1), Of(sum)));
    EXPECT_THAT(sum, ElementsAre(2 * all[2 * rank], 2 * all[2 * rank + 1]));
    // The same in whole calls.
    std::vector<double> whole(4), part(2);
    peers.Wait(peers.AllGather(Of(own), Of(whole)));
    EXPECT_EQ(whole, all);
    peers.Wait(peers.ReduceScatter(Of(whole), Of(part)));
    EXPECT_EQ(part, sum);
    EXPECT_EQ(peers.status(), absl::OkStatus());
  });
}

TEST_P(TensorPeersTest, AnyNumberMayBeginBeforeOneIsWaitedFor) {
  constexpr int kMany = 500;
  Run(absl::Seconds(60), [](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    peers.Begin(kForward, communicator);
    std::vector<std::vector<double>> values(kMany, std::vector<double>(1, rank));
    std::vector<double> told(kMany);
    int64_t last = 0;
    for (int i = 0; i < kMany; ++i) {
      values[static_cast<size_t>(i)][0] += 2 * i;
      last = peers.Broadcast(i % 2, Of(values[static_cast<size_t>(i)]),
                             {&told[static_cast<size_t>(i)], tensor::DType::kF64, 1});
      EXPECT_EQ(last, i + 1);
    }
    peers.Wait(last);
    for (int i = 0; i < kMany; ++i) EXPECT_EQ(told[static_cast<size_t>(i)], 2 * i + i % 2);
  });
}

// Rank 1 begins only once rank 0 computes, and rank 0 computes before its exchange is done.
TEST(TensorPeersOverlapTest, APassComputesWhileItExchangesAndShowsThat) {
  std::atomic<bool> computes = false;
  comm::ThreadWorld world(comm::OneGroup(2, 1, kRingBytes));
  const auto memory =
      base::SharedMemory::Create("heartbeats", telemetry::HeartbeatBytes(2)).value();
  telemetry::FormatHeartbeats(*memory);
  world.RunConnected([&](int rank, comm::Fabric& fabric) {
    const auto host = fabric.Make("all").value();
    telemetry::HeartbeatWriter heartbeat(memory.get(), rank);
    heartbeat.Start(::getpid());
    InstructionReporter reporter(&heartbeat, nullptr);
    const auto device = device::MakeCpuDevice();
    const auto compute = device->MakeStream("compute").value();
    const auto exchanges = device->MakeStream("exchanges").value();
    const auto communicator = device->MakeCommunicator(host.get(), exchanges.get()).value();
    TensorPeers peers({.place = {.size = 2, .index = rank},
                       .reporter = &reporter,
                       .timeout = absl::Seconds(60),
                       .compute = compute.get(),
                       .exchanges = exchanges.get()});
    plan::Instruction pass;
    pass.id = kForward;
    reporter.Begin(pass, {}, Now());
    peers.Begin(kForward, communicator.get());
    while (rank == 1 && !computes) std::this_thread::yield();
    std::vector<double> own = {1.0 + rank};
    std::vector<double> all(2);
    const int64_t last = Gather(peers, own, all);
    if (rank == 0) {
      EXPECT_EQ(telemetry::DescribeDoing(
                    telemetry::ReadHeartbeat(*memory, 0, base::RealClock().Monotonic())),
                "forward F.c0.m3");
      computes = true;
    }
    peers.Wait(last);
    EXPECT_THAT(all, ElementsAre(1, 2));
  });
}

// The failure detector concludes from it that this rank is not the stalled one.
TEST_P(TensorPeersTest, ShowsTheExchangeForWhichItWaits) {
  Run(absl::Seconds(60), [this](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    BeginPass(rank);
    peers.Begin(kForward, communicator);
    std::vector<double> own(1), all(2);
    peers.Wait(Gather(peers, own, all));
    if (rank == 1) {
      while (Shown(0) != "forward F.c0.m3.p4") std::this_thread::yield();
    }
    peers.Wait(Gather(peers, own, all));
    EXPECT_EQ(Shown(rank), "forward F.c0.m3");
  });
}

TEST_P(TensorPeersTest, ExchangesAreSpansAndTheirPassSaysHowLongItWaited) {
  Run(absl::Seconds(60), [this](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    BeginPass(rank);
    peers.Begin(kForward, communicator);
    std::vector<double> own(1), all(2);
    peers.Wait(Gather(peers, own, all));
    peers.Wait(peers.Reduce(0, Of(own), PartOf(all, 0)));
    reporter(rank).End(Pass(), Now(), peers.status());
    std::vector<telemetry::Span> spans;
    EXPECT_EQ(telemetry::SpanReader(spans_.get(), rank).Drain(&spans), 0);
    ASSERT_EQ(spans.size(), 4u);
    EXPECT_EQ(spans[0].instruction, kForward.packed());
    EXPECT_EQ(spans[0].lane, static_cast<int>(plan::StreamKind::kCompute));
    int64_t exchanged = 0;
    for (int piece = 1; piece <= 3; ++piece) {
      const telemetry::Span& span = spans[static_cast<size_t>(piece)];
      EXPECT_EQ(span.instruction, kForward.WithPiece(piece).packed());
      EXPECT_EQ(span.lane, static_cast<int>(plan::StreamKind::kTensorParallel));
      EXPECT_EQ(span.step, 5);
      EXPECT_EQ(span.attempt, 2);
      EXPECT_EQ(span.bytes, 8);
      EXPECT_GE(span.begin_nanos, spans[0].begin_nanos);
      EXPECT_LE(span.end_nanos, spans[0].end_nanos);
      exchanged += span.end_nanos - span.begin_nanos;
    }
    if (!GetParam()) {
      EXPECT_GE(spans[0].exchange_nanos, exchanged);
    }
    EXPECT_LE(spans[0].exchange_nanos, spans[0].end_nanos - spans[0].begin_nanos);
  });
}

TEST_P(TensorPeersTest, RanksInDifferentPassesFindOut) {
  Run(absl::Seconds(60), [](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    peers.Begin(InstructionId(OpKind::kForward, 0, rank), communicator);
    std::vector<double> own(1), all(2);
    peers.Wait(Gather(peers, own, all));
    EXPECT_FALSE(peers.status().ok());
  });
}

TEST_P(TensorPeersTest, AFailureNamesThePeerAndStaysAndLaterExchangesDoNothing) {
  Run(absl::Milliseconds(50), [](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    if (rank == 1) return;  // never comes
    peers.Begin(kForward, communicator);
    std::vector<double> own(1), all(2, 7.0);
    peers.Wait(Gather(peers, own, all));
    const absl::Status first = peers.status();
    EXPECT_FALSE(first.ok());
    EXPECT_THAT(comm::BlamedRanks(first), ElementsAre(1));
    std::vector<double> untouched(2, 7.0);
    peers.Begin(InstructionId(OpKind::kBackward, 0, 3), communicator);
    peers.Wait(Gather(peers, own, untouched));
    EXPECT_THAT(untouched, ElementsAre(7, 7));
    EXPECT_EQ(peers.status(), first);
  });
}

TEST_P(TensorPeersTest, AnAbortEndsTheWait) {
  Run(absl::Seconds(60), [this](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    BeginPass(rank);
    peers.Begin(kForward, communicator);
    if (rank == 1) {
      while (Shown(0) != "forward F.c0.m3.p2") std::this_thread::yield();
      communicator->Abort(absl::AbortedError("the attempt ends"));
      return;
    }
    std::vector<double> own(1), all(2);
    peers.Wait(Gather(peers, own, all));
    EXPECT_EQ(peers.status().code(), absl::StatusCode::kAborted);
  });
}

}  // namespace
}  // namespace megascale::engine
