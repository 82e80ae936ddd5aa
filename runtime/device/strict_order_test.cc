// The strict device is there to find an order that no event makes sure of. This leaves such an
// event out and expects another result.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/device/host_window.h"
#include "runtime/device/testing/strict_device.h"

namespace megascale::device {
namespace {

using tensor::DType;
using tensor::HostVector;
using tensor::Vector;
using Values = std::vector<float>;

constexpr uint64_t kTurns = 8;
constexpr uint64_t kSeeds = 8;

enum class LeftOut {
  kNothing,
  kWaitOfTheReader,  // it may read what is not made yet
  kWaitOfTheMaker,   // it may overwrite what was not read yet
};

// One stream makes the values 1, 2, … in the same place; another one copies each to a place of its
// own. Returns the copies.
Values Copies(uint64_t seed, LeftOut left_out) {
  const auto device = StrictDevice::Create({.seed = seed});
  const auto memory = device->Allocate("test", (2 + kTurns) * sizeof(float)).value();
  auto* const floats = static_cast<float*>(memory->data());
  const Vector one = {floats, DType::kF32, 1}, value = {floats + 1, DType::kF32, 1};
  const Vector copies = {floats + 2, DType::kF32, kTurns};
  const auto maker = device->MakeStream("maker").value();
  const auto reader = device->MakeStream("reader").value();
  const auto made = maker->MakeEvent(), read = reader->MakeEvent();
  const auto ops = device->MakeOps(maker.get(), DType::kF32, 1);
  HostWindow window(device.get(), maker.get());
  EXPECT_EQ(window.Write(one,
                         [](int64_t, const HostVector& piece) {
                           *piece.as<float>() = 1;
                           return absl::OkStatus();
                         }),
            absl::OkStatus());
  // The device begins when it has the choice among all work.
  device->Hold();
  for (uint64_t turn = 1; turn <= kTurns; ++turn) {
    if (left_out != LeftOut::kWaitOfTheMaker && turn > 1) read->Wait(*maker, turn - 1);
    maker->Enqueue([&](stream::Stream&) { ops->AddScaled(1.0, one, value); });
    made->Record(*maker, turn);
    if (left_out != LeftOut::kWaitOfTheReader) made->Wait(*reader, turn);
    reader->Enqueue([&value, to = copies.as<float>() + turn - 1](stream::Stream& on) {
      on.Copy(to, value.data, sizeof(float));
    });
    read->Record(*reader, turn);
  }
  for (stream::Stream* stream : {maker.get(), reader.get()}) stream->RunAndWait([] {});
  device->Release();
  EXPECT_EQ(maker->Synchronize(), absl::OkStatus());
  EXPECT_EQ(reader->Synchronize(), absl::OkStatus());
  Values values(kTurns);
  EXPECT_EQ(CopyToHost(device.get(), reader.get(), copies, HostVector::Of(absl::MakeSpan(values))),
            absl::OkStatus());
  return values;
}

// Returns the number of seeds with which a copy is wrong.
int NumWrong(LeftOut left_out) {
  int num_wrong = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Values copies = Copies(seed, left_out);
    bool is_right = true;
    for (size_t i = 0; i < copies.size(); ++i) is_right &= copies[i] == static_cast<float>(i + 1);
    num_wrong += is_right ? 0 : 1;
  }
  return num_wrong;
}

TEST(StrictOrderTest, AMissingEventGivesAnotherResult) {
  EXPECT_EQ(NumWrong(LeftOut::kNothing), 0);
  EXPECT_GT(NumWrong(LeftOut::kWaitOfTheReader), 0);
  EXPECT_GT(NumWrong(LeftOut::kWaitOfTheMaker), 0);
}

}  // namespace
}  // namespace megascale::device
