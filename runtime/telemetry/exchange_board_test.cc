#include "runtime/telemetry/exchange_board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace megascale::telemetry {
namespace {

class ExchangeBoardTest : public ::testing::Test {
 protected:
  ExchangeBoardTest()
      : region_(base::SharedMemory::Create("test", 4096 + ExchangeBytes(2)).value()),
        writer_(region_.get(), 1, [this] { return now_; }),
        reader_(region_.get(), 1) {}

  static comm::CallEvent Call(uint64_t sequence) {
    comm::CallEvent call;
    call.operation = comm::Operation::kReduceScatter;
    call.sequence = sequence;
    call.instruction_id = 77;
    call.payload_bytes = 4096;
    return call;
  }

  int64_t now_ = 1000;
  std::unique_ptr<base::SharedMemory> region_;
  ExchangeWriter writer_;
  ExchangeReader reader_;
};

TEST_F(ExchangeBoardTest, ARunningCallShowsWhatItMovedToEachPeer) {
  const int channel = writer_.Register("data/0");
  EXPECT_TRUE(reader_.Running().empty());
  writer_.Begin(channel, Call(5));
  ASSERT_EQ(reader_.Running().size(), 1u);
  EXPECT_TRUE(reader_.Running()[0].peers.empty());
  now_ = 2000;
  writer_.Update(channel, {{3, 100, 60, 20, 100, 0}, {4, 100, 100, 100, 100, 50}});
  now_ = 3000;
  writer_.Update(channel, {{3, 100, 60, 20, 100, 0}, {4, 100, 100, 100, 100, 80}});
  const ExchangeRecord record = reader_.Running()[0];
  EXPECT_EQ(record.group, "data/0");
  EXPECT_EQ(record.operation, comm::Operation::kReduceScatter);
  EXPECT_EQ(record.sequence, 5u);
  EXPECT_EQ(record.instruction, 77u);
  EXPECT_EQ(record.begin_nanos, 1000);
  ASSERT_EQ(record.peers.size(), 2u);
  EXPECT_EQ(record.peers[0].progress.transmitted_bytes, 60);
  EXPECT_EQ(record.peers[0].changed_nanos, 2000);
  EXPECT_EQ(record.peers[1].progress.received_bytes, 80);
  EXPECT_EQ(record.peers[1].changed_nanos, 3000);
}

TEST_F(ExchangeBoardTest, CallsThatEndedAreReadOnceInOrder) {
  const int a = writer_.Register("a");
  const int b = writer_.Register("b");
  writer_.Begin(a, Call(0));
  writer_.Begin(b, Call(9));
  comm::CallEvent failed = Call(9);
  failed.ok = false;
  writer_.End(b, failed);
  writer_.End(a, Call(0));
  std::vector<ExchangeRecord> ended;
  EXPECT_EQ(reader_.Drain(&ended), 0);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].group, "b");
  EXPECT_FALSE(ended[0].ok);
  EXPECT_EQ(ended[1].group, "a");
  EXPECT_TRUE(ended[1].ok);
  EXPECT_TRUE(reader_.Running().empty());
  EXPECT_EQ(reader_.Drain(&ended), 0);
  EXPECT_EQ(ended.size(), 2u);
}

TEST_F(ExchangeBoardTest, ASlowReaderLearnsHowManyItMissed) {
  const int channel = writer_.Register("a");
  for (int64_t i = 0; i < kCompletedExchanges + 10; ++i) {
    writer_.Begin(channel, Call(static_cast<uint64_t>(i)));
    writer_.End(channel, Call(static_cast<uint64_t>(i)));
  }
  std::vector<ExchangeRecord> ended;
  EXPECT_EQ(reader_.Drain(&ended), 10);
  ASSERT_EQ(ended.size(), static_cast<size_t>(kCompletedExchanges));
  EXPECT_EQ(ended.front().sequence, 10u);
}

TEST_F(ExchangeBoardTest, FurtherCommunicatorsAndPeersAreLeftOut) {
  for (int i = 0; i < kExchangeChannels; ++i) EXPECT_EQ(writer_.Register(absl::StrCat(i)), i);
  EXPECT_EQ(writer_.Register("one more"), -1);
  writer_.Begin(-1, Call(0));
  writer_.Update(-1, {});
  writer_.End(-1, Call(0));
  writer_.Begin(0, Call(0));
  writer_.Update(0, std::vector<comm::PeerProgress>(kExchangePeers + 5));
  EXPECT_EQ(reader_.Running()[0].peers.size(), static_cast<size_t>(kExchangePeers));
}

// The numbers of a call follow from its sequence number.
comm::CallEvent Numbered(uint64_t sequence) {
  comm::CallEvent call;
  call.operation = comm::Operation::kAllGather;
  call.sequence = sequence;
  call.instruction_id = 3 * sequence + 1;
  call.payload_bytes = 5 * sequence + 2;
  return call;
}

void ExpectWhole(const ExchangeRecord& record) {
  ASSERT_EQ(record.operation, comm::Operation::kAllGather);
  ASSERT_EQ(record.instruction, 3 * record.sequence + 1);
  ASSERT_EQ(record.payload_bytes, static_cast<int64_t>(5 * record.sequence + 2));
  for (size_t i = 0; i < record.peers.size(); ++i) {
    const comm::PeerProgress& peer = record.peers[i].progress;
    ASSERT_EQ(peer.world_rank, static_cast<int>(i));
    ASSERT_EQ(peer.send_bytes, static_cast<int64_t>(7 * record.sequence + 2));
    ASSERT_EQ(peer.receive_bytes, static_cast<int64_t>(9 * record.sequence + 2));
  }
}

// While calls begin, move and end, every record that a reader gets is of one call, each call that
// ended is read once and in order, and those that it got and those that it missed add up.
TEST_F(ExchangeBoardTest, NoRecordIsTornBesideAWriter) {
  constexpr uint64_t kCalls = 100'000;
  const int channel = writer_.Register("data/0");
  std::atomic<bool> is_over = false;
  std::thread thread([&] {
    for (uint64_t sequence = 0; sequence < kCalls; ++sequence) {
      writer_.Begin(channel, Numbered(sequence));
      const auto number = static_cast<int64_t>(sequence);
      for (int64_t moved = 0; moved < 3; ++moved) {
        const comm::PeerProgress peer = {0, 7 * number + 2, moved, moved, 9 * number + 2, moved};
        comm::PeerProgress other = peer;
        other.world_rank = 1;
        writer_.Update(channel, {peer, other});
      }
      writer_.End(channel, Numbered(sequence));
    }
    is_over = true;
  });
  int64_t last = -1;
  int64_t num_read = 0;
  int64_t num_lost = 0;
  std::vector<ExchangeRecord> ended;
  for (bool more = true; more && !HasFatalFailure();) {
    more = !is_over.load();
    ended.clear();
    num_lost += reader_.Drain(&ended);
    num_read += static_cast<int64_t>(ended.size());
    for (const ExchangeRecord& record : ended) {
      ExpectWhole(record);
      EXPECT_GT(static_cast<int64_t>(record.sequence), last);
      last = static_cast<int64_t>(record.sequence);
    }
    for (const ExchangeRecord& record : reader_.Running()) ExpectWhole(record);
  }
  thread.join();
  EXPECT_EQ(num_read + num_lost, static_cast<int64_t>(kCalls));
}

TEST_F(ExchangeBoardTest, ANewWriterEmptiesTheBoard) {
  const int channel = writer_.Register("a");
  for (const uint64_t sequence : {0, 1}) {
    writer_.Begin(channel, Call(sequence));
    writer_.End(channel, Call(sequence));
  }
  std::vector<ExchangeRecord> ended;
  reader_.Drain(&ended);
  ExchangeWriter next(region_.get(), 1, [] { return 1; });
  next.Begin(next.Register("b"), Call(1));
  next.End(0, Call(1));
  ended.clear();
  EXPECT_EQ(reader_.Drain(&ended), 0);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].group, "b");
}

TEST_F(ExchangeBoardTest, NonsenseIsBounded) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    for (size_t i = 0; i + 8 <= region_->size_bytes(); i += 8) {
      const uint64_t word = round % 3 == 0 ? ~uint64_t{0} : random() >> (random() % 64);
      std::memcpy(region_->data() + i, &word, sizeof(word));
    }
    std::vector<ExchangeRecord> records;
    reader_.Drain(&records);
    EXPECT_LE(records.size(), static_cast<size_t>(kCompletedExchanges));
    for (const ExchangeRecord& record : reader_.Running()) records.push_back(record);
    for (const ExchangeRecord& record : records) {
      EXPECT_LE(record.group.size(), kExchangeNameMax);
      EXPECT_LE(record.peers.size(), static_cast<size_t>(kExchangePeers));
      EXPECT_LE(record.operation, comm::Operation::kRecv);
      EXPECT_GE(record.peer, -1);
      EXPECT_GE(record.begin_nanos, 0);
      EXPECT_GE(record.end_nanos, 0);
      for (const PeerExchange& peer : record.peers) {
        EXPECT_LE(peer.progress.transmitted_bytes, peer.progress.send_bytes);
        EXPECT_LE(peer.progress.delivered_bytes, peer.progress.transmitted_bytes);
        EXPECT_LE(peer.progress.received_bytes, peer.progress.receive_bytes);
        EXPECT_GE(peer.progress.delivered_bytes, 0);
        EXPECT_LE(peer.progress.send_bytes, kExchangeBytesMax);
        EXPECT_GE(peer.progress.world_rank, -1);
      }
    }
  }
}

}  // namespace
}  // namespace megascale::telemetry
