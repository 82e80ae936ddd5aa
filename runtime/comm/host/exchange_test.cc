// One member's part of a call, without threads: the bytes that it moves, and the peers that it
// wakes.
#include "runtime/comm/host/exchange.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/base/process/shared_memory.h"

namespace megascale::comm {
namespace {

constexpr int kNumRanks = 3;
constexpr size_t kRingBytes = 2048;
constexpr size_t kMessageFloats = 4096;  // more than a ring holds

class ExchangeTest : public ::testing::Test {
 protected:
  ExchangeTest() {
    spec_.groups = {{"all", {0, 1, 2}, kRingBytes}};
    spec_.placements.assign(kNumRanks, "node");
    spec_.node_id = "node";
    const size_t num_bytes = RegionBytes(spec_.groups, spec_.placements, "node");
    memory_ = base::SharedMemory::Create("exchange_test", num_bytes).value();
    EXPECT_TRUE(FormatRegion(spec_, *memory_).ok());
    layout_ = std::make_unique<RegionLayout>(RegionLayout::Attach(spec_, *memory_).value());
  }

  std::vector<Peer> PeersOf(int self) const {
    std::vector<Peer> peers(kNumRanks);
    for (int i = 0; i < kNumRanks; ++i) {
      peers[i].world_rank = i;
      if (i == self) continue;
      peers[i].slot = layout_->Slot(0, i);
      peers[i].inbox = layout_->RingBetween(0, i, self);
      peers[i].outbox = layout_->RingBetween(0, self, i);
    }
    return peers;
  }
  uint32_t Bumps(int rank) const { return layout_->Slot(0, rank)->doorbell.Count(); }

  // By rank.
  std::vector<Exchange> SendsToRank0() const {
    std::vector<Exchange> sends;
    for (int i = 0; i < kNumRanks; ++i) {
      sends.emplace_back(call_);
      sends.back().Send(0, data_.data(), call_.call_bytes);
    }
    return sends;
  }
  void ReceiveAtRank0(Exchange* receive) {
    receive->ReceiveSum({.self = 0,
                         .group_size = kNumRanks,
                         .own = reinterpret_cast<const std::byte*>(data_.data()),
                         .output = reinterpret_cast<std::byte*>(sum_.data()),
                         .num_bytes = call_.call_bytes});
  }

  const MessageHeader call_ = {.operation = Operation::kReduceScatter,
                               .call_bytes = kMessageFloats * sizeof(float)};

 private:
  const std::vector<float> data_ = std::vector<float>(kMessageFloats, 1);
  std::vector<float> sum_ = std::vector<float>(kMessageFloats);
  RegionSpec spec_;
  std::unique_ptr<base::SharedMemory> memory_;
  std::unique_ptr<RegionLayout> layout_;
};

// Two members that wait for a third and notify each other of that would keep each other awake.
TEST_F(ExchangeTest, WhoFindsNothingToAddWakesNobody) {
  std::vector<Exchange> sends = SendsToRank0();
  Exchange receive(call_);
  ReceiveAtRank0(&receive);
  std::vector<Peer> own = PeersOf(0), first = PeersOf(1), second = PeersOf(2);
  // Rank 1 stops after its first bytes; rank 2 fills its ring again.
  ASSERT_TRUE(sends[1].Progress(first).value());
  ASSERT_TRUE(sends[2].Progress(second).value());
  while (receive.Progress(own).value()) {
  }
  ASSERT_TRUE(sends[2].Progress(second).value());
  ASSERT_GE(own[2].inbox.ReadableSpan().size(), own[2].inbox.capacity() / 2);

  const uint32_t bumps = Bumps(1) + Bumps(2);
  EXPECT_FALSE(receive.Progress(own).value());
  EXPECT_EQ(Bumps(1) + Bumps(2), bumps);
}

TEST_F(ExchangeTest, WhatHasMovedIsShownForEachPeer) {
  std::vector<Exchange> sends = SendsToRank0();
  Exchange receive(call_);
  ReceiveAtRank0(&receive);
  std::vector<Peer> own = PeersOf(0), first = PeersOf(1), second = PeersOf(2);
  const auto room = static_cast<int64_t>(first[0].outbox.capacity() - sizeof(MessageHeader));
  const auto all = static_cast<int64_t>(call_.call_bytes);
  std::vector<PeerProgress> shown;

  sends[1].ShowProgress(first, 1, false, &shown);
  EXPECT_EQ(shown[0].send_bytes, all);
  EXPECT_EQ(shown[0].transmitted_bytes, 0);
  ASSERT_TRUE(sends[1].Progress(first).value());
  sends[1].ShowProgress(first, 1, false, &shown);
  EXPECT_EQ(shown[0].world_rank, 0);
  EXPECT_EQ(shown[0].transmitted_bytes, room);
  EXPECT_EQ(shown[0].delivered_bytes, 0);

  ASSERT_TRUE(receive.Progress(own).value());
  receive.ShowProgress(own, 0, false, &shown);
  EXPECT_EQ(shown[1].receive_bytes, all);
  EXPECT_EQ(shown[1].received_bytes, room);
  EXPECT_EQ(shown[2].receive_bytes, all);
  EXPECT_EQ(shown[2].received_bytes, 0) << "the one that has not come";

  ASSERT_TRUE(sends[2].Progress(second).value());
  while (receive.Progress(own).value()) {
  }
  sends[1].ShowProgress(first, 1, false, &shown);
  EXPECT_EQ(shown[0].delivered_bytes, room);
}

}  // namespace
}  // namespace megascale::comm
