// What every device must do: memory, copies, the order of streams and events, operators.
#include "runtime/device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/host_window.h"
#include "runtime/device/staged_copy.h"
#include "runtime/device/testing/test_devices.h"
#include "runtime/device/upload_buffer.h"

namespace megascale::device {
namespace {

using tensor::DType;
using tensor::HostVector;
using tensor::Vector;

constexpr int64_t kSize = 1000;

class DeviceTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  Vector Make(int64_t size, DType dtype = DType::kF32) {
    memory_.push_back(device_->Allocate("test", static_cast<size_t>(size) * SizeOf(dtype)).value());
    return {memory_.back()->data(), dtype, size};
  }
  void Upload(const std::vector<float>& from, const Vector& to) {
    HostWindow window(device_.get(), stream_.get());
    EXPECT_EQ(window.Write(to,
                           [&](int64_t first, const HostVector& piece) {
                             std::memcpy(piece.data(), from.data() + first,
                                         static_cast<size_t>(piece.bytes()));
                             return absl::OkStatus();
                           }),
              absl::OkStatus());
  }
  std::vector<float> Download(const Vector& from) {
    std::vector<float> to(static_cast<size_t>(from.size));
    EXPECT_EQ(CopyToHost(device_.get(), stream_.get(), from, HostVector::Of(absl::MakeSpan(to))),
              absl::OkStatus());
    return to;
  }
  static std::vector<float> Count(int64_t size) {
    std::vector<float> values(static_cast<size_t>(size));
    std::iota(values.begin(), values.end(), 1.0f);
    return values;
  }

  std::unique_ptr<Device> device_ = GetParam().make(7);
  std::vector<std::unique_ptr<Memory>> memory_;
  std::unique_ptr<stream::Stream> stream_ = device_->MakeStream("test").value();
};

INSTANTIATE_TEST_SUITE_P(All, DeviceTest, ::testing::ValuesIn(AllDevices()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeviceTest, MemoryIsZeroAndHoldsWhatIsCopiedIntoIt) {
  const Vector vector = Make(kSize);
  EXPECT_THAT(Download(vector), ::testing::Each(0.0f));
  Upload(Count(kSize), vector);
  EXPECT_EQ(Download(vector), Count(kSize));
  const Vector other = Make(kSize);
  stream_->RunAndWait([&] { stream_->Copy(other.data, vector.data, kSize * sizeof(float)); });
  EXPECT_EQ(Download(other), Count(kSize));
}

TEST_P(DeviceTest, MemoryIsCountedWhileItIsHeld) {
  EXPECT_EQ(device_->used_bytes(), 0);
  auto first = device_->Allocate("first", 1 << 20).value();
  const auto second = device_->AllocateForPeers("second", 3 << 20).value();
  EXPECT_EQ(device_->used_bytes(), 4 << 20);
  first.reset();
  EXPECT_EQ(device_->used_bytes(), 3 << 20);
  // Host memory is of this kind, too, or counted apart.
  const auto host = device_->AllocateHost("host", 5 << 20).value();
  EXPECT_EQ(device_->used_bytes() + device_->pinned_bytes(), 8 << 20);
}

// The ranks of a machine map such memory, or there is none.
TEST_P(DeviceTest, MemoryForPeersIsSharedWhereTheHostMayTouchIt) {
  const auto memory = device_->AllocateForPeers("peers", 1 << 20).value();
  const bool is_the_hosts = static_cast<bool>(device_->OnHost({memory->data(), DType::kF32, 1}));
  ASSERT_EQ(memory->shared() != nullptr, is_the_hosts);
  if (is_the_hosts) {
    const base::SharedMemory& shared = *memory->shared();
    EXPECT_EQ(shared.data(), memory->data());
    EXPECT_GE(shared.size_bytes(), size_t{1} << 20);
  }
  EXPECT_EQ(device_->Allocate("own", 1 << 20).value()->shared(), nullptr);
}

TEST_P(DeviceTest, AWindowReachesVectorsOfSeveralPieces) {
  const int64_t size = 2 * static_cast<int64_t>(HostWindow::kPieceBytes / sizeof(float)) + 17;
  const Vector vector = Make(size);
  Upload(Count(size), vector);
  EXPECT_EQ(Download(vector), Count(size));
}

TEST_P(DeviceTest, AStagedCopyBringsVectorsOfAnyNumberOfPieces) {
  constexpr size_t kPiece = 64 * sizeof(float);
  const auto copies = device_->MakeStream("copies").value();
  for (const int64_t size : {1, 64, 65, 128, 1000}) {
    const Vector vector = Make(size);
    Upload(Count(size), vector);
    const auto copy = StagedCopy::Create(device_.get(), copies.get(), vector, kPiece).value();
    std::vector<float> to(static_cast<size_t>(size));
    absl::Status status;
    copies->RunAndWait([&] { status = copy->Run(vector, to.data()); });
    EXPECT_EQ(copies->Synchronize(), absl::OkStatus());
    EXPECT_EQ(status, absl::OkStatus());
    EXPECT_EQ(to, Count(size)) << size;
  }
}

TEST_P(DeviceTest, AnUploadBufferBringsWhatTheHostHasWrittenLast) {
  const auto buffer = UploadBuffer::Create(device_.get(), "numbers", kSize * sizeof(float)).value();
  for (const float value : {1.0f, 2.0f}) {
    auto* const host = static_cast<float*>(buffer->host());
    std::fill(host, host + kSize, value);
    stream_->RunAndWait([&] { buffer->Upload(*stream_); });
    EXPECT_THAT(Download({buffer->device(), DType::kF32, kSize}), ::testing::Each(value));
  }
  // Where the host writes to the device's memory there is nothing else.
  EXPECT_EQ(device_->pinned_bytes() > 0, buffer->host() != buffer->device());
}

TEST_P(DeviceTest, AWindowStopsAtTheFirstError) {
  const Vector vector = Make(3 * static_cast<int64_t>(HostWindow::kPieceBytes / sizeof(float)));
  HostWindow window(device_.get(), stream_.get());
  int calls = 0;
  const absl::Status status = window.Write(vector, [&](int64_t, const HostVector&) {
    ++calls;
    return absl::DataLossError("damaged");
  });
  EXPECT_EQ(status, absl::DataLossError("damaged"));
  EXPECT_EQ(calls, 1);
}

TEST_P(DeviceTest, OperatorsRunInTheOrderInWhichTheyAreIssued) {
  const auto ops = device_->MakeOps(stream_.get(), DType::kF32, 1);
  const Vector x = Make(kSize), sum = Make(kSize);
  Upload(Count(kSize), x);
  stream_->RunAndWait([&] {
    for (int i = 0; i < 100; ++i) ops->AddScaled(1.0, x, sum);
    ops->FillZero(x);
  });
  const std::vector<float> found = Download(sum);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], 100.0f * static_cast<float>(i + 1));
  EXPECT_THAT(Download(x), ::testing::Each(0.0f));
}

// Each stream adds one in turn; the value of an early or a lost turn would differ.
TEST_P(DeviceTest, EventsOrderTheWorkOfTwoStreams) {
  constexpr int kTurns = 200;
  const auto other = device_->MakeStream("other").value();
  const std::vector<stream::Stream*> streams = {stream_.get(), other.get()};
  std::vector<std::unique_ptr<ops::Ops>> ops;
  std::vector<std::unique_ptr<stream::Event>> turns;
  for (stream::Stream* stream : streams) {
    ops.push_back(device_->MakeOps(stream, DType::kF32, 1));
    turns.push_back(stream->MakeEvent());
  }
  const Vector one = Make(1), sum = Make(1), seen = Make(2 * kTurns);
  Upload({1.0f}, one);
  for (uint64_t turn = 1; turn <= kTurns; ++turn) {
    for (size_t i = 0; i < streams.size(); ++i) {
      if (i == 1 || turn > 1) turns[1 - i]->Wait(*streams[i], i == 1 ? turn : turn - 1);
      const int64_t at = 2 * (static_cast<int64_t>(turn) - 1) + static_cast<int64_t>(i);
      streams[i]->Enqueue([&, i, at](stream::Stream& on) {
        ops[i]->AddScaled(1.0, one, sum);
        on.Copy(seen.as<float>() + at, sum.data, sizeof(float));
      });
      turns[i]->Record(*streams[i], turn);
    }
  }
  for (stream::Stream* stream : streams) EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
  EXPECT_EQ(Download(seen), Count(2 * kTurns));
}

TEST_P(DeviceTest, NotificationsComeInOrderAfterTheWorkBeforeThem) {
  constexpr int kRounds = 50;
  // A place for each round: work behind a notification does not wait for its call.
  const auto memory = device_->AllocateHost("results", kRounds * kSize * sizeof(float)).value();
  auto* const results = static_cast<float*>(memory->data());
  const auto ops = device_->MakeOps(stream_.get(), DType::kF32, 1);
  const Vector x = Make(kSize), sum = Make(kSize);
  Upload(std::vector<float>(kSize, 1.0f), x);
  std::vector<float> seen;
  stream_->RunAndWait([&] {
    for (int i = 0; i < kRounds; ++i) {
      float* const result = results + i * kSize;
      ops->AddScaled(1.0, x, sum);
      stream_->Copy(result, sum.data, kSize * sizeof(float));
      stream_->Notify([&seen, result](const absl::Status& status) {
        EXPECT_EQ(status, absl::OkStatus());
        seen.push_back(result[kSize - 1]);
      });
    }
  });
  EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
  EXPECT_EQ(seen, Count(kRounds));
}

TEST_P(DeviceTest, AWaitThatMayBeGivenUpEndsWithTheWorkAsWell) {
  const auto memory = device_->AllocateHost("results", kSize * sizeof(float)).value();
  const auto ops = device_->MakeOps(stream_.get(), DType::kF32, 1);
  const Vector x = Make(kSize), sum = Make(kSize);
  Upload(Count(kSize), x);
  for (float round = 1; round <= 20; ++round) {
    stream_->RunAndWait([&] {
      ops->AddScaled(1.0, x, sum);
      stream_->Copy(memory->data(), sum.data, kSize * sizeof(float));
      EXPECT_EQ(stream_->FinishWhile([] { return absl::OkStatus(); }), absl::OkStatus());
    });
    ASSERT_EQ(static_cast<const float*>(memory->data())[kSize - 1], round * kSize);
  }
}

TEST_P(DeviceTest, AnEventThatIsReleasedEndsTheWaitsForIt) {
  const auto other = device_->MakeStream("other").value();
  const auto never = other->MakeEvent();
  never->Wait(*stream_, 1);
  never->Release();
  EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
}

}  // namespace
}  // namespace megascale::device
