#include "runtime/engine/tensor_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/comm/test_world.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::engine {
namespace {

using plan::InstructionId;
using plan::OpKind;
using ::testing::ElementsAre;

constexpr int kRingBytes = 4096;
const InstructionId kForward(OpKind::kForward, 0, 3);

tensor::Vector Of(std::vector<double>& values) {
  return {values.data(), tensor::DType::kF64, static_cast<int64_t>(values.size())};
}

// Two ranks with their group, and what each shows in its heartbeat slot.
class TensorPeersTest : public ::testing::Test {
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
      const auto communicator = fabric.Make("all").value();
      telemetry::HeartbeatWriter heartbeat(heartbeats_.get(), rank);
      heartbeat.Start(::getpid());
      telemetry::SpanWriter spans(spans_.get(), rank);
      Doing doing(&heartbeat, &spans);
      doing_[static_cast<size_t>(rank)] = &doing;
      TensorPeers peers({.size = 2, .index = rank}, &doing, timeout);
      body(rank, peers, communicator.get());
    });
  }
  std::string Shown(int rank) const {
    return telemetry::ReadHeartbeat(*heartbeats_, rank, base::RealClock().Monotonic()).doing();
  }
  Doing& doing(int rank) { return *doing_[static_cast<size_t>(rank)]; }

  std::unique_ptr<base::SharedMemory> heartbeats_;
  std::unique_ptr<base::SharedMemory> spans_;
  std::array<Doing*, 2> doing_ = {};
};

TEST_F(TensorPeersTest, GathersInRankOrderAndGivesEachItsPartOfTheSum) {
  Run(absl::Seconds(60), [](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    peers.Begin(kForward, communicator);
    std::vector<double> own = {1.0 + rank, 10.0 + rank};
    std::vector<double> all(4);
    peers.AllGather(Of(own), Of(all));
    EXPECT_THAT(all, ElementsAre(1, 10, 2, 11));
    std::vector<double> sum(2);
    peers.ReduceScatter(Of(all), Of(sum));
    EXPECT_THAT(sum, ElementsAre(2 * all[2 * rank], 2 * all[2 * rank + 1]));
    EXPECT_EQ(peers.status(), absl::OkStatus());
  });
}

// The failure detector reads from it that this rank is not the one that stands still.
TEST_F(TensorPeersTest, ShowsTheExchangeInWhichItWaits) {
  Run(absl::Seconds(60), [this](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    peers.Begin(kForward, communicator);
    std::vector<double> own(1), all(2);
    peers.AllGather(Of(own), Of(all));
    if (rank == 1) {
      while (Shown(0) != "forward F.c0.m3.p2") std::this_thread::yield();
    }
    peers.AllGather(Of(own), Of(all));
    EXPECT_EQ(Shown(rank), "forward F.c0.m3");
  });
}

// What the pass waited for is the exchanges' time, since nothing else goes on in them.
TEST_F(TensorPeersTest, ExchangesAreSpansAndTheirPassSaysHowLongItWaited) {
  Run(absl::Seconds(60), [this](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    plan::Instruction pass;
    pass.id = kForward;
    doing(rank).Begin(pass, {.attempt = 2, .step = 5});
    peers.Begin(kForward, communicator);
    std::vector<double> own(1), all(2);
    peers.AllGather(Of(own), Of(all));
    peers.ReduceScatter(Of(all), Of(own));
    doing(rank).End(pass, peers.status());
    std::vector<telemetry::Span> spans;
    EXPECT_EQ(telemetry::SpanReader(spans_.get(), rank).Drain(&spans), 0);
    ASSERT_EQ(spans.size(), 3u);
    EXPECT_EQ(spans[0].instruction, kForward.packed());
    EXPECT_EQ(spans[0].lane, static_cast<int>(plan::StreamKind::kCompute));
    int64_t exchanged = 0;
    for (int piece = 1; piece <= 2; ++piece) {
      const telemetry::Span& span = spans[static_cast<size_t>(piece)];
      EXPECT_EQ(span.instruction, kForward.WithPiece(piece).packed());
      EXPECT_EQ(span.lane, static_cast<int>(plan::StreamKind::kTensorParallel));
      EXPECT_EQ(span.step, 5);
      EXPECT_EQ(span.attempt, 2);
      EXPECT_EQ(span.bytes, 16);
      EXPECT_GE(span.begin_nanos, spans[0].begin_nanos);
      EXPECT_LE(span.end_nanos, spans[0].end_nanos);
      exchanged += span.end_nanos - span.begin_nanos;
    }
    EXPECT_GE(spans[0].exchange_nanos, exchanged);
    EXPECT_LE(spans[0].exchange_nanos, spans[0].end_nanos - spans[0].begin_nanos);
  });
}

TEST_F(TensorPeersTest, RanksInDifferentPassesFindOut) {
  Run(absl::Seconds(60), [](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    peers.Begin(InstructionId(OpKind::kForward, 0, rank), communicator);
    std::vector<double> own(1), all(2);
    peers.AllGather(Of(own), Of(all));
    EXPECT_FALSE(peers.status().ok());
  });
}

TEST_F(TensorPeersTest, AFailureStaysAndLaterCallsDoNothing) {
  Run(absl::Milliseconds(50), [](int rank, TensorPeers& peers, comm::Communicator* communicator) {
    if (rank == 1) return;  // never comes
    peers.Begin(kForward, communicator);
    std::vector<double> own(1), all(2, 7.0);
    peers.AllGather(Of(own), Of(all));
    const absl::Status first = peers.status();
    EXPECT_FALSE(first.ok());
    std::vector<double> untouched(2, 7.0);
    peers.Begin(InstructionId(OpKind::kBackward, 0, 3), communicator);
    peers.AllGather(Of(own), Of(untouched));
    EXPECT_THAT(untouched, ElementsAre(7, 7));
    EXPECT_EQ(peers.status(), first);
  });
}

}  // namespace
}  // namespace megascale::engine
