// Ranks that die, stop, give up or make other calls: no rank waits for ever, and errors name the
// culprit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/comm/testing/test_world.h"

namespace megascale::comm {
namespace {

using tensor::DType;
using tensor::HostVector;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kVictim = 1;
constexpr int kNumRanks = 3;
constexpr size_t kRingBytes = 64 << 10;
constexpr int64_t kSize = kNumRanks * (1 << 20);  // 12 MiB: more than rings and sockets hold
constexpr CallInfo kShort{77, absl::Milliseconds(700)};
constexpr CallInfo kLong{77, absl::Seconds(25)};

// Returns a view of the same memory as elements of another type.
HostVector BytesAs(DType dtype, const HostVector& view) {
  return HostVector::OfBytes(
      absl::MakeSpan(view.as<std::byte>(), static_cast<size_t>(view.bytes())), dtype);
}

enum class Way {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kFromRoot,
  kToMember,
  kReduceAt,
  kReduceFrom,
  kAllToAll,
  kBarrier,
  kReceive,
  kSend
};

// One call in which the victim has a part.
absl::Status PerformOnce(Way way, HostCommunicator& comm, const CallInfo& info) {
  std::vector<float> data(kSize);
  const auto whole = HostVector::Of(absl::MakeSpan(data));
  const HostVector part = whole.Slice(comm.rank() * kSize / kNumRanks, kSize / kNumRanks);
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(data.data()), kSize * 4);
  switch (way) {
    case Way::kAllReduce:
      return comm.AllReduce(whole, info);
    case Way::kReduceScatter:
      return comm.ReduceScatter(whole, part, info);
    case Way::kAllGather:
      return comm.AllGather(part, whole, info);
    case Way::kFromRoot:
      return comm.Broadcast(whole, kVictim, info);
    case Way::kToMember:
      return comm.Broadcast(whole, 0, info);
    case Way::kReduceAt:
      return comm.Reduce(whole, whole, kVictim, info);
    case Way::kReduceFrom:
      return comm.Reduce(whole, whole, 0, info);
    case Way::kAllToAll: {
      std::vector<float> output(kSize);
      return comm.AllToAll(whole, HostVector::Of(absl::MakeSpan(output)), info);
    }
    case Way::kBarrier:
      return comm.Barrier(info);
    case Way::kReceive:
      return comm.rank() == kVictim ? comm.Send(0, bytes, info) : comm.Recv(kVictim, bytes, info);
    case Way::kSend:
      return comm.rank() == kVictim ? comm.Recv(0, bytes, info) : comm.Send(kVictim, bytes, info);
  }
  return absl::OkStatus();
}

// A member that needs nothing more from the victim may finish: others can read data that the victim
// sent before it was stopped. But the victim does not come to the next call.
absl::Status Perform(Way way, HostCommunicator& comm, const CallInfo& info) {
  const absl::Status status = PerformOnce(way, comm, info);
  return status.ok() && comm.rank() != kVictim ? comm.Barrier(info) : status;
}

// Number of nodes: one, where all goes through rings and windows.
constexpr int kOneNodeOfRings = 0;

// Way, number of nodes, signal.
class VictimTest : public ::testing::TestWithParam<std::tuple<Way, int, int>> {};

// The survivors of the previous attempt, in the same processes, make all calls that need others.
absl::Status UseNextAttempt(ProcessWorld& world, int rank) {
  ASSIGN_OR_RETURN(auto fabric, world.JoinNext(rank));
  ASSIGN_OR_RETURN(auto comm, fabric->Make("all"));
  std::vector<float> data(kSize, static_cast<float>(rank + 1));
  const auto whole = HostVector::Of(absl::MakeSpan(data));
  RETURN_IF_ERROR(comm->AllReduce(whole, {78}));
  RETURN_IF_ERROR(comm->Broadcast(whole, 1, {79}));
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(data.data()), kSize * 4);
  RETURN_IF_ERROR(rank == 0 ? comm->Send(1, bytes, {80}) : comm->Recv(0, bytes, {80}));
  RETURN_IF_ERROR(comm->Barrier({81}));
  const bool is_right = std::all_of(data.begin(), data.end(), [](float x) { return x == 3; });
  return is_right ? absl::OkStatus() : absl::DataLossError("a sum of the next attempt is wrong");
}

TEST_P(VictimTest, OthersFailInTimeNameTheRankLostInsideACallAndJoinTheNextAttempt) {
  const auto [way, nodes, signal] = GetParam();
  const int num_nodes = std::max(1, nodes);
  WorldSpec next = OneGroup(kNumRanks - 1, std::min(num_nodes, kNumRanks - 1), kRingBytes);
  next.attempt = 8;
  WorldSpec spec = OneGroup(kNumRanks, num_nodes, kRingBytes);
  spec.reads_in_place = nodes != kOneNodeOfRings;
  ProcessWorld world(spec, next);
  // A killed rank is noticed at once, a stopped one at the timeout.
  const bool is_killed = signal == SIGKILL;
  const CallInfo survivors_info = is_killed ? kLong : kShort;
  world.Start([way = way, survivors_info, &world](Fabric& fabric, RankBoard& board,
                                                  int rank) -> absl::Status {
    auto comm = fabric.Make("all").value();
    if (absl::Status status = comm->Barrier({}); !status.ok()) return status;
    if (rank == kVictim) return Perform(way, *comm, kLong);
    if (!RankBoard::Await(board.may_go_on, 1)) return absl::InternalError("nobody said go");
    const absl::Status status = Perform(way, *comm, survivors_info);
    const absl::Status after = UseNextAttempt(world, rank == 0 ? 0 : 1);
    return after.ok() ? status : absl::InternalError("next attempt: " + after.ToString());
  });
  ASSERT_TRUE(RankBoard::Await(world.board(kVictim).num_entered, 2));
  world.Signal(kVictim, signal);
  for (const int rank : {0, 2}) world.board(rank).may_go_on.store(1);
  for (const int rank : {0, 2}) {
    const absl::Status status = world.Result(rank);
    if (is_killed) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    } else {
      EXPECT_THAT(status.code(),
                  AnyOf(absl::StatusCode::kAborted, absl::StatusCode::kDeadlineExceeded))
          << status;
    }
    EXPECT_THAT(BlamedRanks(status), Contains(kVictim)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("instruction 77"));
  }
}

std::string VictimName(const ::testing::TestParamInfo<VictimTest::ParamType>& info) {
  constexpr const char* kNames[] = {"AllReduce",       "ReduceScatter", "AllGather",
                                    "BroadcastFromIt", "BroadcastToIt", "ReduceToIt",
                                    "ReduceFromIt",    "AllToAll",      "Barrier",
                                    "Receive",         "Send"};
  const int nodes = std::get<1>(info.param);
  return absl::StrCat(kNames[static_cast<int>(std::get<0>(info.param))],
                      nodes == kOneNodeOfRings ? "OnRings" : absl::StrCat("On", nodes, "Nodes"),
                      std::get<2>(info.param) == SIGKILL ? "Killed" : "Stopped");
}

INSTANTIATE_TEST_SUITE_P(
    All, VictimTest,
    ::testing::Combine(::testing::Values(Way::kAllReduce, Way::kReduceScatter, Way::kAllGather,
                                         Way::kFromRoot, Way::kToMember, Way::kReduceAt,
                                         Way::kReduceFrom, Way::kAllToAll, Way::kBarrier,
                                         Way::kReceive, Way::kSend),
                       ::testing::Values(kOneNodeOfRings, 1, 3),
                       ::testing::Values(SIGKILL, SIGSTOP)),
    VictimName);

TEST(DeadlineTest, NamesGroupSequenceInstructionAndWhoHasNotArrived) {
  for (const int num_nodes : {1, 3}) {
    ThreadWorld world(OneGroup(3, num_nodes, kRingBytes));
    std::atomic<uint32_t> is_done{0};
    absl::Status result;
    world.RunConnected([&](int rank, Fabric& fabric) {
      auto comm = fabric.Make("all").value();
      ASSERT_EQ(comm->Barrier({}), absl::OkStatus());
      if (rank != 0) {
        // Neither calls nor leaves.
        EXPECT_TRUE(RankBoard::Await(is_done, 1));
        return;
      }
      float value = 0;
      result =
          comm->AllReduce(HostVector::Of(absl::MakeSpan(&value, 1)), {42, absl::Milliseconds(100)});
      is_done = 1;
    });
    EXPECT_EQ(result.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(result.message()),
                HasSubstr("group all, rank 0, all-reduce 1 (instruction 42, 4 bytes of F32): timed "
                          "out; not arrived: ranks 1, 2"));
    EXPECT_THAT(BlamedRanks(result), ElementsAre(1, 2));
  }
}

TEST(AbortTest, WakesWaitersHereAndElsewhere) {
  for (const int num_nodes : {1, 3, 2}) {
    ThreadWorld world(OneGroup(3, num_nodes, kRingBytes));
    std::vector<absl::Status> results(3);
    const absl::Duration start = base::RealClock().Monotonic();
    world.RunConnected([&](int rank, Fabric& fabric) {
      auto comm = fabric.Make("all").value();
      if (rank == 2) {
        fabric.Abort(Blame(absl::InternalError("a tensor has NaN"), {2}));
        results[2] = comm->Barrier({});
        return;
      }
      results[rank] = comm->Barrier({});
      EXPECT_EQ(comm->Barrier({}), results[rank]) << "an error is final";
    });
    for (const absl::Status& status : results) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("a tensor has NaN"));
      EXPECT_THAT(BlamedRanks(status), ElementsAre(2));
    }
    EXPECT_LT(base::RealClock().Monotonic() - start, absl::Seconds(15)) << "not by a deadline";
  }
}

TEST(AbortTest, FromAnotherThreadWakesTheOwnerInACall) {
  ThreadWorld world(OneGroup(2, 1, kRingBytes));
  std::atomic<uint32_t> has_entered{0};
  std::atomic<uint32_t> is_done{0};
  world.Run([&](int rank) {
    FabricOptions options = world.OptionsOf(rank);
    options.observer = [&](const CallEvent& event) {
      if (event.kind == CallEvent::Kind::kEntered) has_entered = 1;
    };
    auto fabric = Fabric::Create(options, OneGroup(2, 1, kRingBytes).groups).value();
    ASSERT_EQ(fabric->Connect(), absl::OkStatus());
    if (rank == 1) {
      EXPECT_TRUE(RankBoard::Await(is_done, 1));
      return;
    }
    auto comm = fabric->Make("all").value();
    std::thread other([&] {
      EXPECT_TRUE(RankBoard::Await(has_entered, 1));
      comm->Abort(absl::CancelledError("stop"));
    });
    std::byte none;
    const absl::Status status = comm->Recv(1, absl::MakeSpan(&none, 1), {});
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_EQ(status.message(), "stop");
    other.join();
    is_done = 1;
  });
}

TEST(CloseTest, WhatWasSentArrivesAndWhatWasNotIsAborted) {
  for (const int num_nodes : {1, 2}) {
    ThreadWorld world(OneGroup(2, num_nodes, kRingBytes));
    world.RunConnected([&](int rank, Fabric& fabric) {
      auto comm = fabric.Make("all").value();
      std::vector<std::byte> bytes(3 << 20, std::byte{5});
      if (rank == 1) {
        ASSERT_EQ(comm->Send(0, absl::MakeSpan(bytes), {}), absl::OkStatus());
        return;  // closes
      }
      std::vector<std::byte> got(bytes.size());
      ASSERT_EQ(comm->Recv(1, absl::MakeSpan(got), {}), absl::OkStatus());
      EXPECT_TRUE(got == bytes);
      const absl::Status status = comm->Recv(1, absl::MakeSpan(got), {});
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_THAT(BlamedRanks(status), ElementsAre(1));
    });
  }
}

// Calls of rank 0 and rank 1 that do not match, and the expected error.
struct Mismatch {
  std::function<absl::Status(HostCommunicator&, HostVector)> first;
  std::function<absl::Status(HostCommunicator&, HostVector)> second;
  std::vector<std::string> words;
};

TEST(MismatchTest, IsAnInternalErrorThatNamesBothCalls) {
  const auto reduce = [](int64_t size, uint64_t instruction) {
    return [=](HostCommunicator& comm, HostVector v) {
      return comm.AllReduce(v.Slice(0, size), {instruction});
    };
  };
  const std::vector<Mismatch> cases = {
      {reduce(64, 1), reduce(32, 1), {"256 bytes", "128 bytes"}},
      {reduce(64, 1), reduce(64, 2), {"instruction 1", "instruction 2"}},
      {reduce(64, 1),
       [](HostCommunicator& comm, HostVector v) {
         return comm.AllReduce(BytesAs(DType::kBF16, v).Slice(0, 64), {1});
       },
       {"F32", "BF16"}},
      {reduce(64, 1),
       [](HostCommunicator& comm, HostVector) { return comm.Barrier({1}); },
       {"all-reduce 0", "barrier 0"}},
      {[](HostCommunicator& comm, HostVector v) { return comm.Broadcast(v, 0, {1}); },
       [](HostCommunicator& comm, HostVector v) { return comm.Broadcast(v, 1, {1}); },
       {}},
      {[](HostCommunicator& comm, HostVector v) {
         const absl::Status status = comm.Broadcast(v, 0, {1});
         return status.ok() ? comm.Barrier({2}) : status;
       },
       [](HostCommunicator& comm, HostVector) { return comm.Barrier({2}); },
       {"barrier 0"}},
  };
  for (const Mismatch& mismatch : cases) {
    ThreadWorld world(OneGroup(2, 1, kRingBytes));
    std::vector<absl::Status> results(2);
    world.RunConnected([&](int rank, Fabric& fabric) {
      auto comm = fabric.Make("all").value();
      std::vector<float> data(64);
      const auto& call = rank == 0 ? mismatch.first : mismatch.second;
      results[rank] = call(*comm, HostVector::Of(absl::MakeSpan(data)));
      // With two different roots, both ranks only send; the next call detects the mismatch.
      if (results[rank].ok()) results[rank] = comm->Barrier({3});
    });
    const bool first = results[0].code() == absl::StatusCode::kInternal;
    const bool second = results[1].code() == absl::StatusCode::kInternal;
    EXPECT_TRUE(first || second) << results[0] << "\n" << results[1];
    EXPECT_TRUE(!results[0].ok() && !results[1].ok());
    const std::string text(results[first ? 0 : 1].message());
    for (const std::string& word : mismatch.words) EXPECT_THAT(text, HasSubstr(word));
  }
}

TEST(ArgumentsTest, BadOnesAreRefusedBeforeAnythingIsSent) {
  ThreadWorld world(OneGroup(2, 1, kRingBytes));
  world.RunConnected([&](int rank, Fabric& fabric) {
    auto comm = fabric.Make("all").value();
    std::vector<float> data(8);
    const auto all = HostVector::Of(absl::MakeSpan(data));
    const auto floats = [&](int64_t size) { return all.Slice(0, size); };
    const auto invalid = absl::StatusCode::kInvalidArgument;
    EXPECT_EQ(comm->AllReduce(BytesAs(DType::kI32, all), {}).code(), invalid);
    EXPECT_EQ(comm->ReduceScatter(floats(8), floats(3), {}).code(), invalid);
    EXPECT_EQ(comm->AllGather(floats(3), floats(8), {}).code(), invalid);
    EXPECT_EQ(comm->AllGather(floats(2), BytesAs(DType::kF64, all), {}).code(), invalid);
    EXPECT_EQ(comm->Broadcast(floats(8), 2, {}).code(), invalid);
    EXPECT_EQ(comm->Reduce(floats(8), floats(8), -1, {}).code(), invalid);
    EXPECT_EQ(comm->Reduce(floats(8), floats(7), rank, {}).code(), invalid);
    const HostVector whole_numbers = BytesAs(DType::kI32, all);
    EXPECT_EQ(comm->Reduce(whole_numbers, whole_numbers, 0, {}).code(), invalid);
    const HostVector other_half = all.Slice(4, 4);
    EXPECT_EQ(comm->AllToAll(floats(3), other_half, {}).code(), invalid);
    EXPECT_EQ(comm->AllToAll(floats(3), all.Slice(4, 3), {}).code(), invalid);
    EXPECT_EQ(comm->AllToAll(floats(4), BytesAs(DType::kI32, other_half), {}).code(), invalid);
    EXPECT_EQ(comm->AllToAll(floats(4), all.Slice(3, 4), {}).code(), invalid);
    EXPECT_EQ(comm->AllToAll(floats(4), other_half, {}).code(), absl::StatusCode::kOk);
    EXPECT_EQ(comm->Send(rank, {}, {}).code(), invalid);
    EXPECT_EQ(comm->Recv(-1, {}, {}).code(), invalid);
    EXPECT_EQ(comm->Barrier({}), absl::OkStatus());
  });
}

}  // namespace
}  // namespace megascale::comm
