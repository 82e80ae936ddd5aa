// Failing storage: a disk that fills while a job trains, the limit on how long that may last,
// storage that stands still, and machines that do not see the same checkpoint directory. The disks
// are real file systems, mounted in this test's own mount namespace, so that they vanish with it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/shared_directory.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

// Enters a new mount namespace. Call once, before any process of the cluster starts.
bool EnterMountNamespace() {
  static const bool entered = ::unshare(CLONE_NEWNS) == 0 &&
                              ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return entered;
}

// Storage that stands still: every call below `path` waits until the object is destroyed, and then
// fails. It is a file system whose server, this process, never answers the kernel.
class SilentDisk {
 public:
  explicit SilentDisk(std::string path)
      : path_(std::move(path)), server_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    const std::string options =
        absl::StrCat("fd=", server_.get(), ",rootmode=40000,user_id=0,group_id=0");
    mounted_ = server_.valid() && ::mount("megascale-test", path_.c_str(), "fuse",
                                          MS_NOSUID | MS_NODEV, options.c_str()) == 0;
  }
  ~SilentDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }

  bool works() const { return mounted_; }

 private:
  const std::string path_;
  const base::UniqueFd server_;
  bool mounted_ = false;
};

class StorageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!EnterMountNamespace()) GTEST_SKIP() << "this user may not mount a file system";
    cluster_.StartDriver();
  }
  void TearDown() override {
    for (const std::string& path : mounted_) ::umount2(path.c_str(), MNT_DETACH);
  }

  // Mounts a new file system at this name in the test's folder.
  std::string MountDisk(const std::string& name, const std::string& size) {
    const std::string path = cluster_.directory() + "/" + name;
    EXPECT_EQ(::mkdir(path.c_str(), 0700), 0);
    EXPECT_EQ(::mount("megascale-test", path.c_str(), "tmpfs", 0, ("size=" + size).c_str()), 0);
    mounted_.push_back(path);
    return path;
  }

  // Takes all space until it is destroyed, also the space that deleting older checkpoints frees.
  class Filler {
   public:
    explicit Filler(const std::string& directory)
        : path_(directory + "/filler"),
          file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)),
          thread_([this] { Fill(); }) {}
    ~Filler() {
      done_ = true;
      thread_.join();
      EXPECT_EQ(::unlink(path_.c_str()), 0);
    }

   private:
    void Fill() {
      const std::string piece(4096, 'x');
      while (!done_) {
        if (::write(file_.get(), piece.data(), piece.size()) > 0) continue;
        EXPECT_EQ(errno, ENOSPC);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }

    std::string path_;
    base::UniqueFd file_;
    std::atomic<bool> done_ = false;
    std::thread thread_;
  };

  // Expects the job to train on without a commit, past the steps in both snapshot buffers. If the
  // job is faster than the filler, deleting incomplete checkpoints may make room for one more.
  bool TrainsOnWithoutCheckpoints(Job* failing, Job* later) {
    return WaitUntil(
        [&] {
          *failing = cluster_.Status("job");
          if (!failing->has_storage_failure()) return false;
          if (!cluster_.WaitForStep("job", failing->last_step() + 30)) return false;
          *later = cluster_.Status("job");
          return later->has_storage_failure() &&
                 later->last_checkpoint().step() == failing->last_checkpoint().step();
        },
        90);
  }

  bool CommitsAfter(const Job& before) {
    return WaitUntil(
        [&] {
          const Job job = cluster_.Status("job");
          return !job.has_storage_failure() &&
                 job.last_checkpoint().step() > before.last_checkpoint().step();
        },
        90);
  }

  // Runs a command where the agent's processes see files.
  ::testing::AssertionResult OnAgent(int index, const std::vector<std::string>& command) {
    std::vector<std::string> entered = {"/usr/bin/nsenter", "--mount", "--target",
                                        absl::StrCat(cluster_.agent_pid(index))};
    entered.insert(entered.end(), command.begin(), command.end());
    const CommandResult result = e2e::Run(entered);
    if (result.exit_code == 0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << result.err;
  }

  // Those of the job's warnings that say `part`.
  std::vector<std::string> WarningsOf(const std::string& job_id, const std::string& part) {
    const Job job = cluster_.Status(job_id);
    std::vector<std::string> found;
    for (const std::string& warning : job.warnings()) {
      if (warning.find(part) != std::string::npos) found.push_back(warning);
    }
    return found;
  }

  // Whether the evidence of what made the job recover last has all these parts.
  bool EvidenceHas(const std::vector<std::string>& parts) {
    const std::string evidence = cluster_.Status("job").culprit().evidence();
    return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return evidence.find(part) != std::string::npos;
    });
  }

  // Starts the second agent and trains without end, with a checkpoint every few steps, until the
  // first of them is committed.
  void TrainOn(const std::string& disk, const std::vector<std::string>& more = {}) {
    std::vector<std::string> sets = {"train.steps=1000000", "checkpoint.interval=5",
                                     "checkpoint.directory=" + disk};
    sets.insert(sets.end(), more.begin(), more.end());
    cluster_.StartAgent(1, 2);
    cluster_.Submit("job", sets);
    ASSERT_TRUE(WaitUntil([&] { return cluster_.Status("job").has_last_checkpoint(); }, 60));
  }

  // The steps of the job's complete checkpoints, in no order.
  std::vector<int64_t> CompleteSteps(const std::string& job_id) const {
    std::vector<int64_t> steps;
    for (const auto& entry : std::filesystem::directory_iterator(cluster_.checkpoints(job_id))) {
      if (!std::filesystem::exists(entry.path() / "manifest.json")) continue;
      steps.push_back(checkpoint::ParseStepDirectoryName(entry.path().filename().string())->step());
    }
    return steps;
  }

  std::vector<std::string> mounted_;
  Cluster cluster_;
};

TEST_F(StorageTest, ADiskThatFillsDoesNotStopTrainingAndIsSeenUntilThereIsSpaceAgain) {
  const std::string disk = MountDisk("disk", "24m");
  cluster_.StartAgent(0, 2);
  TrainOn(disk);
  auto filler = std::make_unique<Filler>(disk);
  Job failing;
  Job later;
  ASSERT_TRUE(TrainsOnWithoutCheckpoints(&failing, &later));
  EXPECT_EQ(later.state(), control::v1::JOB_STATE_RUNNING);
  EXPECT_EQ(later.attempt(), 1);
  EXPECT_GT(later.last_checkpoint().age_seconds(), failing.last_checkpoint().age_seconds());
  EXPECT_GT(later.storage_failure().seconds(), 0);
  EXPECT_NE(later.storage_failure().message().find("disk full; free some space there"),
            std::string::npos)
      << later.storage_failure().message();
  EXPECT_NE(later.message().find("cannot write checkpoints on n"), std::string::npos)
      << later.message();
  const std::string shown = cluster_.Megascale({"status", "job"}).out;
  EXPECT_NE(shown.find("old, in "), std::string::npos) << shown;
  EXPECT_NE(shown.find("; training goes on, and the job fails after 1h00m"), std::string::npos)
      << shown;

  filler.reset();
  EXPECT_TRUE(CommitsAfter(later));
  EXPECT_EQ(cluster_.Status("job").attempt(), 1);
}

// The other host's shards belong to checkpoints that will never be complete; they must not fill the
// disk for good.
TEST_F(StorageTest, AHostThatCannotWriteForAWhileFindsSpaceWhenItCanAgain) {
  const std::string disk = MountDisk("disk", "24m");
  const std::string mount = absl::StrCat("mount --bind ", disk, " ", disk);
  cluster_.StartAgent(0, 2);
  cluster_.RunAgentsUnder(
      {"/usr/bin/unshare", "-m", "/bin/sh", "-c", mount + " && exec \"$@\"", "sh"});
  TrainOn(disk);
  // Remounting fails with EBUSY while a rank has a shard open there, so try again.
  const auto remount = [&](const std::string& how) {
    e2e::CommandResult result;
    return WaitUntil(
               [&] {
                 result = e2e::Run({"/usr/bin/nsenter", "--mount", "--target",
                                    absl::StrCat(cluster_.agent_pid(1)), "/bin/mount", "-o",
                                    "remount,bind," + how, disk});
                 return result.exit_code == 0;
               },
               60)
               ? ::testing::AssertionSuccess()
               : ::testing::AssertionFailure() << result.err;
  };
  ASSERT_TRUE(remount("ro"));
  ASSERT_TRUE(WaitUntil([&] { return cluster_.Status("job").has_storage_failure(); }, 60));
  const Job failing = cluster_.Status("job");
  // Trains on for 24 checkpoints; the disk has room for one host's shards of only 16.
  EXPECT_TRUE(cluster_.WaitForStep("job", failing.last_step() + 120));
  ASSERT_TRUE(remount("rw"));
  EXPECT_TRUE(CommitsAfter(failing));
  EXPECT_EQ(cluster_.Status("job").attempt(), 1);
}

TEST_F(StorageTest, AfterTheJobsLimitItFailsWithTheErrorAsItsReason) {
  const std::string disk = MountDisk("disk", "24m");
  cluster_.StartAgent(0, 2);
  TrainOn(disk, {"fault.checkpoint_timeout=2s"});
  const Filler filler(disk);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  const Job job = cluster_.Status("job");
  EXPECT_EQ(job.attempt(), 1) << "not tried again";
  EXPECT_EQ(job.reason(), "StorageFailed");
  EXPECT_EQ(job.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_STORAGE);
  for (const std::string& part :
       {std::string("no checkpoint could be written for 2s (fault.checkpoint_timeout): "),
        std::string("disk full; free some space there"),
        absl::StrCat("the last good one is of step ", job.last_checkpoint().step(), ": ",
                     job.last_checkpoint().directory())}) {
    EXPECT_NE(job.message().find(part), std::string::npos)
        << part << " is not in " << job.message();
  }
  EXPECT_EQ(
      cluster_.Megascale({"checkpoint", "verify", job.last_checkpoint().directory()}).exit_code, 0);
}

// The state is in memory, so the job needs no storage before its next checkpoints.
TEST_F(StorageTest, ARestartFromMemoryDoesNotWaitForStorageThatStandsStill) {
  cluster_.StartAgent(0, 2);
  cluster_.StartAgent(1, 2);
  cluster_.Submit("calm");
  ASSERT_EQ(cluster_.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string disk = cluster_.directory() + "/disk";
  std::filesystem::create_directory(disk);
  cluster_.Submit("job", {"checkpoint.directory=" + disk});
  ASSERT_TRUE(WaitUntil([&] { return cluster_.Status("job").has_last_checkpoint(); }, 60));
  auto silent = std::make_unique<SilentDisk>(disk);
  if (!silent->works()) GTEST_SKIP() << "this user may not serve a file system (/dev/fuse)";
  const Job before = cluster_.Status("job");
  ASSERT_EQ(before.state(), control::v1::JOB_STATE_RUNNING);
  ASSERT_EQ(::kill(before.ranks(3).status().pid(), SIGKILL), 0);
  Job starting;
  ASSERT_TRUE(WaitUntil(
      [&] {
        starting = cluster_.Status("job");
        return starting.message().find("in the agents' memory") != std::string::npos;
      },
      60))
      << starting.message();
  int64_t restored = 0;
  ASSERT_EQ(std::sscanf(starting.message().c_str(), "attempt 2 from step %ld", &restored), 1)
      << starting.message();
  EXPECT_TRUE(cluster_.WaitForStep("job", restored + 1));
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), 2);
  EXPECT_EQ(after.last_checkpoint().step(), before.last_checkpoint().step());
  silent.reset();
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.Status("job").attempt(), 2) << cluster_.Status("job").culprit().evidence();
  EXPECT_EQ(cluster_.Digest("job"), cluster_.Digest("calm"));
  EXPECT_EQ(cluster_.LossLog("job"), cluster_.LossLog("calm"));
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(disk, "/job/", checkpoint::kNonceFile)));
}

// The files are intact, and no slot is free: the other machine of the job reads for it.
TEST_F(StorageTest, AMachineOfTheJobReadsForOneThatCannotAndStatusNamesBoth) {
  cluster_.StartAgent(0, 2);
  cluster_.RunAgentsUnder({"/usr/bin/unshare", "-m"});
  cluster_.StartAgent(1, 2);
  cluster_.RunAgentsUnder({});
  cluster_.Submit("calm", {"train.steps=300"});
  ASSERT_EQ(cluster_.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  cluster_.Submit("job", {"train.steps=300", "fault.restart_backoff=100ms"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 70));
  // The snapshots in memory end with the agent, so only storage is left.
  cluster_.KillAgent(0);
  ASSERT_TRUE(WaitUntil(
      [&] { return cluster_.Status("job").state() == control::v1::JOB_STATE_RECOVERING; }, 60));
  const Job before = cluster_.Status("job");
  const std::string newest = before.last_checkpoint().directory();
  ASSERT_TRUE(OnAgent(1, {"/bin/mount", "-t", "tmpfs", "none", newest}));
  cluster_.StartAgent(0, 2);
  std::vector<std::string> warnings;
  ASSERT_TRUE(WaitUntil(
      [&] {
        warnings = WarningsOf("job", "could not read the checkpoint");
        return warnings.size() == 2;
      },
      60));
  ASSERT_TRUE(OnAgent(1, {"/bin/umount", "-l", newest}));
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.Digest("job"), cluster_.Digest("calm"));
  EXPECT_EQ(cluster_.LossLog("job"), cluster_.LossLog("calm"));
  EXPECT_EQ(cluster_.Status("job").attempt(), before.attempt() + 1);
  for (const std::string& warning : warnings) {
    for (const std::string& part :
         {std::string("node n1: rank "),
          absl::StrCat(" could not read the checkpoint ", newest, " on this machine "),
          std::string("has no manifest.json"), std::string("); node n0 read it and sent it.")}) {
      EXPECT_NE(warning.find(part), std::string::npos) << part << " is not in " << warning;
    }
  }
}

TEST_F(StorageTest, MachinesThatCannotReadCheckpointsAreSparedAndTheJobEndsAsACalmOne) {
  cluster_.StartAgent(0, 2);
  cluster_.RunAgentsUnder({"/usr/bin/unshare", "-m"});
  cluster_.StartAgent(1, 2);
  cluster_.Submit("calm");
  ASSERT_EQ(cluster_.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  cluster_.Submit("job", {"fault.heartbeat_timeout=2s", "fault.restart_backoff=2s"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 70));
  // The snapshots in memory end with the agent, so only storage is left. It comes back where the
  // other one cannot read.
  cluster_.RunAgentsUnder(
      {"/usr/bin/nsenter", "--mount", "--target", absl::StrCat(cluster_.agent_pid(1))});
  cluster_.KillAgent(0);
  ASSERT_TRUE(WaitUntil(
      [&] { return cluster_.Status("job").state() == control::v1::JOB_STATE_RECOVERING; }, 60));
  const std::string newest = cluster_.Status("job").last_checkpoint().directory();
  ASSERT_TRUE(OnAgent(1, {"/bin/mount", "-t", "tmpfs", "none", newest}));
  cluster_.StartAgent(0, 2);
  ASSERT_TRUE(WaitUntil([&] { return EvidenceHas({"has no manifest.json"}); }, 60));
  cluster_.RunAgentsUnder({});
  cluster_.StartAgent(2, 4);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.Digest("job"), cluster_.Digest("calm"));
  EXPECT_EQ(cluster_.LossLog("job"), cluster_.LossLog("calm"));
  EXPECT_TRUE(EvidenceHas({"has no manifest.json", "it is read again on other nodes than n",
                           "other nodes could read it: not the checkpoint but n"}))
      << cluster_.Status("job").culprit().evidence();
}

TEST_F(StorageTest, AgentsThatSeeDifferentDirectoriesAreRefusedBeforeAWorkerStarts) {
  const std::string shared = cluster_.directory() + "/shared";
  const std::string other = cluster_.directory() + "/other";
  std::filesystem::create_directory(shared);
  std::filesystem::create_directory(other);
  cluster_.StartAgent(0, 2);
  cluster_.RunAgentsUnder({"/usr/bin/unshare", "-m", "/bin/sh", "-c",
                           absl::StrCat("mount --bind ", other, " ", shared, " && exec \"$@\""),
                           "sh"});
  cluster_.StartAgent(1, 2);
  cluster_.Submit("job", {"checkpoint.directory=" + shared, "fault.start_timeout=8s"});
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  const Job job = cluster_.Status("job");
  EXPECT_EQ(job.attempt(), 1);
  EXPECT_EQ(job.reason(), "Refused");
  EXPECT_EQ(job.message(),
            absl::StrCat("checkpoint.directory: node n1 does not see in ", shared,
                         "/job what node n0 wrote there (looked for 6.4s); every machine needs the "
                         "same directory: mount one shared file system there"));
}

// A power cut: all agents are back before the file system is.
TEST_F(StorageTest, AJobWaitsForStorageThatIsAwayAndMakesNothingAnewOnTheBareMountPoint) {
  const std::string real = cluster_.directory() + "/real";
  const std::string disk = cluster_.directory() + "/disk";
  const std::string text = cluster_.directory() + "/text";
  std::filesystem::create_directory(real);
  std::filesystem::create_directory(disk);
  std::filesystem::rename(text, real + "/text");
  std::filesystem::create_symlink(disk + "/text", text);
  const auto mount = [&] { return ::mount(real.c_str(), disk.c_str(), nullptr, MS_BIND, nullptr); };
  ASSERT_EQ(mount(), 0);
  mounted_.push_back(disk);
  cluster_.StartAgent(0, 4);
  cluster_.Submit("calm");
  ASSERT_EQ(cluster_.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  cluster_.Submit("job", {"checkpoint.directory=" + disk});
  ASSERT_TRUE(WaitUntil([&] { return cluster_.Status("job").has_last_checkpoint(); }, 60));
  cluster_.KillAgent(0);
  ASSERT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
  cluster_.StartAgent(0, 4);
  const std::string away = absl::StrCat("checkpoint.directory: ", disk, "/job/.owner.json");
  ASSERT_TRUE(WaitUntil(
      [&] {
        const std::string message = cluster_.Status("job").message();
        return message.find("waits for storage (") != std::string::npos &&
               message.find(away) != std::string::npos;
      },
      60))
      << cluster_.Status("job").message();
  EXPECT_EQ(cluster_.Status("job").state(), control::v1::JOB_STATE_STARTING);
  EXPECT_TRUE(std::filesystem::is_empty(disk));
  ASSERT_EQ(mount(), 0);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED)
      << cluster_.Status("job").message();
  EXPECT_EQ(cluster_.Status("job").attempt(), 2);
  const CommandResult digest = cluster_.Megascale({"checkpoint", "digest", disk + "/job"});
  EXPECT_EQ(digest.out, cluster_.Digest("calm") + "\n");
}

TEST_F(StorageTest, AJobWaitsForAFileSystemThatIsReadOnlyWhenItsAgentStarts) {
  const std::string disk = MountDisk("disk", "24m");
  const auto remount = [&](uint64_t flags) {
    return ::mount("none", disk.c_str(), nullptr, MS_REMOUNT | flags, nullptr);
  };
  cluster_.StartAgent(0, 4);
  cluster_.Submit("job", {"checkpoint.directory=" + disk});
  ASSERT_TRUE(WaitUntil([&] { return cluster_.Status("job").has_last_checkpoint(); }, 60));
  cluster_.KillAgent(0);
  // Until the processes are gone, a file may be open.
  ASSERT_TRUE(WaitUntil([&] { return remount(MS_RDONLY) == 0; }, 60));
  cluster_.StartAgent(0, 4);
  ASSERT_TRUE(WaitUntil(
      [&] {
        const std::string message = cluster_.Status("job").message();
        return message.find("waits for storage (") != std::string::npos &&
               message.find("the file system is read-only") != std::string::npos;
      },
      60))
      << cluster_.Status("job").message();
  ASSERT_EQ(remount(0), 0);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED)
      << cluster_.Status("job").message();
  EXPECT_EQ(cluster_.Status("job").attempt(), 2);
}

TEST_F(StorageTest, ADirectoryOfAnotherDriversJobIsRefusedAndTakenOverOnlyOnRequest) {
  const std::string disk = cluster_.directory() + "/disk";
  std::filesystem::create_directory(disk);
  const std::string directory = "checkpoint.directory=" + disk;
  cluster_.StartAgent(0, 4);
  cluster_.Submit("job", {directory});
  ASSERT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string mine = cluster_.Megascale({"checkpoint", "digest", disk + "/job"}).out;

  Cluster other;
  other.StartDriver();
  other.StartAgent(0, 4);
  const std::vector<std::string> again = {"submit",   other.directory() + "/job.yaml",
                                          "--job-id", "job",
                                          "--set",    directory,
                                          "--set",    "train.seed=99"};
  ASSERT_EQ(other.Megascale(again).exit_code, 0);
  EXPECT_EQ(other.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  EXPECT_EQ(other.Status("job").reason(), "Refused");
  const std::string refused = other.Status("job").message();
  for (const std::string& part : {absl::StrCat("checkpoint.directory: ", disk, "/job: belongs to "),
                                  std::string("job job of the driver's log "),
                                  std::string("or take it over with --take-over")}) {
    EXPECT_NE(refused.find(part), std::string::npos) << part << " is not in " << refused;
  }
  EXPECT_EQ(cluster_.Megascale({"checkpoint", "digest", disk + "/job"}).out, mine);
  // A job whose directory is that of another job, which has none yet, or the driver's own.
  for (const char* within : {"/jobs/victim", "/log", ""}) {
    const std::string inside = cluster_.state_directory() + within;
    const CommandResult submitted =
        cluster_.Megascale({"submit", cluster_.directory() + "/job.yaml", "--job-id", "checkpoints",
                            "--set", "checkpoint.directory=" + inside});
    EXPECT_NE(submitted.exit_code, 0) << inside;
    EXPECT_NE(submitted.err.find(absl::StrCat("checkpoint.directory: ", inside,
                                              " lies in the driver's state directory ")),
              std::string::npos)
        << submitted.err;
  }

  std::vector<std::string> take = again;
  take.emplace_back("--take-over");
  ASSERT_EQ(other.Megascale(take).exit_code, 0);
  EXPECT_EQ(other.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED)
      << other.Status("job").message();
  EXPECT_NE(other.Megascale({"checkpoint", "digest", disk + "/job"}).out, mine);
  std::string aside;
  for (const auto& entry : std::filesystem::directory_iterator(disk + "/job")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("taken-over-", 0) == 0) aside = entry.path().string();
  }
  EXPECT_EQ(cluster_.Megascale({"checkpoint", "digest", aside}).out, mine);
}

TEST_F(StorageTest, ACheckpointOfAnotherRunIsNotRestoredInPlaceOfTheJobsOwn) {
  cluster_.StartAgent(0, 4);
  cluster_.Submit("calm");
  ASSERT_EQ(cluster_.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  cluster_.Submit("other", {"train.seed=99"});
  ASSERT_EQ(cluster_.WaitForEnd("other"), control::v1::JOB_STATE_SUCCEEDED);
  cluster_.Submit("job");
  ASSERT_TRUE(cluster_.WaitForStep("job", 70));
  cluster_.KillAgent(0);
  ASSERT_TRUE(WaitUntil(
      [&] { return cluster_.Status("job").state() == control::v1::JOB_STATE_RECOVERING; }, 60));
  const std::string newest = cluster_.Status("job").last_checkpoint().directory();
  std::filesystem::remove_all(newest);
  std::filesystem::copy(cluster_.Status("other").last_checkpoint().directory(), newest);
  const CommandResult verified = cluster_.Megascale({"checkpoint", "verify", newest});
  EXPECT_EQ(verified.exit_code, 1) << verified.out;
  cluster_.StartAgent(0, 4);
  ASSERT_TRUE(
      WaitUntil([&] { return EvidenceHas({"is the checkpoint of another run (job other "}); }, 60))
      << cluster_.Status("job").message();
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED)
      << cluster_.Status("job").message();
  EXPECT_EQ(cluster_.Digest("job"), cluster_.Digest("calm"));
}

TEST_F(StorageTest, ACancelledJobKeepsAsManyCheckpointsAsItMay) {
  cluster_.StartAgent(0, 4);
  for (const char* id : {"job0", "job1", "job2"}) {
    cluster_.Submit(id, {"train.steps=1000000", "checkpoint.interval=1", "checkpoint.keep=2"});
    ASSERT_TRUE(WaitUntil([&] { return cluster_.Status(id).last_checkpoint().step() > 20; }, 60));
    ASSERT_EQ(cluster_.Megascale({"cancel", id}).exit_code, 0);
    EXPECT_EQ(cluster_.WaitForEnd(id), control::v1::JOB_STATE_CANCELLED);
    EXPECT_EQ(CompleteSteps(id).size(), 2u) << id;
  }
}

// No process of it runs: the other machine deletes.
TEST_F(StorageTest, AJobThatIsCancelledWhileItWaitsKeepsAsManyCheckpointsAsItMay) {
  cluster_.StartAgent(0, 2);
  cluster_.StartAgent(1, 2);
  cluster_.Submit("job", {"train.steps=1000000", "checkpoint.interval=1", "checkpoint.keep=2"});
  ASSERT_TRUE(WaitUntil([&] { return cluster_.Status("job").last_checkpoint().step() > 20; }, 60));
  cluster_.KillAgent(0);
  ASSERT_TRUE(WaitUntil([&] { return cluster_.Status("job").reason() == "WaitingForSlots"; }, 60));
  ASSERT_EQ(cluster_.Megascale({"cancel", "job"}).exit_code, 0);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_CANCELLED);
  // A checkpoint that the killed agent completed and did not report counts for nobody.
  const std::vector<int64_t> steps = CompleteSteps("job");
  const int64_t newest = cluster_.Status("job").last_checkpoint().step();
  EXPECT_EQ(absl::c_count_if(steps, [&](int64_t step) { return step <= newest; }), 2)
      << absl::StrJoin(steps, ", ") << "; " << cluster_.Status("job").message();
  EXPECT_EQ(cluster_.Status("job").message().find("may be left"), std::string::npos)
      << cluster_.Status("job").message();
}

}  // namespace
}  // namespace megascale::e2e
