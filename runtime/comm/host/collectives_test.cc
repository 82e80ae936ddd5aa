// Every operation, type and group size, over shared memory, streams and both, against sums made
// here.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "runtime/comm/fold.h"
#include "runtime/comm/testing/test_world.h"
#include "runtime/stream/host_stream.h"
#include "runtime/tensor/sum_tree.h"

namespace megascale::comm {
namespace {

using tensor::DType;
using tensor::HostVector;
using Bytes = std::vector<std::byte>;

constexpr size_t kRingBytes = 4096;
// Zero, one, odd, and several times the capacity of a ring (in every type).
const std::vector<int64_t> kSizes = {0, 1, 37, 9001};

// Returns a number that depends only on the arguments. Magnitudes differ so much that sums show the
// order of addition.
double Value(int rank, int64_t k, int salt) {
  uint64_t bits = (static_cast<uint64_t>(rank) * 1000003 + k) * 2654435761u + salt * 40503u;
  bits ^= bits >> 29;
  bits *= 0xbf58476d1ce4e5b9u;
  bits ^= bits >> 32;
  const double fraction = static_cast<double>(bits % 2000001) / 1000000.0 - 1.0;
  return fraction * static_cast<double>(1u << (bits >> 40) % 12);
}

void Put(Bytes& bytes, DType dtype, int64_t k, double value) {
  if (dtype == DType::kF64) std::memcpy(&bytes[k * 8], &value, 8);
  const auto single = static_cast<float>(value);
  if (dtype == DType::kF32) std::memcpy(&bytes[k * 4], &single, 4);
  const auto whole = static_cast<int32_t>(value * 1000);
  if (dtype == DType::kI32) std::memcpy(&bytes[k * 4], &whole, 4);
  const tensor::BFloat16 half = tensor::ToBFloat16(single);
  if (dtype == DType::kBF16) std::memcpy(&bytes[k * 2], &half, 2);
}

double Get(const Bytes& bytes, DType dtype, int64_t k) {
  double value = 0;
  if (dtype == DType::kF64) std::memcpy(&value, &bytes[k * 8], 8);
  float single = 0;
  if (dtype == DType::kF32) std::memcpy(&single, &bytes[k * 4], 4);
  tensor::BFloat16 half;
  if (dtype == DType::kBF16) {
    std::memcpy(&half, &bytes[k * 2], 2);
    single = tensor::ToFloat(half);
  }
  return dtype == DType::kF64 ? value : single;
}

Bytes Input(int rank, DType dtype, int64_t size, int salt) {
  Bytes bytes(size * tensor::SizeOf(dtype));
  for (int64_t k = 0; k < size; ++k) Put(bytes, dtype, k, Value(rank, k, salt));
  return bytes;
}

// Adds up in the order that docs/layouts.md promises, element by element.
Bytes Sum(int num_ranks, DType dtype, int64_t size, int salt) {
  Bytes result = Input(0, dtype, size, salt);
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < num_ranks; ++rank) inputs.push_back(Input(rank, dtype, size, salt));
  for (int64_t k = 0; k < size; ++k) {
    const auto value = [&](int64_t rank) { return Get(inputs[rank], dtype, k); };
    const auto narrow = [&](int64_t rank) { return static_cast<float>(value(rank)); };
    Put(result, dtype, k,
        dtype == DType::kF64 ? tensor::SumTree(0, num_ranks, value)
                             : tensor::SumTree(0, num_ranks, narrow));
  }
  return result;
}

// More members than the worlds below have.
TEST(FoldSumTest, AnyNumberOfSourcesIsAddedAsATree) {
  constexpr int64_t kSize = 131;  // with a remainder of every vector width
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const int count : {1, 2, 3, 7, 8, 12, 15, 16, 31, 192}) {
      std::vector<Bytes> inputs;
      std::vector<const std::byte*> sources;
      for (int i = 0; i < count; ++i) inputs.push_back(Input(i, dtype, kSize, /*salt=*/5));
      for (const Bytes& input : inputs) sources.push_back(input.data());
      Bytes sum(inputs[0].size());
      FoldSum(dtype, sources, kSize, sum.data());
      EXPECT_TRUE(sum == Sum(count, dtype, kSize, /*salt=*/5)) << count << " sources";
    }
  }
}

HostVector View(Bytes& bytes, DType dtype) {
  return HostVector::OfBytes(absl::MakeSpan(bytes), dtype);
}

Bytes Slice(const Bytes& bytes, int index, int count) {
  const size_t part = bytes.size() / count;
  return Bytes(bytes.begin() + index * part, bytes.begin() + (index + 1) * part);
}

// The calls that sum, on one size and type, on one rank.
void CheckSums(HostCommunicator& comm, DType dtype, int64_t size, int salt) {
  const int n = comm.size();
  const int rank = comm.rank();
  const CallInfo info{static_cast<uint64_t>(salt)};
  const std::string where = absl::StrCat(n, " ranks, rank ", rank, ", ", size, " of ",
                                         absl::string_view(tensor::Name(dtype)));

  Bytes buffer = Input(rank, dtype, size, salt);
  ASSERT_EQ(comm.AllReduce(View(buffer, dtype), info), absl::OkStatus()) << where;
  EXPECT_TRUE(buffer == Sum(n, dtype, size, salt)) << "all-reduce, " << where;

  Bytes input = Input(rank, dtype, size * n, salt + 1);
  const Bytes before = input;
  const Bytes sum = Sum(n, dtype, size * n, salt + 1);
  Bytes output(size * tensor::SizeOf(dtype));
  ASSERT_EQ(comm.ReduceScatter(View(input, dtype), View(output, dtype), info), absl::OkStatus());
  EXPECT_TRUE(output == Slice(sum, rank, n)) << "reduce-scatter, " << where;
  EXPECT_TRUE(input == before) << "reduce-scatter changed its input, " << where;

  const Bytes part = Input(rank, dtype, size, salt + 2);
  for (int root = 0; root < n; ++root) {
    Bytes mine = part;
    Bytes reduced(rank == root ? mine.size() : 0);
    ASSERT_EQ(comm.Reduce(View(mine, dtype), View(reduced, dtype), root, info), absl::OkStatus());
    if (rank == root) {
      EXPECT_TRUE(reduced == Sum(n, dtype, size, salt + 2)) << "reduce, " << where;
    }
    EXPECT_TRUE(mine == part) << "reduce changed its input, " << where;
  }
}

// The calls that copy.
void CheckCopies(HostCommunicator& comm, DType dtype, int64_t size, int salt) {
  const int n = comm.size();
  const int rank = comm.rank();
  const CallInfo info{static_cast<uint64_t>(salt)};
  const std::string where = absl::StrCat(n, " ranks, rank ", rank, ", ", size, " of ",
                                         absl::string_view(tensor::Name(dtype)));

  Bytes part = Input(rank, dtype, size, salt);
  Bytes expected;
  for (int i = 0; i < n; ++i) {
    const Bytes other = Input(i, dtype, size, salt);
    expected.insert(expected.end(), other.begin(), other.end());
  }
  Bytes gathered(expected.size());
  ASSERT_EQ(comm.AllGather(View(part, dtype), View(gathered, dtype), info), absl::OkStatus());
  EXPECT_TRUE(gathered == expected) << "all-gather, " << where;

  Bytes input = Input(rank, dtype, size * n, salt + 1);
  const Bytes before = input;
  Bytes output(input.size());
  expected.clear();
  for (int i = 0; i < n; ++i) {
    const Bytes other = Slice(Input(i, dtype, size * n, salt + 1), rank, n);
    expected.insert(expected.end(), other.begin(), other.end());
  }
  ASSERT_EQ(comm.AllToAll(View(input, dtype), View(output, dtype), info), absl::OkStatus());
  EXPECT_TRUE(output == expected) << "all-to-all, " << where;
  EXPECT_TRUE(input == before) << "all-to-all changed its input, " << where;

  const int root = n - 1;
  Bytes told = rank == root ? Input(root, dtype, size, salt + 2) : Bytes(part.size());
  ASSERT_EQ(comm.Broadcast(View(told, dtype), root, info), absl::OkStatus());
  EXPECT_TRUE(told == Input(root, dtype, size, salt + 2)) << "broadcast, " << where;

  // Along the line of ranks: all but the first receive, all but the last send.
  Bytes message(part.size());
  const Bytes own = Input(rank, dtype, size, salt + 3);
  if (rank > 0) {
    ASSERT_EQ(comm.Recv(rank - 1, absl::MakeSpan(message), info), absl::OkStatus());
    EXPECT_TRUE(message == Input(rank - 1, dtype, size, salt + 3)) << "message, " << where;
  }
  if (rank + 1 < n) {
    ASSERT_EQ(comm.Send(rank + 1, absl::MakeSpan(own), info), absl::OkStatus()) << where;
  }

  ASSERT_EQ(comm.Barrier(info), absl::OkStatus()) << where;
}

enum class Way { kDefault, kTcp, kRings };  // kRings: no reading in place

// Group size, number of nodes (0: a node for each rank).
class CollectivesTest : public ::testing::TestWithParam<std::tuple<int, int, Way>> {};

TEST_P(CollectivesTest, EveryRankHasTheBitsOfTheTree) {
  const auto [num_ranks, num_nodes, way] = GetParam();
  WorldSpec spec = OneGroup(num_ranks, num_nodes == 0 ? num_ranks : num_nodes, kRingBytes);
  spec.uses_tcp = way == Way::kTcp;
  spec.reads_in_place = way != Way::kRings;
  ThreadWorld world(spec);
  world.RunConnected([&](int, Fabric& fabric) {
    auto comm = fabric.Make("all").value();
    int salt = 0;
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32}) {
      for (const int64_t size : kSizes) {
        if (dtype != DType::kI32) CheckSums(*comm, dtype, size, salt += 10);
        CheckCopies(*comm, dtype, size, salt += 10);
      }
    }
  });
}

std::string ParamName(const ::testing::TestParamInfo<CollectivesTest::ParamType>& info) {
  const auto [num_ranks, num_nodes, way] = info.param;
  return absl::StrCat(num_ranks, "Ranks",
                      num_nodes == 0 ? "Apart" : absl::StrCat("On", num_nodes, "Nodes"),
                      way == Way::kTcp ? "OverTcp" : "");
}

INSTANTIATE_TEST_SUITE_P(Local, CollectivesTest,
                         ::testing::Combine(::testing::Range(1, 9), ::testing::Values(1),
                                            ::testing::Values(Way::kDefault)),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Rings, CollectivesTest,
                         ::testing::Combine(::testing::Range(2, 9), ::testing::Values(1),
                                            ::testing::Values(Way::kRings)),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Remote, CollectivesTest,
                         ::testing::Combine(::testing::Range(2, 9), ::testing::Values(0),
                                            ::testing::Values(Way::kDefault)),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Mixed, CollectivesTest,
                         ::testing::Combine(::testing::Range(3, 9), ::testing::Values(2),
                                            ::testing::Values(Way::kDefault)),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Tcp, CollectivesTest,
                         ::testing::Combine(::testing::Values(4), ::testing::Values(2),
                                            ::testing::Values(Way::kTcp)),
                         ParamName);

TEST(CollectivesInPlaceTest, ReduceScatterAndAllGatherWorkWithinOneBuffer) {
  ThreadWorld world(OneGroup(3, 2, kRingBytes));
  world.RunConnected([&](int rank, Fabric& fabric) {
    auto comm = fabric.Make("all").value();
    const int64_t size = 5001;
    Bytes buffer = Input(rank, DType::kF32, 3 * size, 1);
    HostVector whole = View(buffer, DType::kF32);
    HostVector own = whole.Slice(rank * size, size);
    ASSERT_EQ(comm->ReduceScatter(whole, own, {}), absl::OkStatus());
    ASSERT_EQ(comm->AllGather(own, whole, {}), absl::OkStatus());
    EXPECT_TRUE(buffer == Sum(3, DType::kF32, 3 * size, 1));
  });
}

// The same, with all memory that peers read mapped by them.
TEST(CollectivesInPlaceTest, TensorsMayLieInSharedMemory) {
  const WorldSpec spec = OneGroup(3, 1, kRingBytes);
  ThreadWorld world(spec);
  world.Run([&](int rank) {
    const int64_t size = 5001;
    auto memory = base::SharedMemory::Create("tensors", 3 * size * 4 + 64).value();
    FabricOptions options = world.OptionsOf(rank);
    options.readable = {memory.get()};
    auto fabric = Fabric::Create(options, spec.groups).value();
    ASSERT_EQ(fabric->Connect(), absl::OkStatus());
    auto comm = fabric->Make("all").value();
    for (int i = 0; i < 2; ++i) ASSERT_EQ(comm->Barrier({}), absl::OkStatus());
    const Bytes input = Input(rank, DType::kF32, 3 * size, 1);
    const Bytes sum = Sum(3, DType::kF32, 3 * size, 1);
    std::byte* data = memory->data() + 64;
    const auto whole =
        HostVector::OfBytes(absl::MakeSpan(data, static_cast<size_t>(3 * size) * 4), DType::kF32);
    const HostVector own = whole.Slice(rank * size, size);
    std::memcpy(data, input.data(), input.size());
    ASSERT_EQ(comm->ReduceScatter(whole, own, {}), absl::OkStatus());
    ASSERT_EQ(comm->AllGather(own, whole, {}), absl::OkStatus());
    EXPECT_EQ(std::memcmp(data, sum.data(), sum.size()), 0);
    std::memcpy(data, input.data(), input.size());
    ASSERT_EQ(comm->AllReduce(whole, {}), absl::OkStatus());
    EXPECT_EQ(std::memcmp(data, sum.data(), sum.size()), 0);
  });
}

TEST(CollectivesInPlaceTest, ManySmallMessagesPassOneWay) {
  ThreadWorld world(OneGroup(2, 1, 256));
  world.RunConnected([&](int rank, Fabric& fabric) {
    auto comm = fabric.Make("all").value();
    Bytes message(1);
    for (int i = 0; i < 500; ++i) {
      const auto bytes = absl::MakeSpan(message).first(i % 2);
      ASSERT_EQ(rank == 0 ? comm->Send(1, bytes, {}) : comm->Recv(0, bytes, {}), absl::OkStatus());
    }
  });
}

TEST(GroupsTest, ARankTalksInEachOfItsGroupsInTheirOwnOrder) {
  WorldSpec spec;
  spec.placements = {"a", "b", "a", "b"};
  spec.groups = {{"row", {0, 1}, 4096}, {"other-row", {2, 3}, 4096}, {"column", {2, 0}, 4096}};
  ThreadWorld world(spec);
  world.RunConnected([&](int rank, Fabric& fabric) {
    auto row = fabric.Make(rank < 2 ? "row" : "other-row").value();
    float value = static_cast<float>(rank + 1);
    ASSERT_EQ(row->AllReduce(HostVector::Of(absl::MakeSpan(&value, 1)), {}), absl::OkStatus());
    EXPECT_EQ(value, rank < 2 ? 3 : 7);
    auto column = fabric.Make("column");
    if (rank % 2 != 0) {
      EXPECT_EQ(column.status().code(), absl::StatusCode::kNotFound);
      return;
    }
    EXPECT_EQ((*column)->rank(), rank == 2 ? 0 : 1);
    ASSERT_EQ((*column)->AllReduce(HostVector::Of(absl::MakeSpan(&value, 1)), {}),
              absl::OkStatus());
    EXPECT_EQ(value, 10);
    EXPECT_EQ(fabric.Make("column").status().code(), absl::StatusCode::kFailedPrecondition);
  });
}

TEST(GroupsTest, TheObserverSeesEveryCallEnterAndLeave) {
  ThreadWorld world(OneGroup(2, 1, 4096));
  std::vector<std::vector<std::string>> seen(2);
  world.Run([&](int rank) {
    FabricOptions options = world.OptionsOf(rank);
    options.observer = [&, rank](const CallEvent& event) {
      seen[rank].push_back(
          absl::StrCat(event.kind == CallEvent::Kind::kEntered ? "enter " : "leave ",
                       Name(event.operation), " ", event.group, " ", event.sequence, " ",
                       event.instruction_id, " ", event.peer, " ", event.payload_bytes));
    };
    auto fabric = Fabric::Create(options, OneGroup(2, 1, 4096).groups).value();
    ASSERT_EQ(fabric->Connect(), absl::OkStatus());
    auto comm = fabric->Make("all").value();
    float value = 0;
    ASSERT_EQ(comm->Barrier({3}), absl::OkStatus());
    ASSERT_EQ(comm->AllReduce(HostVector::Of(absl::MakeSpan(&value, 1)), {9}), absl::OkStatus());
    const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(&value), 4);
    ASSERT_EQ(rank == 0 ? comm->Send(1, bytes, {8}) : comm->Recv(0, bytes, {8}), absl::OkStatus());
  });
  EXPECT_EQ(seen[0], (std::vector<std::string>{
                         "enter barrier all 0 3 -1 0", "leave barrier all 0 3 -1 0",
                         "enter all-reduce all 1 9 -1 4", "leave all-reduce all 1 9 -1 4",
                         "enter send all 0 8 1 4", "leave send all 0 8 1 4"}));
  EXPECT_EQ(seen[1][4], "enter receive all 0 8 0 4");
}

// Counts what a communicator shows of its calls.
class CountedProgress : public CallProgress {
 public:
  int Register(absl::string_view group) override {
    name = std::string(group);
    return 7;
  }
  void Begin(int channel, const CallEvent& call) override { begun += channel == 7 ? 1 : 0; }
  void Update(int channel, absl::Span<const PeerProgress> peers) override {
    for (const PeerProgress& peer : peers) peer_ranks.insert(peer.world_rank);
  }
  void End(int channel, const CallEvent& call) override { ended += call.ok ? 1 : 0; }

  std::string name;
  int begun = 0;
  int ended = 0;
  std::set<int> peer_ranks;
};

TEST(GroupsTest, CallsShowTheirProgress) {
  ThreadWorld world(OneGroup(3, 1, 4096));
  std::vector<CountedProgress> progress(3);
  world.Run([&](int rank) {
    FabricOptions options = world.OptionsOf(rank);
    options.progress = &progress[static_cast<size_t>(rank)];
    auto fabric = Fabric::Create(options, OneGroup(3, 1, 4096).groups).value();
    ASSERT_EQ(fabric->Connect(), absl::OkStatus());
    auto comm = fabric->Make("all").value();
    std::vector<float> values(100'000, 1.0F);
    ASSERT_EQ(comm->AllReduce(HostVector::Of(absl::MakeSpan(values)), {}), absl::OkStatus());
    ASSERT_EQ(comm->Barrier({}), absl::OkStatus());
  });
  for (int rank = 0; rank < 3; ++rank) {
    const CountedProgress& shown = progress[static_cast<size_t>(rank)];
    EXPECT_EQ(shown.name, "all");
    EXPECT_EQ(shown.begun, 2);
    EXPECT_EQ(shown.ended, 2);
    EXPECT_EQ(shown.peer_ranks.count(rank), 0u);
  }
}

// Rank 1 joins only once rank 0 has computed, and rank 0 computes only once its call has begun:
// this ends well only if compute runs while the collective does.
// Streams move them between the ranks' own memory, the others through the rings: both in one order.
TEST(StreamsTest, PayloadsThatNoRingHoldsComeBetweenSmallOnes) {
  for (const bool uses_tcp : {true, false}) {
    WorldSpec spec = OneGroup(3, 3, kRingBytes);
    spec.uses_tcp = uses_tcp;
    ThreadWorld world(spec);
    world.RunConnected([&](int, Fabric& fabric) {
      auto comm = fabric.Make("all").value();
      int salt = 0;
      for (const int64_t size : {3 * 65536, 17, 40001, 1, 3 * 32768 + 5, 65536}) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          CheckSums(*comm, dtype, size, salt += 10);
          CheckCopies(*comm, dtype, size, salt += 10);
        }
      }
    });
  }
}

TEST(StreamsTest, AFailedCallLeavesItsMemoryAlone) {
  constexpr size_t kBytes = 16 << 20;  // more than rings and sockets hold
  constexpr CallInfo kShort{1, absl::Milliseconds(300)};
  constexpr CallInfo kLong{1, absl::Seconds(25)};
  for (const bool sends : {true, false}) {
    ThreadWorld world(OneGroup(2, 2, kRingBytes));
    absl::Notification is_over;
    world.RunConnected([&](int rank, Fabric& fabric) {
      auto comm = fabric.Make("all").value();
      Bytes memory(kBytes, std::byte{1});
      const auto bytes = absl::MakeSpan(memory);
      const auto has = [&](int value) {
        return std::count(memory.begin(), memory.end(), std::byte(value));
      };
      if (rank == 0) {
        const absl::Status status =
            sends ? comm->Send(1, bytes, kShort) : comm->Recv(1, bytes, kShort);
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        std::fill(memory.begin(), memory.end(), std::byte{2});
        is_over.Notify();
      } else {
        is_over.WaitForNotification();
        const absl::Status status =
            sends ? comm->Recv(0, bytes, kLong) : comm->Send(0, bytes, kLong);
        EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
        EXPECT_EQ(has(2), 0) << "bytes that were written after the call";
      }
      fabric.Close();
      EXPECT_EQ(has(rank == 0 ? 2 : 1), static_cast<int64_t>(kBytes));
    });
  }
}

TEST(StreamsTest, ACollectiveOnItsOwnStreamOverlapsWithComputeOnAnother) {
  ThreadWorld world(OneGroup(2, 1, kRingBytes));
  std::mutex mutex;
  std::vector<std::string> order;  // on rank 0
  const auto note = [&](const char* what) {
    std::lock_guard<std::mutex> lock(mutex);
    order.push_back(what);
  };
  std::atomic<uint32_t> has_entered{0};
  stream::HostEvent computed;
  world.Run([&](int rank) {
    FabricOptions options = world.OptionsOf(rank);
    options.observer = [&, rank](const CallEvent& event) {
      if (rank != 0) return;
      note(event.kind == CallEvent::Kind::kEntered ? "entered" : "left");
      has_entered = 1;
    };
    auto fabric = Fabric::Create(options, OneGroup(2, 1, kRingBytes).groups).value();
    ASSERT_EQ(fabric->Connect(), absl::OkStatus());
    auto comm = fabric->Make("all").value();
    auto collectives = stream::HostStream::Create("collectives").value();
    auto compute = stream::HostStream::Create("compute").value();
    float value = static_cast<float>(rank + 1);
    if (rank == 1) computed.Wait(*collectives, 1);
    collectives->Enqueue([&](stream::Stream&) {
      EXPECT_EQ(comm->AllReduce(HostVector::Of(absl::MakeSpan(&value, 1)), {}), absl::OkStatus());
    });
    if (rank == 0) {
      compute->Enqueue([&](stream::Stream&) {
        EXPECT_TRUE(RankBoard::Await(has_entered, 1));
        note("computed");
      });
      computed.Record(*compute, 1);
    }
    EXPECT_TRUE(collectives->Synchronize().ok());
    EXPECT_EQ(value, 3);
  });
  EXPECT_EQ(order, (std::vector<std::string>{"entered", "computed", "left"}));
}

}  // namespace
}  // namespace megascale::comm
