// Exchanges through host memory on a device that hangs: no wait for it lasts for ever.
#include "runtime/device/staged_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "runtime/base/clock.h"
#include "runtime/comm/testing/test_world.h"
#include "runtime/device/hang.h"
#include "runtime/device/testing/strict_device.h"

namespace megascale::device {
namespace {

using comm::CallInfo;
using tensor::DType;
using tensor::Vector;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSmallRingBytes = 4096;

// A rank's device, with a stream for exchanges.
struct ExchangingRank {
  explicit ExchangingRank(comm::HostCommunicator* host)
      : communicator(MakeStagedCommunicator(device.get(), host, exchanges.get()).value()) {}

  absl::Status Sum(const CallInfo& info) {
    absl::Status status;
    const Vector buffer = {memory->data(), DType::kF32, 16};
    exchanges->RunAndWait([&] { status = communicator->AllReduce(buffer, info); });
    return status;
  }

  std::unique_ptr<StrictDevice> device = StrictDevice::Create();
  std::unique_ptr<stream::Stream> exchanges = device->MakeStream("exchange").value();
  std::unique_ptr<Memory> memory = device->Allocate("test", 64).value();
  std::unique_ptr<comm::Communicator> communicator;
};

// Rank 1's device hangs.
TEST(StagedCommunicatorTest, AnExchangeOnADeviceThatHangsFailsByNameOnEveryRank) {
  comm::ThreadWorld world(comm::OneGroup(2, 1, kSmallRingBytes));
  world.RunConnected([&](int rank, comm::Fabric& fabric) {
    const auto host = fabric.Make("all").value();
    ExchangingRank mine(host.get());
    if (rank == 1) mine.device->Hold();
    const absl::Duration timeout = rank == 1 ? absl::Milliseconds(75) : absl::Minutes(5);
    const absl::Status error = mine.Sum({.instruction_id = 9, .timeout = timeout});
    EXPECT_THAT(
        std::string(error.message()),
        AllOf(
            HasSubstr("group all, rank 1, all-reduce (instruction 9): the device of rank 1 hangs"),
            HasSubstr("no work for 50ms"), HasSubstr("stream exchange")));
    EXPECT_THAT(comm::BlamedRanks(error), ElementsAre(1));
    if (rank == 0) {
      EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
      EXPECT_FALSE(IsHang(error)) << "this rank's device works";
      EXPECT_THAT(std::string(error.message()), HasSubstr("rank 1 gave up: "));
      return;
    }
    EXPECT_EQ(error.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(IsHang(error));
    // The communicator is dead: nothing waits for the device any more.
    EXPECT_EQ(mine.Sum({.timeout = absl::Minutes(5)}), error);
    mine.device->Release();
    EXPECT_EQ(mine.exchanges->Synchronize(), absl::OkStatus());
  });
}

// The fabric's abort is that of the engine.
TEST(StagedCommunicatorTest, AnAbortEndsAnExchangeOnADeviceThatHangs) {
  comm::ThreadWorld world(comm::OneGroup(2, 1, kSmallRingBytes));
  absl::Notification ended;
  world.RunConnected([&](int rank, comm::Fabric& fabric) {
    const auto host = fabric.Make("all").value();
    if (rank == 0) return ended.WaitForNotification();
    ExchangingRank mine(host.get());
    mine.device->Hold();
    std::thread aborter([&] {
      // Once the exchange has given the device its copy, it waits for it.
      const absl::Duration deadline = base::RealClock().Monotonic() + absl::Seconds(20);
      while (mine.device->host_bytes_of("exchange") == 0 &&
             base::RealClock().Monotonic() < deadline) {
        std::this_thread::yield();
      }
      EXPECT_GT(mine.device->host_bytes_of("exchange"), 0);
      fabric.Abort(absl::UnavailableError("the attempt is over"));
    });
    EXPECT_EQ(mine.Sum({.timeout = absl::Minutes(5)}), absl::AbortedError("the attempt is over"));
    aborter.join();
    ended.Notify();
    mine.device->Release();
    EXPECT_EQ(mine.exchanges->Synchronize(), absl::OkStatus());
  });
}

}  // namespace
}  // namespace megascale::device
