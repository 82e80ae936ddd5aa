// What every device's communicators must do. Sums are compared bit for bit with the tree that
// all of them promise here; each call is ordered behind work that fills its input, and before work
// that reads its output.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "runtime/comm/testing/test_world.h"
#include "runtime/device/device.h"
#include "runtime/device/host_window.h"
#include "runtime/device/staged_communicator.h"
#include "runtime/device/testing/test_devices.h"
#include "runtime/tensor/sum_tree.h"

namespace megascale::device {
namespace {

using comm::CallInfo;
using tensor::DType;
using tensor::HostVector;
using tensor::Vector;
using Values = std::vector<float>;

constexpr int kRingBytes = 4096;
// 0, 1, odd, and several pieces of a staged communicator.
constexpr int64_t kSizes[] = {0, 1, 1001, 3 * int64_t{kStagingBytes} / 4 + 5};

Values Input(int rank, int64_t size) {
  Values values(static_cast<size_t>(size));
  // Sums of these round differently in another order.
  for (int64_t i = 0; i < size; ++i) {
    values[static_cast<size_t>(i)] =
        static_cast<float>((i * 7 + rank * 13) % 101 - 50) * (rank % 2 == 0 ? 1.0f : 1e-7f);
  }
  return values;
}

Values Sum(int num_ranks, int64_t size) {
  std::vector<Values> inputs;
  for (int rank = 0; rank < num_ranks; ++rank) inputs.push_back(Input(rank, size));
  Values sum(static_cast<size_t>(size));
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] = tensor::SumTree(0, num_ranks,
                             [&](int64_t rank) { return inputs[static_cast<size_t>(rank)][i]; });
  }
  return sum;
}

Values Part(const Values& whole, int index, int count) {
  const auto part = static_cast<std::ptrdiff_t>(whole.size()) / count;
  return {whole.begin() + index * part, whole.begin() + (index + 1) * part};
}

// One rank's device, stream and communicator.
class Member {
 public:
  Member(Device* device, comm::HostCommunicator* host, stream::Stream* stream, bool staged)
      : device_(*device), stream_(*stream), window_(device, stream) {
    comm_ = staged ? MakeStagedCommunicator(device, host, stream).value()
                   : device->MakeCommunicator(host, stream).value();
  }

  Vector Make(const Values& values) {
    const auto size = static_cast<int64_t>(values.size());
    memory_.push_back(device_.Allocate("test", values.size() * sizeof(float)).value());
    const Vector vector = {memory_.back()->data(), DType::kF32, size};
    const absl::Status written = window_.Write(vector, [&](int64_t first, const HostVector& piece) {
      std::memcpy(piece.data(), values.data() + first, static_cast<size_t>(piece.bytes()));
      return absl::OkStatus();
    });
    EXPECT_EQ(written, absl::OkStatus());
    return vector;
  }
  Values Read(const Vector& vector) {
    Values values(static_cast<size_t>(vector.size));
    EXPECT_EQ(CopyToHost(&device_, &stream_, vector, HostVector::Of(absl::MakeSpan(values))),
              absl::OkStatus());
    return values;
  }
  void Call(const std::function<absl::Status(comm::Communicator&)>& call) {
    stream_.RunAndWait([&] { EXPECT_EQ(call(*comm_), absl::OkStatus()); });
  }

 private:
  Device& device_;
  stream::Stream& stream_;
  HostWindow window_;
  std::unique_ptr<comm::Communicator> comm_;
  std::vector<std::unique_ptr<Memory>> memory_;
};

void CheckCalls(Member& member, int rank, int n, int64_t size) {
  SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", n, ", ", size, " elements"));
  const CallInfo info = {.instruction_id = static_cast<uint64_t>(size) + 1};
  const Values mine = Input(rank, size);
  const Values long_mine = Input(rank, n * size);
  Values gathered;
  for (int i = 0; i < n; ++i) {
    const Values other = Input(i, size);
    gathered.insert(gathered.end(), other.begin(), other.end());
  }

  const Vector buffer = member.Make(mine);
  member.Call([&](auto& comm) { return comm.AllReduce(buffer, info); });
  EXPECT_TRUE(member.Read(buffer) == Sum(n, size)) << "all-reduce";

  const Vector whole = member.Make(long_mine), part = member.Make(Values(mine.size()));
  member.Call([&](auto& comm) { return comm.ReduceScatter(whole, part, info); });
  EXPECT_TRUE(member.Read(part) == Part(Sum(n, n * size), rank, n)) << "reduce-scatter";
  EXPECT_TRUE(member.Read(whole) == long_mine) << "reduce-scatter changed its input";

  const Vector input = member.Make(mine), all = member.Make(Values(long_mine.size()));
  member.Call([&](auto& comm) { return comm.AllGather(input, all, info); });
  EXPECT_TRUE(member.Read(all) == gathered) << "all-gather";

  const Vector exchanged = member.Make(Values(long_mine.size()));
  member.Call([&](auto& comm) { return comm.AllToAll(whole, exchanged, info); });
  Values expected;
  for (int i = 0; i < n; ++i) {
    const Values block = Part(Input(i, n * size), rank, n);
    expected.insert(expected.end(), block.begin(), block.end());
  }
  EXPECT_TRUE(member.Read(exchanged) == expected) << "all-to-all";

  const int root = n - 1;
  const Vector told = member.Make(mine);
  member.Call([&](auto& comm) { return comm.Broadcast(told, root, info); });
  EXPECT_TRUE(member.Read(told) == Input(root, size)) << "broadcast";

  const Vector reduced = member.Make(mine);
  member.Call([&](auto& comm) { return comm.Reduce(input, reduced, root, info); });
  EXPECT_TRUE(member.Read(reduced) == (rank == root ? Sum(n, size) : mine)) << "reduce";

  const Vector message = member.Make(Values(mine.size()));
  if (rank > 0) member.Call([&](auto& comm) { return comm.Recv(rank - 1, message, info); });
  if (rank + 1 < n) member.Call([&](auto& comm) { return comm.Send(rank + 1, input, info); });
  EXPECT_TRUE(member.Read(message) == (rank > 0 ? Input(rank - 1, size) : Values(mine.size())));
  member.Call([&](auto& comm) { return comm.Barrier(info); });
}

struct Case {
  TestDevice device;
  bool staged = false;
};

class CommunicatorsTest : public ::testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(CommunicatorsTest, GiveTheBitsOfTheLeftFoldAndCopyInOrder) {
  const auto& [given, num_ranks] = GetParam();
  comm::ThreadWorld world(comm::OneGroup(num_ranks, 2, kRingBytes));
  const Case& what = given;
  world.RunConnected([&](int rank, comm::Fabric& fabric) {
    const auto host = fabric.Make("all").value();
    const auto device = what.device.make(static_cast<uint64_t>(rank));
    const auto stream = device->MakeStream("exchange").value();
    Member member(device.get(), host.get(), stream.get(), what.staged);
    for (const int64_t size : kSizes) CheckCalls(member, rank, host->size(), size);
  });
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const TestDevice& device : AllDevices()) cases.push_back({device});
  cases.push_back({AllDevices().front(), /*staged=*/true});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorsTest,
                         ::testing::Combine(::testing::ValuesIn(Cases()), ::testing::Range(1, 4)),
                         [](const auto& info) {
                           const Case& given = std::get<0>(info.param);
                           return absl::StrCat(given.device.name, given.staged ? "Staged" : "",
                                               "On", std::get<1>(info.param), "Ranks");
                         });

// The host communicator takes no Vector, which may lie in a device's memory.
static_assert(!std::is_convertible_v<Vector, HostVector>);
static_assert(!std::is_invocable_v<decltype(&comm::HostCommunicator::AllReduce),
                                   comm::HostCommunicator&, Vector, CallInfo>);
static_assert(!std::is_invocable_v<decltype(&comm::HostCommunicator::Send), comm::HostCommunicator&,
                                   int, Vector, CallInfo>);
static_assert(!std::is_invocable_v<decltype(&comm::HostCommunicator::Recv), comm::HostCommunicator&,
                                   int, Vector, CallInfo>);

// Returns the error with which rank 0's sum ends; rank 1 does not take part until it has ended.
absl::Status ErrorOfLonelySum(const Case& given, absl::Duration timeout, bool abort) {
  comm::ThreadWorld world(comm::OneGroup(2, 1, kRingBytes));
  absl::Status error;
  absl::Notification ended;
  world.RunConnected([&](int rank, comm::Fabric& fabric) {
    const auto host = fabric.Make("all").value();
    if (rank == 1) return ended.WaitForNotification();
    const auto device = given.device.make(1);
    const auto stream = device->MakeStream("exchange").value();
    const auto comm = given.staged
                          ? MakeStagedCommunicator(device.get(), host.get(), stream.get()).value()
                          : device->MakeCommunicator(host.get(), stream.get()).value();
    const auto memory = device->Allocate("test", 64).value();
    const Vector sum = {memory->data(), DType::kF32, 16};
    std::thread aborter([&] {
      if (abort) comm->Abort(absl::AbortedError("the attempt is over"));
    });
    stream->RunAndWait([&] { error = comm->AllReduce(sum, {.timeout = timeout}); });
    aborter.join();
    ended.Notify();
  });
  return error;
}

TEST(LonelyCommunicatorTest, ACallWithoutItsPeerEndsByItsDeadlineOrAnAbort) {
  for (const Case& given : Cases()) {
    SCOPED_TRACE(absl::StrCat(given.device.name, given.staged ? ", staged" : ""));
    EXPECT_EQ(ErrorOfLonelySum(given, absl::Milliseconds(500), /*abort=*/false).code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(ErrorOfLonelySum(given, absl::Minutes(5), /*abort=*/true).code(),
              absl::StatusCode::kAborted);
  }
}

TEST(StagedCommunicatorTest, RefusesBlocksThatAreNoEqualParts) {
  comm::ThreadWorld world(comm::OneGroup(2, 1, kRingBytes));
  world.RunConnected([&](int /*rank*/, comm::Fabric& fabric) {
    const auto host = fabric.Make("all").value();
    const auto device = AllDevices().back().make(1);
    const auto stream = device->MakeStream("exchange").value();
    const auto comm = device->MakeCommunicator(host.get(), stream.get()).value();
    const auto memory = device->Allocate("test", 64).value();
    const Vector seven = {memory->data(), DType::kF32, 7}, three = {memory->data(), DType::kF32, 3};
    stream->RunAndWait([&] {
      EXPECT_EQ(comm->AllGather(three, seven, {}).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(comm->ReduceScatter(seven, three, {}).code(), absl::StatusCode::kInvalidArgument);
    });
  });
}

}  // namespace
}  // namespace megascale::device
