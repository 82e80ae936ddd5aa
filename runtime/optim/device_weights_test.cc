// Initial weights of a device that the host cannot touch: made by all threads, with the bits of the
// host's.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "proto/job.pb.h"
#include "runtime/device/device_arenas.h"
#include "runtime/device/host_window.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/optim/sharded_optimizer.h"

namespace megascale::optim {
namespace {

using tensor::DType;
using tensor::Vector;

constexpr int kThreads = 3;

// The tables are several pieces of a window.
OptimizerShard LargeShard() {
  model::ModelConfig config;
  config.vocab_size = 70001;
  config.hidden_size = 24;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 12;
  config.intermediate_size = 96;
  config.max_positions = 9;
  return {.config = config, .range = *model::MakeChunkRange(config, 1, 0)};
}

// Where threads meet: each waits until there are as many as are expected.
class Meeting {
 public:
  void Arrive() {
    std::unique_lock<std::mutex> lock(mutex_);
    present_.insert(std::this_thread::get_id());
    arrived_.notify_all();
    const auto all_are_here = [this] { return present_.size() >= kThreads; };
    if (!arrived_.wait_for(lock, std::chrono::seconds(20), all_are_here)) timed_out_ = true;
  }
  bool timed_out() const { return timed_out_; }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::set<std::thread::id> present_;
  bool timed_out_ = false;
};

TEST(DeviceWeightsTest, AreMadeByAllThreadsAtOnceWithTheBitsOfTheHosts) {
  const OptimizerShard shard = LargeShard();
  const model::FlatRange range = shard.ranges().front();
  ASSERT_GT(range.count * int64_t{sizeof(float)},
            int64_t{2} * static_cast<int64_t>(device::HostWindow::kPieceBytes));
  std::vector<float> expected(static_cast<size_t>(range.count));
  model::InitializeParameters(shard.config, shard.layout(), {.seed = 5}, range.begin,
                              tensor::HostVector::Of(absl::MakeSpan(expected)));

  const auto device = device::StrictDevice::Create();
  device::DeviceArenas memory(device.get());
  const auto stream = device->MakeStream("compute").value();
  const auto ops = device->MakeOps(stream.get(), DType::kF32, 1);
  Vector weights = {nullptr, DType::kF32, range.count};
  ASSERT_EQ(memory.Fill("weights", {&weights}), absl::OkStatus());
  job::v1::OptimizerSpec spec;
  spec.set_type(job::v1::OPTIMIZER_TYPE_ADAMW);
  spec.set_beta1(0.9);
  spec.set_beta2(0.95);
  spec.set_eps(1e-8);
  const auto optimizer =
      ShardedOptimizer::Create(spec, shard, {weights}, ops.get(), [&](size_t bytes) {
        return memory.Allocate("optimizer state", bytes);
      }).value();
  Meeting meeting;
  device::HostWindow window(device.get(), stream.get());
  ASSERT_EQ(
      optimizer->Initialize(
          {.seed = 5, .num_threads = kThreads, .on_progress = [&](int64_t) { meeting.Arrive(); }},
          &window),
      absl::OkStatus());
  EXPECT_FALSE(meeting.timed_out());
  std::vector<float> made(expected.size());
  ASSERT_EQ(device::CopyToHost(device.get(), stream.get(), weights,
                               tensor::HostVector::Of(absl::MakeSpan(made))),
            absl::OkStatus());
  EXPECT_TRUE(made == expected);
}

}  // namespace
}  // namespace megascale::optim
