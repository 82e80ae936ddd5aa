// Ranks on several machines that restore a checkpoint which some machines cannot read. A machine's
// storage is the directory that its ranks are told.
#include "runtime/engine/state/restore_with_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/clock.h"
#include "runtime/comm/testing/test_world.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/device/testing/test_window.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::engine {
namespace {

using agent::v1::RestorePoint;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kStep = 2;

void FlipByteOfShard(const std::string& directory, int rank) {
  std::fstream file(absl::StrCat(directory, "/rank-0000", rank, ".safetensors"),
                    std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.is_open());
  file.seekg(-5, std::ios::end);
  const auto at = file.tellg();
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

enum class DeviceKind { kCpu, kStrict };

// The checkpoint is always trained on the CPU; the device is that of the ranks that restore it.
class RestoreWithPeersTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  // Trains two steps; what the tests restore is its checkpoint.
  void Train(int data, int pipeline, std::vector<std::string> nodes, int hidden_size = 16) {
    spec_ = ToyJob(WriteTestText(test_name()), data, pipeline);
    spec_.mutable_train()->set_steps(kStep + 1);
    spec_.mutable_model()->set_hidden_size(hidden_size);
    spec_.mutable_model()->set_num_hidden_layers(pipeline);
    spec_.mutable_model()->clear_intermediate_size();
    spec_.mutable_model()->clear_head_dim();
    spec_ = job::ResolveJobSpec(spec_).value();
    nodes_ = std::move(nodes);
    directory_ = RunJob(RunOptions(spec_).On(nodes_).StopAfter(kStep)).checkpoint;
    ASSERT_NE(directory_, "");
    calm_ = RunJob(ResumeOptions()).digest;
    ASSERT_NE(calm_, "");
  }

  static std::string test_name() {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    return absl::StrReplaceAll(name, {{"/", "-"}});
  }

  RunOptions ResumeOptions() const {
    RunOptions options = RunOptions(spec_).On(nodes_);
    options.attempt = 2;
    options.restore = RestoreOf(directory_);
    return options;
  }

  RestorePoint RestoreOf(const std::string& directory) const {
    RestorePoint restore;
    restore.set_source(RestorePoint::SOURCE_STORAGE);
    restore.set_step(kStep);
    restore.set_directory(directory);
    return restore;
  }

  std::string CopyOfCheckpoint(const std::string& name) const {
    const std::string copy = absl::StrCat(directory_, "-", name);
    std::filesystem::copy(directory_, copy, std::filesystem::copy_options::recursive);
    return copy;
  }

  // Goes on from the checkpoint; `directories`: of ranks that have another.
  RunResult Resume(const std::map<int, std::string>& directories = {}) {
    RunOptions options = ResumeOptions();
    for (const auto& [rank, directory] : directories) {
      options.restore_of[rank] = RestoreOf(directory);
    }
    if (GetParam() == DeviceKind::kStrict) {
      options.make_device = [](int rank) {
        return device::StrictDevice::Create({.seed = static_cast<uint64_t>(rank) + 1});
      };
    }
    options.on_load = [this](int rank, const absl::StatusOr<std::string>& loaded) {
      const std::lock_guard<std::mutex> lock(mutex_);
      loaded_[rank] = loaded;
    };
    return RunJob(options);
  }

  std::string WarningOf(int rank) { return loaded_.at(rank).value(); }
  std::string ErrorOf(int rank) { return loaded_.at(rank).status().ToString(); }

  job::v1::JobSpec spec_;
  std::vector<std::string> nodes_;
  std::string directory_;
  std::string calm_;  // digest
  std::mutex mutex_;
  std::map<int, absl::StatusOr<std::string>> loaded_;  // by rank
};

TEST_P(RestoreWithPeersTest, WhatAMachineCannotReadAnotherReadsAndTheBitsAreTheSame) {
  Train(2, 2, {"n0", "n0", "n1", "n1"});
  const std::string missing = directory_ + "-missing";
  EXPECT_EQ(Resume({{2, missing}, {3, missing}}).digest, calm_);
  for (const int rank : {0, 1}) EXPECT_EQ(WarningOf(rank), "");
  for (const int rank : {2, 3}) {
    EXPECT_THAT(WarningOf(rank),
                StartsWith(absl::StrCat("rank ", rank, " could not read the checkpoint ", missing,
                                        " on this machine (checkpoint ", missing,
                                        ": has no manifest.json")));
    EXPECT_THAT(WarningOf(rank), HasSubstr("); node n0 read it and sent it."));
  }
}

TEST_P(RestoreWithPeersTest, WithoutAFaultNobodyIsWarned) {
  Train(2, 1, {"n0", "n1"});
  EXPECT_EQ(Resume().digest, calm_);
  for (const int rank : {0, 1}) EXPECT_EQ(WarningOf(rank), "");
}

TEST_P(RestoreWithPeersTest, SlicesThatAreLargerThanABlockArriveWhole) {
  Train(2, 1, {"n0", "n1"}, /*hidden_size=*/400);
  EXPECT_EQ(Resume({{1, directory_ + "-missing"}}).digest, calm_);
  EXPECT_THAT(WarningOf(1), HasSubstr("node n0 read it"));
}

TEST_P(RestoreWithPeersTest, MachinesThatCannotReadDifferentFilesReadForEachOther) {
  Train(2, 1, {"n0", "n1"});
  const std::string first = CopyOfCheckpoint("n0"), second = CopyOfCheckpoint("n1");
  FlipByteOfShard(first, 0);
  FlipByteOfShard(second, 1);
  EXPECT_EQ(Resume({{0, first}, {1, second}}).digest, calm_);
  EXPECT_THAT(WarningOf(0), HasSubstr("rank-00000.safetensors: its SHA-256 is "));
  EXPECT_THAT(WarningOf(0), HasSubstr("node n1 read it"));
  EXPECT_THAT(WarningOf(1), HasSubstr("rank-00001.safetensors: its SHA-256 is "));
  EXPECT_THAT(WarningOf(1), HasSubstr("node n0 read it"));
}

TEST_P(RestoreWithPeersTest, AMachineThatCannotReadForAnotherGivesWayToTheNext) {
  Train(4, 1, {"n0", "n1", "n2", "n3"});
  // It has what its own rank needs.
  const std::string damaged = CopyOfCheckpoint("n1");
  FlipByteOfShard(damaged, 0);
  EXPECT_EQ(Resume({{0, directory_ + "-missing"}, {1, damaged}}).digest, calm_);
  EXPECT_EQ(WarningOf(1), "");
  EXPECT_THAT(WarningOf(0), HasSubstr("node n2 read it"));
}

TEST_P(RestoreWithPeersTest, WhatNoMachineCanReadFailsOnEveryRank) {
  Train(2, 2, {"n0", "n0", "n1", "n1"});
  directory_ += "-missing";
  Resume();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(loaded_.at(rank).status().code(), absl::StatusCode::kDataLoss) << ErrorOf(rank);
    EXPECT_THAT(ErrorOf(rank), HasSubstr("has no manifest.json"));
  }
}

// By the two machines that found it; the others are told. No third machine reads it.
TEST_P(RestoreWithPeersTest, AFileThatIsDamagedForAllFailsOnceASecondMachineHasFoundTheSame) {
  Train(4, 1, {"n0", "n1", "n2", "n3"});
  FlipByteOfShard(directory_, 1);
  Resume();
  for (const int rank : {1, 2}) {
    EXPECT_EQ(loaded_.at(rank).status().code(), absl::StatusCode::kDataLoss) << ErrorOf(rank);
    EXPECT_THAT(ErrorOf(rank), HasSubstr("rank-00001.safetensors: its SHA-256 is "));
  }
  EXPECT_THAT(ErrorOf(1), HasSubstr("nor could rank 2 on node n2: "));
  EXPECT_THAT(ErrorOf(2), HasSubstr("cannot read for rank 1 on node n1, which cannot either: "));
  for (const int rank : {0, 3}) {
    EXPECT_EQ(ErrorOf(rank), absl::StrCat("ABORTED: rank 1 on node n1 cannot read ", directory_,
                                          ", and no other machine of the job can"));
  }
}

TEST_P(RestoreWithPeersTest, TheSameBytesMissingOnEveryMachineFailsAfterEachWasAsked) {
  Train(4, 1, {"n0", "n1", "n2", "n3"});
  // Different errors of system calls: none tells anything of another machine.
  std::map<int, std::string> missing;
  for (int rank = 0; rank < 4; ++rank) missing[rank] = absl::StrCat(directory_, "-missing-", rank);
  Resume(missing);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(loaded_.at(rank).status().code(), absl::StatusCode::kDataLoss) << ErrorOf(rank);
    EXPECT_THAT(ErrorOf(rank), HasSubstr(missing[rank]));
    for (int other = 0; other < 4; ++other) {
      if (other == rank) continue;
      EXPECT_THAT(ErrorOf(rank), HasSubstr(absl::StrCat("rank ", other, " on node n")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RestoreWithPeersTest,
                         ::testing::Values(DeviceKind::kCpu, DeviceKind::kStrict),
                         [](const auto& info) {
                           return info.param == DeviceKind::kCpu ? "Cpu" : "Strict";
                         });

// The failure detector does not blame a rank that is in an exchange. Rank 1 cannot read and asks
// rank 0, which looks at rank 1's heartbeat slot before it answers.
TEST(RestoreHeartbeatTest, ARankThatWaitsForItsReaderShowsTheExchangeAndTheReader) {
  const auto memory = base::SharedMemory::Create("slots", telemetry::HeartbeatBytes(2)).value();
  telemetry::FormatHeartbeats(*memory);
  const auto shown_by = [&memory](int rank) {
    return telemetry::ReadHeartbeat(*memory, rank, base::RealClock().Monotonic());
  };
  comm::ThreadWorld world(comm::OneGroup(2, 2, 4096));
  world.RunConnected([&](int rank, comm::Fabric& fabric) {
    const auto communicator = fabric.Make("all").value();
    telemetry::HeartbeatWriter heartbeat(memory.get(), rank);
    float value = 0;
    const optim::StateSlice slice = {.name = "x",
                                     .shape = {1},
                                     .box_offset = {0},
                                     .box_shape = {1},
                                     .data = {&value, tensor::DType::kF32, 1}};
    RestoreOptions options;
    options.restore.set_source(RestorePoint::SOURCE_STORAGE);
    options.restore.set_directory("/nonexistent");
    options.rank = rank;
    options.nodes = {"n0", "n1"};
    const AllRanks all({.data = communicator.get()});
    options.all = &all;
    options.connect = [&](int peer, const std::string& name) {
      return RankPair::Connect(world.OptionsOf(rank), peer, name);
    };
    device::TestWindow cpu;
    options.window = &cpu.window;
    options.heartbeat = &heartbeat;
    options.layout_of = [&](int asker) {
      telemetry::v1::RankStatus status = shown_by(asker);
      while (status.activity() != telemetry::v1::ACTIVITY_WAIT_FOR_READER) {
        std::this_thread::yield();
        status = shown_by(asker);
      }
      EXPECT_EQ(status.instruction(), plan::InstructionId(plan::OpKind::kReduceNorm).packed());
      EXPECT_EQ(status.peer(), 0);
      return std::vector<optim::StateSlice>{slice};
    };
    const std::vector<optim::StateSlice> own(static_cast<size_t>(rank), slice);
    EXPECT_FALSE(RestoreWithPeers(options, own).ok());
    EXPECT_EQ(shown_by(rank).instruction(), 0u) << "it no longer waits";
  });
}

}  // namespace
}  // namespace megascale::engine
