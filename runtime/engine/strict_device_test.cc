// Whole jobs on the strict device: its memory cannot be touched by the host, its work runs late and
// in any allowed order. Every result must have the bits of the CPU's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/base/testing/test_heap.h"
#include "runtime/device/host_views.h"
#include "runtime/device/testing/forwards_to_strict.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/engine/testing/test_job.h"

namespace megascale::engine {
namespace {

using agent::v1::RestorePoint;
using comm::CallInfo;
using device::ForwardsToStrict;
using device::StrictDevice;
using job::v1::JobSpec;
using tensor::Vector;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kInterleaved = job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B;
constexpr auto kZeroBubble = job::v1::PIPELINE_SCHEDULE_ZB_H1;

struct Layout {
  std::string name = "";
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  bool overlap = false;
  int virtual_stages = 1;
  job::v1::PipelineSchedule schedule = job::v1::PIPELINE_SCHEDULE_1F1B;
  int zero_stage = 1;
  job::v1::OptimizerType optimizer = job::v1::OPTIMIZER_TYPE_ADAMW;
  job::v1::Precision precision = job::v1::PRECISION_FP32;
  std::vector<std::string> nodes = {};
};

JobSpec Toy(const Layout& layout) {
  JobSpec spec = ToyJob(WriteTestText("text"), layout.data, layout.pipeline);
  spec.mutable_train()->set_steps(3);
  spec.mutable_train()->set_precision(layout.precision);
  spec.mutable_optimizer()->set_type(layout.optimizer);
  auto& parallel = *spec.mutable_parallel();
  parallel.set_tensor_model_parallel_size(layout.tensor);
  parallel.set_tp_comm_overlap(layout.overlap);
  parallel.set_virtual_pipeline_model_parallel_size(layout.virtual_stages);
  parallel.set_pipeline_schedule(layout.schedule);
  parallel.set_zero_stage(layout.zero_stage);
  if (layout.zero_stage == 2) parallel.set_ddp_bucket_size(2000);
  return spec;
}

RunOptions Options(const JobSpec& spec, const Layout& layout = {}) {
  RunOptions options(spec);
  options.nodes = layout.nodes;
  return options;
}

RunOptions OnStrict(RunOptions options, device::StrictOptions strict = {}) {
  options.make_device = [strict](int rank) {
    device::StrictOptions mine = strict;
    mine.seed += static_cast<uint64_t>(rank);
    return StrictDevice::Create(mine);
  };
  return options;
}

class StrictLayoutTest : public ::testing::TestWithParam<Layout> {};

TEST_P(StrictLayoutTest, TrainsAndEvaluatesToTheBitsOfTheCpu) {
  JobSpec spec = Toy(GetParam());
  spec.mutable_train()->set_eval_interval(2);
  spec.mutable_train()->set_eval_batches(2);
  const RunResult cpu = RunJob(Options(spec, GetParam()));
  ASSERT_NE(cpu.digest, "");
  ASSERT_TRUE(cpu.records[0].back().has_held_out_loss());
  for (const uint64_t seed : {11, 12}) {
    const RunResult strict = RunJob(OnStrict(Options(spec, GetParam()), {.seed = seed}));
    EXPECT_EQ(strict.digest, cpu.digest) << "seed " << seed;
    ASSERT_EQ(strict.records[0].size(), cpu.records[0].size());
    for (size_t i = 0; i < cpu.records[0].size(); ++i) {
      EXPECT_EQ(strict.records[0][i].SerializeAsString(), cpu.records[0][i].SerializeAsString());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, StrictLayoutTest,
    ::testing::Values(
        Layout{.name = "Alone"}, Layout{.name = "Data", .data = 2},
        Layout{.name = "Pipeline", .pipeline = 2, .nodes = {"a", "b"}},
        Layout{.name = "Interleaved",
               .pipeline = 2,
               .virtual_stages = 2,
               .schedule = kInterleaved,
               .precision = job::v1::PRECISION_BF16},
        Layout{.name = "ZeroBubble", .pipeline = 2, .schedule = kZeroBubble, .zero_stage = 2},
        Layout{.name = "Tensor", .tensor = 2},
        Layout{.name = "TensorOverlap",
               .data = 2,
               .tensor = 2,
               .overlap = true,
               .precision = job::v1::PRECISION_BF16},
        Layout{.name = "Lamb",
               .data = 2,
               .tensor = 2,
               .optimizer = job::v1::OPTIMIZER_TYPE_LAMB,
               .nodes = {"a", "a", "b", "b"}}),
    [](const auto& info) { return info.param.name; });

// Copies to the host run last of all work that is ready: an optimizer that did not wait for the
// snapshot's would change the state under it.
TEST_P(StrictLayoutTest, ASnapshotBesideAStepIsThatOfTheStepBefore) {
  const JobSpec spec = Toy(GetParam());
  RunOptions calm = Options(spec, GetParam());
  calm.StopAfter(2);
  const std::string wanted = RunJob(calm).digest;
  ASSERT_NE(wanted, "");
  RunOptions beside = OnStrict(Options(spec, GetParam()), {.seed = 21, .copies_last = true});
  beside.snapshot_beside_step_after = 2;
  EXPECT_EQ(RunJob(beside).digest, wanted);
}

// Batches and snapshots: the compute stream has no copy of its own between host and device.
TEST(StrictDeviceTest, BatchesAndSnapshotsAreCopiedOnStreamsOfTheirOwn) {
  const JobSpec spec = Toy({});
  RunOptions options = Options(spec);
  StrictDevice* device = nullptr;
  options.make_device = [&](int) {
    auto made = StrictDevice::Create();
    device = made.get();
    return made;
  };
  int64_t before_steps = 0;
  options.on_load = [&](int, const absl::StatusOr<std::string>& loaded) {
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    before_steps = device->host_bytes_of("compute");
    EXPECT_EQ(device->host_bytes_of("snapshots"), 0);
  };
  int64_t copied = 0, loaded = 0, in_snapshot = 0;
  options.at_end = [&](RankEngine&) {
    copied = device->host_bytes_of("compute") - before_steps;
    loaded = device->host_bytes_of(std::string(plan::Name(plan::StreamKind::kLoadBatch)));
    in_snapshot = device->host_bytes_of("snapshots");
  };
  RunJob(options);
  const auto& train = spec.train();
  EXPECT_EQ(copied, 0);
  EXPECT_EQ(loaded,
            int64_t{4} * train.steps() * train.global_batch_size() * (train.seq_length() + 1));
  EXPECT_GT(in_snapshot, 0);
}

TEST(StrictDeviceTest, GoesOnFromACheckpointOfTheCpu) {
  const Layout layout = {.data = 2, .nodes = {"a", "b"}};
  const JobSpec spec = Toy(layout);
  const std::string calm = RunJob(Options(spec, layout)).digest;
  RunOptions first = Options(spec, layout);
  first.StopAfter(2);
  const RunResult stopped = RunJob(first);
  RunOptions second = OnStrict(Options(spec, layout));
  second.attempt = 2;
  second.restore.set_source(RestorePoint::SOURCE_STORAGE);
  second.restore.set_step(2);
  second.restore.set_directory(stopped.checkpoint);
  EXPECT_EQ(RunJob(second).digest, calm);
}

// Returns the errors of all ranks.
std::map<int, absl::Status> FailuresOf(RunOptions options) {
  std::mutex mutex;
  std::map<int, absl::Status> failures;
  options.on_failure = [&](int rank, const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex);
    failures[rank] = status;
  };
  RunJob(options);
  return failures;
}

TEST(StrictDeviceTest, ADivergenceIsExplainedAsOnTheCpu) {
  for (const Layout& layout : {Layout{}, Layout{.pipeline = 2}, Layout{.tensor = 2}}) {
    JobSpec spec = Toy(layout);
    spec.mutable_optimizer()->set_lr(1e30);
    spec.mutable_optimizer()->set_clip_grad(0);
    const auto cpu = FailuresOf(Options(spec, layout));
    const auto strict = FailuresOf(OnStrict(Options(spec, layout)));
    ASSERT_FALSE(cpu.empty());
    ASSERT_EQ(strict.size(), cpu.size());
    for (const auto& [rank, failure] : cpu) {
      EXPECT_EQ(failure.code(), absl::StatusCode::kOutOfRange);
      EXPECT_THAT(std::string(failure.message()), HasSubstr("it began in"));
      EXPECT_EQ(strict.at(rank), failure);
    }
  }
}

// Returns the message with which a job whose device fails at its `work`-th operator or copy ends.
std::string MessageOfLateFailure(int64_t work) {
  const auto failures = FailuresOf(OnStrict(Options(Toy({})), {.fail_at_work = work}));
  EXPECT_EQ(failures.size(), 1u) << work;
  if (failures.empty()) return "";
  EXPECT_EQ(failures.begin()->second.code(), absl::StatusCode::kInternal);
  return std::string(failures.begin()->second.message());
}

TEST(StrictDeviceTest, ALateErrorNamesTheInstructionThatItCameFrom) {
  int64_t before_steps = 0;
  {
    RunOptions options = Options(Toy({}));
    StrictDevice* device = nullptr;
    options.make_device = [&](int) {
      auto made = StrictDevice::Create();
      device = made.get();
      return made;
    };
    options.on_load = [&](int, const absl::StatusOr<std::string>& loaded) {
      EXPECT_TRUE(loaded.ok()) << loaded.status();
      before_steps = device->num_work();
    };
    RunJob(options);
  }
  // A step begins with the gathering of parameters, which waits for its copies, beside the copy of
  // the batch on a stream of its own; then comes the first forward, which waits for nothing.
  EXPECT_THAT(MessageOfLateFailure(before_steps + 1),
              AnyOf(StartsWith("rank 0: step 1: G.c0: the device failed in work"),
                    StartsWith("rank 0: step 1: L.c0: the device failed in work")));
  EXPECT_THAT(MessageOfLateFailure(before_steps + 40),
              StartsWith("rank 0: step 1: F.c0.m0: the device failed in work"));
}

TEST(StrictDeviceTest, TooLittleMemoryIsOneClearError) {
  const JobSpec spec = Toy({});
  auto device = StrictDevice::Create({.memory_bytes = 20000});
  EngineOptions options;
  options.spec = spec;
  options.placements.emplace_back();
  options.device = device.get();
  const auto engine = RankEngine::Create(options);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("bytes of device memory"));
}

using Counts = std::map<std::string, int64_t>;  // by stream; no entry for 0

Counts Minus(Counts counts, const Counts& before) {
  for (const auto& [stream, count] : before) counts[stream] -= count;
  std::erase_if(counts, [](const auto& entry) { return entry.second == 0; });
  return counts;
}

// Counts the exchanges with other ranks, by stream.
class CountsExchanges final : public ForwardsToStrict {
 public:
  using ForwardsToStrict::ForwardsToStrict;

  absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeCommunicator(
      comm::HostCommunicator* host, stream::Stream* stream) override {
    ASSIGN_OR_RETURN(auto communicator, strict_->MakeCommunicator(host, stream));
    return std::make_unique<Counting>(std::move(communicator), &num_calls_[stream->name()],
                                      &num_sums_[stream->name()]);
  }

  // How often the host has waited for a stream's work.
  Counts num_waits() const { return strict_->num_waits(); }
  Counts num_exchanges() const { return CountsOf(num_calls_); }
  // Those that give this rank a sum.
  Counts num_sums() const { return CountsOf(num_sums_); }

 private:
  class Counting final : public comm::Communicator {
   public:
    Counting(std::unique_ptr<comm::Communicator> to, std::atomic<int64_t>* calls,
             std::atomic<int64_t>* sums)
        : to_(std::move(to)), calls_(*calls), sums_(*sums) {}
    int rank() const override { return to_->rank(); }
    int size() const override { return to_->size(); }
    const std::string& name() const override { return to_->name(); }
    absl::Status AllReduce(const Vector& buffer, const CallInfo& info) override {
      return Counted().AllReduce(buffer, info);
    }
    absl::Status ReduceScatter(const Vector& input, const Vector& output,
                               const CallInfo& info) override {
      return Counted().ReduceScatter(input, output, info);
    }
    absl::Status AllGather(const Vector& input, const Vector& output,
                           const CallInfo& info) override {
      return Counted().AllGather(input, output, info);
    }
    absl::Status Broadcast(const Vector& buffer, int root, const CallInfo& info) override {
      return Counted().Broadcast(buffer, root, info);
    }
    absl::Status Reduce(const Vector& input, const Vector& output, int root,
                        const CallInfo& info) override {
      if (root == rank() && size() > 1) ++sums_;
      return Counted().Reduce(input, output, root, info);
    }
    absl::Status AllToAll(const Vector& input, const Vector& output,
                          const CallInfo& info) override {
      return Counted().AllToAll(input, output, info);
    }
    absl::Status Barrier(const CallInfo& info) override { return Counted().Barrier(info); }
    absl::Status Send(int peer, const Vector& tensor, const CallInfo& info) override {
      return Counted().Send(peer, tensor, info);
    }
    absl::Status Recv(int peer, const Vector& tensor, const CallInfo& info) override {
      return Counted().Recv(peer, tensor, info);
    }
    void Abort(const absl::Status& reason) override { to_->Abort(reason); }

   private:
    comm::Communicator& Counted() {
      if (size() > 1) ++calls_;
      return *to_;
    }
    const std::unique_ptr<comm::Communicator> to_;
    std::atomic<int64_t>& calls_;
    std::atomic<int64_t>& sums_;
  };
  using Atomics = std::map<std::string, std::atomic<int64_t>>;  // complete before the first step

  static Counts CountsOf(const Atomics& atomics) {
    Counts counts;
    for (const auto& [stream, count] : atomics) counts[stream] = count;
    return counts;
  }

  Atomics num_calls_;
  Atomics num_sums_;
};

// Within steps the host waits for no work, except where tensors go through its memory to another
// rank: once for each such exchange, since those of a toy job fit one piece, and on the stream of
// the exchange. After a sum it waits once more if the next exchange receives, since the device may
// still read the sum from the memory into which that one receives. With `Tensor`, whose passes do
// not overlap with their exchanges, it is the compute stream; otherwise that stream has none.
TEST_P(StrictLayoutTest, TheHostWaitsForAStreamOnlyWhereItExchanges) {
  RunOptions options = Options(Toy(GetParam()), GetParam());
  std::mutex mutex;
  std::map<int, CountsExchanges*> devices;
  options.make_device = [&](int rank) {
    auto made =
        std::make_unique<CountsExchanges>(device::StrictOptions{.seed = 31 + uint64_t(rank)});
    const std::lock_guard<std::mutex> lock(mutex);
    devices[rank] = made.get();
    return made;
  };
  std::vector<std::map<int, Counts>> waits, exchanges, sums;  // by step, by rank
  options.after_step = [&] {
    waits.emplace_back();
    exchanges.emplace_back();
    sums.emplace_back();
    for (const auto& [rank, device] : devices) {
      waits.back()[rank] = device->num_waits();
      exchanges.back()[rank] = device->num_exchanges();
      sums.back()[rank] = device->num_sums();
    }
  };
  RunJob(options);
  ASSERT_EQ(waits.size(), 3u);
  const bool is_alone = GetParam().data * GetParam().pipeline * GetParam().tensor == 1;
  for (const auto& [rank, device] : devices) {
    const Counts waited = Minus(waits.back()[rank], waits.front()[rank]);
    const Counts needed = Minus(exchanges.back()[rank], exchanges.front()[rank]);
    const Counts summed = Minus(sums.back()[rank], sums.front()[rank]);
    ASSERT_EQ(waited.size(), needed.size()) << "rank " << rank;
    for (const auto& [stream, count] : needed) {
      const auto sum = summed.find(stream);
      const int64_t most = count + (sum == summed.end() ? 0 : sum->second);
      EXPECT_GE(waited.at(stream), count) << "rank " << rank << ", " << stream;
      EXPECT_LE(waited.at(stream), most) << "rank " << rank << ", " << stream;
    }
    EXPECT_EQ(waited.empty(), is_alone) << "rank " << rank;
    const bool exchanges_in_passes = GetParam().tensor > 1 && !GetParam().overlap;
    EXPECT_EQ(waited.contains("compute"), exchanges_in_passes) << "rank " << rank;
  }
}

// The first steps make scratch memory.
constexpr size_t kWarmUp = 3;
constexpr int64_t kCountedSteps = 6;

// Neither the devices' memory nor the host's heap grows. Exchanges keep records of their messages,
// which take the same calls of the heap in each step; over sockets, how many depends on how the
// bytes come.
TEST_P(StrictLayoutTest, NoStepTakesMemory) {
  JobSpec spec = Toy(GetParam());
  spec.mutable_train()->set_steps(kCountedSteps);
  RunOptions options = Options(spec, GetParam());
  std::mutex mutex;
  std::map<int, StrictDevice*> devices;
  options.make_device = [&](int rank) {
    auto made = StrictDevice::Create({.seed = 41 + uint64_t(rank)});
    const std::lock_guard<std::mutex> lock(mutex);
    devices[rank] = made.get();
    return made;
  };
  options.on_loader_thread = &base::IgnoreHeapCallsOfThisThread;
  std::vector<base::HeapCalls> heap;
  std::vector<int64_t> device_bytes, pinned_bytes;  // by step, then by rank
  heap.reserve(kCountedSteps);
  for (auto* bytes : {&device_bytes, &pinned_bytes}) bytes->reserve(8 * kCountedSteps);
  options.after_step = [&] {
    heap.push_back(base::CountHeapCalls());
    for (const auto& [rank, device] : devices) {
      device_bytes.push_back(device->used_bytes());
      pinned_bytes.push_back(device->pinned_bytes());
    }
  };
  RunJob(options);
  ASSERT_EQ(heap.size(), static_cast<size_t>(kCountedSteps));
  for (size_t i = 0; i < device_bytes.size(); ++i) {
    const size_t rank = i % devices.size();
    EXPECT_EQ(device_bytes[i], device_bytes[rank]) << "rank " << rank;
    EXPECT_EQ(pinned_bytes[i], pinned_bytes[rank]) << "rank " << rank;
  }
  if (!base::kHeapIsCounted) GTEST_SKIP() << "a sanitizer has a heap of its own";
  const auto in_step = [&](size_t i) { return heap[i] - heap[i - 1]; };
  const int64_t allowed = devices.size() == 1 ? 0 : in_step(kWarmUp).ours;
  for (size_t i = kWarmUp; i < heap.size(); ++i) {
    if (GetParam().nodes.empty()) {
      EXPECT_EQ(in_step(i).ours, allowed) << "step " << i + 1;
    }
    EXPECT_EQ(in_step(i).mappings, 0) << "step " << i + 1;
  }
}

// The same for a rank alone, which exchanges with nobody.
void ExpectAStepWaitsForNoHostAndAllocatesNothing(const Layout& layout) {
  JobSpec spec = Toy(layout);
  spec.mutable_train()->set_steps(kCountedSteps);
  RunOptions options = Options(spec);
  StrictDevice* device = nullptr;
  options.make_device = [&](int) {
    auto made = StrictDevice::Create();
    device = made.get();
    return made;
  };
  options.on_loader_thread = &base::IgnoreHeapCallsOfThisThread;
  Counts first_waits, last_waits;
  std::vector<base::HeapCalls> heap;
  heap.reserve(kCountedSteps);
  options.after_step = [&] {
    heap.push_back(base::CountHeapCalls());
    if (heap.size() == 1) first_waits = device->num_waits();
    if (heap.size() == kCountedSteps) last_waits = device->num_waits();
  };
  RunJob(options);
  ASSERT_EQ(heap.size(), static_cast<size_t>(kCountedSteps));
  EXPECT_EQ(last_waits, first_waits);
  if (!base::kHeapIsCounted) GTEST_SKIP() << "a sanitizer has a heap of its own";
  for (size_t i = kWarmUp + 1; i < heap.size(); ++i) {
    EXPECT_EQ((heap[i] - heap[i - 1]).ours, 0) << "step " << i + 1;
    EXPECT_EQ((heap[i] - heap[i - 1]).mappings, 0) << "step " << i + 1;
  }
}

TEST(StrictDeviceTest, AStepWaitsForNoHostAndAllocatesNothing) {
  ExpectAStepWaitsForNoHostAndAllocatesNothing({});
}

TEST(StrictDeviceTest, NorDoesOneOfLambInBf16) {
  ExpectAStepWaitsForNoHostAndAllocatesNothing(
      {.optimizer = job::v1::OPTIMIZER_TYPE_LAMB, .precision = job::v1::PRECISION_BF16});
}

// Claims that the host may touch its memory, so that code with a host's path takes it: the mistake
// that the strict device is there to find.
class ClaimsHostMemory final : public ForwardsToStrict {
 public:
  tensor::HostVector OnHost(const tensor::Vector& vector) const override {
    return device::HostViews::View(vector);
  }
};

TEST(StrictDeviceDeathTest, AHostAccessPutBackIntoTheEngineIsACrashWithTheNameOfTheMemory) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  RunOptions options = Options(Toy({}));
  options.make_device = [](int) { return std::make_unique<ClaimsHostMemory>(); };
  EXPECT_DEATH(RunJob(options),
               "host code touched device memory: byte [0-9]+ of '(parameters|optimizer state)'");
}

TEST(StrictDeviceDeathTest, AStrayAccessOfTheHostIsACrashWithTheNameOfTheMemory) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        const auto device = StrictDevice::Create();
        const auto memory = device->Allocate("weights", 4096).value();
        static_cast<volatile char*>(memory->data())[17] = 1;
      },
      "host code touched device memory: byte 17 of 'weights'");
}

}  // namespace
}  // namespace megascale::engine
