// A window into memory that the host cannot touch: how it fills and copies pieces.
#include "runtime/device/host_window.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "runtime/device/testing/strict_device.h"

namespace megascale::device {
namespace {

using tensor::DType;
using tensor::HostVector;
using tensor::Vector;

constexpr int64_t kPieceElements = HostWindow::kPieceBytes / sizeof(float);

// Memory of a strict device, whose copies to and from the host run last of all.
class HostWindowTest : public ::testing::Test {
 protected:
  HostWindowTest() : window_(device_.get(), stream_.get()) {}

  Vector Make(int64_t size) {
    memory_ = device_->Allocate("test", static_cast<size_t>(size) * sizeof(float)).value();
    return {memory_->data(), DType::kF32, size};
  }

  const std::unique_ptr<StrictDevice> device_ = StrictDevice::Create({.copies_last = true});
  std::unique_ptr<Memory> memory_;
  const std::unique_ptr<stream::Stream> stream_ = device_->MakeStream("window").value();
  HostWindow window_;
};

TEST_F(HostWindowTest, APieceIsFilledBeforeTheDeviceHasTakenTheOneBefore) {
  const Vector vector = Make(3 * kPieceElements);
  const auto other = device_->MakeStream("other").value();
  absl::Notification is_held, is_second;
  bool second_came = false;
  const absl::Status status = window_.Write(vector, [&](int64_t first, const HostVector&) {
    if (first == 0) {
      // Holds the device, so that it takes no piece, until the second one is being filled.
      other->Enqueue([&](stream::Stream& on) {
        on.Notify([&](const absl::Status&) {
          is_held.Notify();
          second_came = is_second.WaitForNotificationWithTimeout(absl::Seconds(20));
        });
      });
      is_held.WaitForNotification();
    }
    if (first == kPieceElements) is_second.Notify();
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_TRUE(second_came);
}

TEST_F(HostWindowTest, PinnedMemoryIsThatOfTwoPiecesHoweverManyThereAre) {
  EXPECT_EQ(device_->pinned_bytes(), 0);
  const Vector vector = Make(5 * kPieceElements + 3);
  const auto fill = [](int64_t, const HostVector&) { return absl::OkStatus(); };
  EXPECT_EQ(window_.Write(vector, fill), absl::OkStatus());
  EXPECT_EQ(window_.Write(vector, fill), absl::OkStatus());
  EXPECT_EQ(window_.Read(vector, fill), absl::OkStatus());
  EXPECT_EQ(device_->most_pinned_bytes(), static_cast<int64_t>(HostWindow::kPinnedBytes));
}

// The window may end right after its error, and its pinned memory with it.
TEST_F(HostWindowTest, AnErrorComesOnlyAfterTheDeviceHasTakenThePiecesBefore) {
  const Vector vector = Make(3 * kPieceElements);
  const absl::Status status = window_.Write(vector, [&](int64_t first, const HostVector&) {
    return first < 2 * kPieceElements ? absl::OkStatus() : absl::DataLossError("damaged");
  });
  EXPECT_EQ(status, absl::DataLossError("damaged"));
  EXPECT_EQ(device_->num_work(), 2);
}

}  // namespace
}  // namespace megascale::device
