// Whole jobs whose ranks have a GPU each and exchange through NCCL, here the emulated one, whose
// exchanges hold their device: ranks that launch in orders that do not agree would hang. Copies
// between host and device run last of all work that is ready.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gpu/assembly.h"
#include "gpu/emulator/assembled/emulated_gpu.h"
#include "runtime/device/device.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/machine/device_exchange_check.h"

namespace megascale::engine {
namespace {

using job::v1::JobSpec;

struct Layout {
  std::string name = "";
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  int virtual_stages = 1;
  int zero_stage = 1;
  bool tied = false;
  bool overlap = false;  // of tensor ranks' exchanges, in pieces; else they are whole calls
};

RunOptions OnGpus(const Layout& layout, bool through_nccl) {
  JobSpec spec = ToyJob(WriteTestText("text"), layout.data, layout.pipeline);
  spec.mutable_model()->set_num_hidden_layers(layout.pipeline * layout.virtual_stages);
  spec.mutable_model()->set_tie_word_embeddings(layout.tied);
  spec.mutable_train()->set_global_batch_size(2 * layout.data * layout.pipeline);
  spec.mutable_train()->set_steps(4);
  auto& parallel = *spec.mutable_parallel();
  parallel.set_tensor_model_parallel_size(layout.tensor);
  parallel.set_zero_stage(layout.zero_stage);
  parallel.set_tp_comm_overlap(layout.overlap);
  spec.set_device(job::v1::DEVICE_CUDA);
  spec.set_device_sharing(!through_nccl);
  if (layout.virtual_stages > 1) {
    parallel.set_virtual_pipeline_model_parallel_size(layout.virtual_stages);
    parallel.set_pipeline_schedule(job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B);
  }
  RunOptions options(spec);
  options.make_device = [through_nccl](int rank) {
    return emulator::MakeEmulatedNcclGpu(
               {.local_rank = rank, .may_share = !through_nccl, .uses_graphs = through_nccl},
               /*seed=*/1)
        .value();
  };
  return options;
}

class NcclJobsTest : public ::testing::TestWithParam<Layout> {};

// The emulated NCCL sums as the host's communicators do, so the bits are those of the same GPUs
// that exchange through the host, which needs no order. Graphs leave the bits as well.
TEST_P(NcclJobsTest, EndWithTheBitsOfExchangesThroughTheHost) {
  const std::string expected = RunJob(OnGpus(GetParam(), /*through_nccl=*/false)).digest;
  ASSERT_NE(expected, "");
  EXPECT_EQ(RunJob(OnGpus(GetParam(), /*through_nccl=*/true)).digest, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, NcclJobsTest,
    ::testing::Values(
        Layout{.name = "DataTensor", .data = 2, .tensor = 2},
        Layout{.name = "DataTensorOverlap", .data = 2, .tensor = 2, .overlap = true},
        Layout{.name = "InterleavedZero2Tied",
               .data = 2,
               .pipeline = 2,
               .virtual_stages = 2,
               .zero_stage = 2,
               .tied = true},
        // Stages between the ends have no call in some channels of their pipeline.
        Layout{.name = "ThreeStages", .pipeline = 3},
        Layout{.name = "FourInterleavedTied", .pipeline = 4, .virtual_stages = 2, .tied = true},
        Layout{.name = "DataThreeStagesTied", .data = 2, .pipeline = 3, .tied = true},
        Layout{.name = "ThreeStagesTensor", .pipeline = 3, .tensor = 2},
        Layout{.name = "TwoStagesTensorOverlap", .pipeline = 2, .tensor = 2, .overlap = true}),
    [](const auto& info) { return info.param.name; });

// An optimizer that did not wait for the snapshot's copies would change the state under them.
TEST(NcclJobTest, ASnapshotBesideAStepIsThatOfTheStepBefore) {
  RunOptions calm = OnGpus({.data = 2}, /*through_nccl=*/true);
  calm.StopAfter(1);
  const std::string wanted = RunJob(calm).digest;
  ASSERT_NE(wanted, "");
  RunOptions beside = OnGpus({.data = 2}, /*through_nccl=*/true);
  beside.snapshot_beside_step_after = 1;
  EXPECT_EQ(RunJob(beside).digest, wanted);
}

TEST(NcclJobTest, AJobOfOneRankNeedsNoNccl) {
  const std::string expected = RunJob(OnGpus({}, /*through_nccl=*/false)).digest;
  ASSERT_NE(expected, "");
  const absl::Status absent = absl::FailedPreconditionError("there is no libnccl.so.2");
  gpu::GpuTables tables = emulator::EmulatedTables();
  tables.open_nccl = [&] { return absent; };
  RunOptions alone = OnGpus({}, /*through_nccl=*/true);
  alone.make_device = [&](int /*rank*/) {
    auto device = gpu::AssembleGpuDevice(tables, {.is_alone = true}).value();
    EXPECT_FALSE(absl::StrContains(device->Describe().numerics, "through the host"));
    return device;
  };
  EXPECT_EQ(RunJob(alone).digest, expected);
  EXPECT_EQ(gpu::AssembleGpuDevice(tables, {}).status(), absent) << "a rank with peers needs it";
}

// As the test of a machine before it gets ranks.
TEST(NcclDevicesTest, TheDevicesOfAMachineAddExactlyTogether) {
  constexpr int kDevices = 3;
  std::vector<std::unique_ptr<device::Device>> devices;
  std::vector<device::Device*> members;
  for (int i = 0; i < kDevices; ++i) {
    devices.push_back(emulator::MakeEmulatedNcclGpu({.local_rank = i}, /*seed=*/1).value());
    members.push_back(devices.back().get());
  }
  const machine::PartResult result =
      machine::CheckDeviceExchange(members, {.elements = 1001, .rounds = 2});
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.note, "");
  EXPECT_GT(result.bytes_per_second, 0);
}

}  // namespace
}  // namespace megascale::engine
