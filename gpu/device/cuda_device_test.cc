// What a CUDA device does beyond the conformance tests (cuda_device_conformance_test): how it
// describes itself, and how errors of work that runs late come to notifications and to Finish.
#include "gpu/device/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gpu/device/event_clock.h"
#include "gpu/device/testing/add_ops.h"
#include "gpu/emulator/emulated_cuda.h"
#include "runtime/base/clock.h"
#include "runtime/device/host_window.h"

namespace megascale::gpu {
namespace {

using emulator::EmulatedMachine;
using tensor::DType;
using tensor::Vector;
using ::testing::HasSubstr;

constexpr size_t kBytes = 1000;

std::unique_ptr<device::Device> MakeDevice(int index = 0) {
  return MakeCudaDevice({.cuda = emulator::EmulatedCuda(),
                         .images = emulator::EmulatedImages(),
                         .index = index,
                         .num_ranks = 2,
                         .make_ops = &MakeAddOps,
                         .on_allocate = &emulator::NameDeviceMemory})
      .value();
}

TEST(CudaDeviceTest, DescribesTheDeviceAndTheLibraries) {
  const EmulatedMachine machine({.memory_bytes = 1 << 20, .device_name = "NVIDIA H200"});
  const device::Description description = MakeDevice()->Describe();
  EXPECT_EQ(description.name, "NVIDIA H200");
  EXPECT_EQ(description.numerics,
            "NVIDIA H200, compute capability 9.0, 4 multiprocessors, driver 13.0, CUDA 13.0");
  EXPECT_EQ(description.memory_bytes, 1 << 20);
  EXPECT_EQ(description.peak.bf16, 989e12);
  EXPECT_EQ(description.num_ranks, 2);
}

TEST(CudaDeviceTest, TellsTheFreeMemoryThatIsKnownOfItsPciAddress) {
  const EmulatedMachine machine({.num_devices = 2});
  std::string asked_for;
  const auto device = MakeCudaDevice(
      {.cuda = emulator::EmulatedCuda(), .index = 1, .free_bytes = [&](const std::string& bus_id) {
         asked_for = bus_id;
         return 1234;
       }});
  EXPECT_EQ((*device)->Describe().free_bytes, 1234);
  EXPECT_EQ(asked_for, "0000:01:00.0");
  EXPECT_EQ(MakeDevice()->Describe().free_bytes, std::nullopt);
}

TEST(CudaDeviceTest, RefusesADeviceThatIsNotThere) {
  const EmulatedMachine machine({.num_devices = 2});
  const auto device = MakeCudaDevice({.cuda = emulator::EmulatedCuda(), .index = 2});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("GPU 2 of this machine; found 2"));
}

TEST(CudaDeviceTest, NamesTheMemoryThatItHasNoRoomFor) {
  const EmulatedMachine machine({.memory_bytes = 2000});
  const auto device = MakeDevice();
  const auto weights = device->Allocate("weights", 1500);
  ASSERT_EQ(weights.status(), absl::OkStatus());
  const absl::Status status = device->Allocate("gradients", 600).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("gradients: 600 bytes; 1500 are in use: cudaMalloc"));
}

TEST(CudaDeviceDeathTest, AHostAccessNamesTheMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const EmulatedMachine machine;
  const auto device = MakeDevice();
  const auto memory = device->Allocate("weights", kBytes).value();
  EXPECT_DEATH(static_cast<char*>(memory->data())[3] = 1,
               "host code touched device memory: byte 3 of 'weights'");
}

// Ranks join on a thread that has not used their device before.
TEST(CudaDeviceTest, CommunicatorsAreMadeWithTheDeviceAsTheCurrentOne) {
  const EmulatedMachine machine({.num_devices = 2});
  int current = -1;
  const auto device =
      MakeCudaDevice({.cuda = emulator::EmulatedCuda(),
                      .images = emulator::EmulatedImages(),
                      .index = 1,
                      .make_communicator =
                          [&](device::Device*, comm::HostCommunicator*, CudaStream*) {
                            EXPECT_EQ(emulator::EmulatedCuda()->cudaGetDevice(&current),
                                      cudaSuccess);
                            return absl::UnavailableError("no communicator");
                          }})
          .value();
  const auto stream = device->MakeStream("exchanges").value();
  std::thread([&] { (void)device->MakeCommunicator(nullptr, stream.get()); }).join();
  EXPECT_EQ(current, 1);
}

TEST(CudaDeviceTest, DevicesOfOneMachineAreApart) {
  const EmulatedMachine machine({.num_devices = 2});
  const auto first = MakeDevice(0), second = MakeDevice(1);
  const auto stream = second->MakeStream("second").value();
  const auto ops = second->MakeOps(stream.get(), DType::kF32, 1);
  const auto of_first = first->Allocate("first", kBytes).value();
  const auto memory = second->Allocate("second", kBytes).value();
  stream->RunAndWait([&] { ops->FillZero({memory->data(), DType::kF32, 10}); });
  EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
}

// The work with this number fails; each round has one copy and one kernel.
class FailingStreamTest : public ::testing::TestWithParam<int> {
 protected:
  void Round() {
    stream_->RunAndWait([&] {
      ops_->AddScaled(1.0, x_, sum_);
      stream_->Copy(host_->data(), sum_.data, kBytes);
    });
  }
  static constexpr int kWorkBefore = 2;  // zeroes two blocks of memory

  EmulatedMachine machine_{{.seed = 3, .fail_at_work = kWorkBefore + GetParam()}};
  std::unique_ptr<device::Device> device_ = MakeDevice();
  std::unique_ptr<device::Memory> memory_[2] = {device_->Allocate("x", kBytes).value(),
                                                device_->Allocate("sum", kBytes).value()};
  std::unique_ptr<device::Memory> host_ = device_->AllocateHost("host", kBytes).value();
  Vector x_ = {memory_[0]->data(), DType::kF32, kBytes / 4};
  Vector sum_ = {memory_[1]->data(), DType::kF32, kBytes / 4};
  std::unique_ptr<stream::Stream> stream_ = device_->MakeStream("failing").value();
  std::unique_ptr<stream::Stream> other_ = device_->MakeStream("other").value();
  std::unique_ptr<ops::Ops> ops_ = device_->MakeOps(stream_.get(), DType::kF32, 1);
};

INSTANTIATE_TEST_SUITE_P(Work, FailingStreamTest, ::testing::Values(1, 2, 4));

TEST_P(FailingStreamTest, FinishReportsTheErrorFromThenOn) {
  Round();
  Round();
  const absl::Status error = stream_->Synchronize();
  EXPECT_EQ(error.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(error.message()), HasSubstr("cudaErrorLaunchFailure"));
  Round();
  EXPECT_EQ(stream_->Synchronize(), error);
  EXPECT_EQ(other_->Synchronize().code(), absl::StatusCode::kInternal);
}

TEST_P(FailingStreamTest, NotificationsBringTheErrorInOrder) {
  std::vector<absl::StatusCode> codes;
  stream_->RunAndWait([&] {
    for (int i = 0; i < 5; ++i) {
      ops_->AddScaled(1.0, x_, sum_);
      stream_->Notify([&](const absl::Status& status) { codes.push_back(status.code()); });
    }
  });
  EXPECT_EQ(stream_->Synchronize().code(), absl::StatusCode::kInternal);
  ASSERT_EQ(codes.size(), 5u);
  // All after the failure bring it. Before it, only those that were called in time did not.
  EXPECT_TRUE(std::is_sorted(codes.begin(), codes.end()));
  for (size_t i = static_cast<size_t>(GetParam()) - 1; i < codes.size(); ++i) {
    EXPECT_EQ(codes[i], absl::StatusCode::kInternal);
  }
}

TEST_P(FailingStreamTest, EventsOfAFailedDeviceDoNotHoldUpTheHost) {
  const auto event = stream_->MakeEvent();
  for (uint64_t generation = 1; generation <= 4; ++generation) {
    event->Wait(*other_, generation);
    Round();
    event->Record(*stream_, generation);
  }
  EXPECT_EQ(stream_->Synchronize().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(other_->Synchronize().code(), absl::StatusCode::kInternal);
}

// Takes note that work which was held back is issued.
absl::Status NoteIssue(const void* arguments, cudaStream_t /*stream*/) {
  (*static_cast<absl::Notification* const*>(arguments))->Notify();
  return absl::OkStatus();
}

TEST(CudaStreamTest, WorkThatIsHeldBackComesBeforeWhateverElseUsesTheStream) {
  const EmulatedMachine machine;
  const auto device =
      MakeCudaDevice({.cuda = emulator::EmulatedCuda(), .uses_graphs = true}).value();
  const auto memory = device->Allocate("x", kBytes).value();
  const auto host = device->AllocateHost("host", kBytes).value();
  const auto stream = device->MakeStream("stream").value();
  const auto event = stream->MakeEvent();
  const std::function<void()> uses[] = {
      [&] { stream->Copy(host->data(), memory->data(), kBytes); },
      [&] { stream->Notify([](const absl::Status&) {}); },
      [&] { (void)stream->Finish(); },
      [&] { (void)stream->FinishWhile([] { return absl::OkStatus(); }); },
      [&] { event->RecordNow(*stream, 1); },
      [&] { event->WaitNow(*stream, 1); },
  };
  for (const std::function<void()>& use : uses) {
    absl::Notification issued;
    stream->RunAndWait([&] {
      dynamic_cast<CudaStream&>(*stream).work().Add(&NoteIssue, &issued);
      EXPECT_FALSE(issued.HasBeenNotified());
      use();
      EXPECT_TRUE(issued.HasBeenNotified());
    });
  }
}

TEST(CudaStreamTest, TheDeviceHasItsWorkWhileTheHostWaitsForAnEvent) {
  const EmulatedMachine machine;
  const auto device =
      MakeCudaDevice({.cuda = emulator::EmulatedCuda(), .uses_graphs = true}).value();
  const auto stream = device->MakeStream("stream").value();
  const auto event = stream->MakeEvent();
  absl::Notification issued;
  stream->Enqueue([&](stream::Stream&) {
    dynamic_cast<CudaStream&>(*stream).work().Add(&NoteIssue, &issued);
    event->WaitNow(*stream, 1);
  });
  EXPECT_TRUE(issued.WaitForNotificationWithTimeout(absl::Seconds(20)));
  event->Release();
  EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
}

TEST(CudaStreamTest, AWaitForADeviceThatHangsCanBeGivenUp) {
  const EmulatedMachine machine;
  const auto device = MakeDevice();
  const auto stream = device->MakeStream("stream").value();
  EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
  const uint64_t num_ended = device->num_ended();
  emulator::Done done;
  absl::Notification hangs;
  stream->RunAndWait([&] {
    EXPECT_EQ(emulator::IssueStart(dynamic_cast<CudaStream&>(*stream).handle(),
                                   [&](emulator::Done when) {
                                     done = std::move(when);
                                     hangs.Notify();
                                   }),
              cudaSuccess);
  });
  ASSERT_TRUE(hangs.WaitForNotificationWithTimeout(absl::Seconds(20)));
  int num_asked = 0;
  stream->RunAndWait([&] {
    EXPECT_EQ(stream->FinishWhile([&] {
      return ++num_asked < 3 ? absl::OkStatus() : absl::AbortedError("enough");
    }),
              absl::AbortedError("enough"));
  });
  EXPECT_EQ(device->num_ended(), num_ended) << "the device has ended nothing";
  done(absl::OkStatus());
  EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
  EXPECT_GT(device->num_ended(), num_ended);
}

TEST(CudaStreamTest, NotificationsKnowWhenTheWorkEnded) {
  const EmulatedMachine machine({.seed = 7});
  const auto device = MakeDevice();
  const auto memory = device->Allocate("x", kBytes).value();
  const auto host = device->AllocateHost("host", kBytes).value();
  const auto stream = device->MakeStream("stream").value();
  const absl::Duration begin = base::RealClock().Monotonic();
  std::vector<absl::Duration> times;
  stream->RunAndWait([&] {
    for (int i = 0; i < 50; ++i) {
      stream->Copy(host->data(), memory->data(), kBytes);
      stream->Notify([&](const absl::Status&) { times.push_back(stream->NotifiedAt()); });
    }
  });
  ASSERT_EQ(stream->Synchronize(), absl::OkStatus());
  ASSERT_EQ(times.size(), 50u);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_GE(times.front(), begin);
  EXPECT_LE(times.back(), base::RealClock().Monotonic());
}

// The device's clock began at another time, and is fast by 20 microseconds a second. The host sees
// most events late, by up to 3 ms, and some within 5 microseconds.
TEST(EventClockTest, TimesAreTrueAlthoughTheHostSeesEventsLate) {
  std::mt19937 random(20241125);
  const auto draw = [&](int most) {
    return absl::Microseconds(std::uniform_int_distribution<int>(0, most)(random));
  };
  EventClock clock;
  absl::Duration now = absl::Seconds(1000), last_result;
  for (int i = 0; i < 20'000; ++i) {
    const absl::Duration step = draw(2000) + absl::Microseconds(1);
    now += step;
    const absl::Duration seen = now + (i % 8 == 0 ? draw(5) : draw(3000));
    const absl::Duration result = clock.At(i == 0 ? absl::ZeroDuration() : step * 1.00002, seen);
    EXPECT_LE(result, seen);
    EXPECT_GE(result, last_result);
    if (i > 100) {
      EXPECT_LT(absl::AbsDuration(result - now), absl::Microseconds(250)) << i;
    }
    last_result = result;
  }
}

TEST(EventClockTest, ARestartForgetsTheDistanceButNotTheTime) {
  EventClock clock;
  EXPECT_EQ(clock.At(absl::ZeroDuration(), absl::Seconds(10)), absl::Seconds(10));
  EXPECT_EQ(clock.At(absl::Seconds(1), absl::Seconds(12)), absl::Seconds(11));
  clock.Restart();
  EXPECT_EQ(clock.At(absl::ZeroDuration(), absl::Seconds(13)), absl::Seconds(13));
  clock.Restart();
  EXPECT_EQ(clock.At(absl::ZeroDuration(), absl::Seconds(12)), absl::Seconds(13));
}

TEST(CudaEventTest, AWaitForAnEarlierGenerationEndsWithALaterOne) {
  const EmulatedMachine machine({.seed = 5});
  const auto device = MakeDevice();
  const auto first = device->MakeStream("first").value();
  const auto second = device->MakeStream("second").value();
  const auto event = first->MakeEvent();
  for (uint64_t generation = 1; generation <= 3; ++generation) event->Record(*first, generation);
  EXPECT_EQ(first->Synchronize(), absl::OkStatus());
  for (uint64_t generation = 1; generation <= 3; ++generation) event->Wait(*second, generation);
  event->Record(*first, 2);  // reached already
  EXPECT_EQ(second->Synchronize(), absl::OkStatus());
  EXPECT_EQ(first->Synchronize(), absl::OkStatus());  // its work uses the event
}

}  // namespace
}  // namespace megascale::gpu
