// The contract of every EventLog, whatever happens to its disk: one suite for RocksDB over failing
// files and for the simulated disk. Its core: after a failure of any write or sync, and a crash,
// the reopened log holds a prefix of the appended events that includes every acknowledged one.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/storage/event_log.h"
#include "controlplane/driver/storage/testing/simulated_disk.h"
#include "controlplane/driver/storage/testing/test_faulty_files.h"

namespace megascale::driver {
namespace {

using Harm = FaultyFiles::Harm;

// A store and the disk under it.
class Bench {
 public:
  virtual ~Bench() = default;
  virtual absl::StatusOr<std::unique_ptr<EventLog>> Open() = 0;
  // Makes every write or sync from the n-th on fail as `harm` says.
  virtual void HarmFrom(int64_t effect, Harm harm) = 0;
  virtual int64_t num_effects() const = 0;
  // Opens a store that takes no record of more bytes.
  virtual absl::StatusOr<std::unique_ptr<EventLog>> OpenFor(size_t record_bytes_max) = 0;
  // Simulates a power failure. `torn`: the fraction of unsynced data that is left, 0 to 1.
  virtual void Crash(double torn) = 0;
};

class RocksDbBench : public Bench {
 public:
  explicit RocksDbBench(std::string directory) : directory_(std::move(directory)) {}
  absl::StatusOr<std::unique_ptr<EventLog>> Open() override {
    return OpenRocksDbLog(directory_, files_);
  }
  absl::StatusOr<std::unique_ptr<EventLog>> OpenFor(size_t record_bytes_max) override {
    return OpenRocksDbLog(directory_, files_, record_bytes_max);
  }
  void HarmFrom(int64_t effect, Harm harm) override { files_->HarmFrom(effect, harm); }
  int64_t num_effects() const override { return files_->num_effects(); }
  void Crash(double torn) override { files_->Crash(torn); }

 private:
  const std::string directory_;
  const std::shared_ptr<FaultyFiles> files_ = std::make_shared<FaultyFiles>();
};

class SimulatedBench : public Bench {
 public:
  SimulatedBench() {
    disk_.SetFaults([this](absl::string_view effect) { return Next(effect); },
                    [this](size_t unsynced) {
                      return static_cast<size_t>(torn_ * static_cast<double>(unsynced));
                    });
  }
  absl::StatusOr<std::unique_ptr<EventLog>> Open() override { return disk_.OpenLog(); }
  absl::StatusOr<std::unique_ptr<EventLog>> OpenFor(size_t record_bytes_max) override {
    disk_.SetRecordBytesMax(record_bytes_max);
    return disk_.OpenLog();
  }
  void HarmFrom(int64_t effect, Harm harm) override {
    harm_from_ = num_effects_ + effect;
    harm_ = harm;
  }
  int64_t num_effects() const override { return num_effects_; }
  void Crash(double torn) override {
    torn_ = torn;
    disk_.Crash();
    harm_ = Harm::kNone;
    num_effects_ = 0;
  }

 private:
  SimulatedDisk::Fate Next(absl::string_view effect) {
    const bool due = harm_ != Harm::kNone && num_effects_ >= harm_from_;
    ++num_effects_;
    const bool spared = harm_ == Harm::kSyncFails && effect.substr(0, 4) != "sync";
    return due && !spared ? SimulatedDisk::Fate::kFails : SimulatedDisk::Fate::kDone;
  }

  SimulatedDisk disk_;
  double torn_ = 0;
  int64_t num_effects_ = 0;
  int64_t harm_from_ = 0;
  Harm harm_ = Harm::kNone;
};

class LogStoreContractTest : public ::testing::TestWithParam<const char*> {
 protected:
  // A new store on a new disk.
  std::unique_ptr<Bench> NewBench() {
    if (std::string(GetParam()) == "Simulated") return std::make_unique<SimulatedBench>();
    const std::string directory = absl::StrCat(
        ::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->line(),
        "-", ++num_benches_);
    std::filesystem::remove_all(directory);
    return std::make_unique<RocksDbBench>(directory);
  }

  static std::vector<Event> Batch(int number) {
    std::vector<Event> events;
    for (int i = 0; i < 1 + number % 3; ++i) {
      events.push_back(Joined(absl::StrCat("n", number), absl::StrCat("incarnation ", i), 2));
    }
    return events;
  }

  static DriverState StateAfter(const LogContents& contents) {
    DriverState state = contents.state;
    for (const Event& event : contents.events) Apply(event, &state);
    return state;
  }

  // Appends batches, with a snapshot after every fourth, until the store fails.
  struct Written {
    std::vector<Event> appended;
    int64_t acknowledged = 0;
    absl::Status failure;
  };
  static Written WriteUntilItFails(EventLog* log) {
    Written written;
    DriverState state;
    for (int number = 0; number < 10; ++number) {
      const std::vector<Event> batch = Batch(number);
      const int64_t before = static_cast<int64_t>(written.appended.size());
      written.appended.insert(written.appended.end(), batch.begin(), batch.end());
      written.failure = log->Append(before, batch);
      if (!written.failure.ok()) return written;
      written.acknowledged = static_cast<int64_t>(written.appended.size());
      for (const Event& event : batch) Apply(event, &state);
      if (number % 4 != 3) continue;
      written.failure = log->WriteSnapshot(state);
      if (!written.failure.ok()) return written;
    }
    return written;
  }

  static void ExpectPrefix(const LogContents& contents, const Written& written) {
    const DriverState state = StateAfter(contents);
    ASSERT_GE(state.num_events(), written.acknowledged);
    ASSERT_LE(state.num_events(), static_cast<int64_t>(written.appended.size()));
    DriverState expected;
    for (int64_t i = 0; i < state.num_events(); ++i) {
      Apply(written.appended[static_cast<size_t>(i)], &expected);
    }
    EXPECT_EQ(state.SerializeAsString(), expected.SerializeAsString());
  }

  int num_benches_ = 0;
};

TEST_P(LogStoreContractTest, NewLogIsEmpty) {
  const auto bench = NewBench();
  const auto log = bench->Open();
  ASSERT_TRUE(log.ok()) << log.status();
  const auto contents = (*log)->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->state.num_events(), 0);
  EXPECT_TRUE(contents->events.empty());
}

TEST_P(LogStoreContractTest, EverythingIsThereAfterACrash) {
  const auto bench = NewBench();
  const Written written = WriteUntilItFails(bench->Open()->get());
  ASSERT_TRUE(written.failure.ok()) << written.failure;
  bench->Crash(0);
  const auto log = bench->Open();
  ASSERT_TRUE(log.ok()) << log.status();
  const auto contents = (*log)->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(written.acknowledged, static_cast<int64_t>(written.appended.size()));
  ExpectPrefix(*contents, written);
  EXPECT_GT(contents->state.num_events(), 0) << "there was a snapshot";
  EXPECT_FALSE(contents->events.empty()) << "there were events after it";
}

TEST_P(LogStoreContractTest, AfterAFailureAnywhereTheLogIsAPrefixWithAllThatWasAcknowledged) {
  for (const Harm harm : {Harm::kWriteFails, Harm::kShortWrite, Harm::kNoSpace, Harm::kSyncFails}) {
    bool failed = true;
    for (int64_t effect = 0; failed; ++effect) {
      const double torn = std::array{0.0, 0.6, 1.0}[static_cast<size_t>(effect % 3)];
      SCOPED_TRACE(
          absl::StrCat("harm ", static_cast<int>(harm), " from effect ", effect, ", torn ", torn));
      ASSERT_LT(effect, 200);
      const auto bench = NewBench();
      Written written;
      {
        auto log = bench->Open();
        ASSERT_TRUE(log.ok()) << log.status();
        bench->HarmFrom(effect, harm);
        written = WriteUntilItFails(log->get());
        failed = !written.failure.ok();
      }
      bench->Crash(torn);
      const auto log = bench->Open();
      ASSERT_TRUE(log.ok()) << log.status();
      const auto contents = (*log)->ReadAll();
      ASSERT_TRUE(contents.ok()) << contents.status();
      ExpectPrefix(*contents, written);
      // The reopened log accepts more events.
      const int64_t num_events = StateAfter(*contents).num_events();
      ASSERT_TRUE((*log)->Append(num_events, Batch(99)).ok());
      if (HasFatalFailure()) return;
    }
  }
}

// Each event is smaller than the job that they make, so the snapshot is the first to fail.
TEST_P(LogStoreContractTest, ARecordThatIsTooLargeLeavesTheLogAsItWas) {
  constexpr size_t kBytesMax = 2000;
  Written written;
  written.appended = {Submitted("small", SpecOf(1, 1, 30)), Submitted("large", SpecOf(1, 1, 30))};
  written.appended[1].mutable_job_submitted()->set_from_checkpoint(std::string(1500, 'x'));
  Event cancel = Cancelled(false);
  cancel.mutable_cancel_requested()->set_job_id("large");
  cancel.mutable_cancel_requested()->mutable_grace()->set_seconds(1);
  written.appended.push_back(cancel);
  DriverState state;
  for (const Event& event : written.appended) {
    Apply(event, &state);
    ASSERT_LE(event.ByteSizeLong(), kBytesMax);
  }
  state.mutable_jobs(1)->set_message(std::string(1500, 'y'));
  written.acknowledged = 3;
  const auto bench = NewBench();
  {
    const auto log = bench->OpenFor(kBytesMax);
    ASSERT_TRUE(log.ok()) << log.status();
    ASSERT_TRUE((*log)->Append(0, written.appended).ok());
    EXPECT_EQ((*log)->WriteSnapshot(state).code(), absl::StatusCode::kResourceExhausted);
    Event larger = written.appended[1];
    larger.mutable_job_submitted()->set_from_checkpoint(std::string(3000, 'x'));
    EXPECT_EQ((*log)->Append(3, {larger}).code(), absl::StatusCode::kResourceExhausted);
  }
  bench->Crash(0);
  const auto contents = bench->Open().value()->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->events.size(), 3u);
  ExpectPrefix(*contents, written);
}

INSTANTIATE_TEST_SUITE_P(Stores, LogStoreContractTest, ::testing::Values("RocksDb", "Simulated"),
                         [](const auto& info) { return std::string(info.param); });

TEST(RocksDbFaultsTest, FullDiskIsNamedAsSuch) {
  const std::string directory = ::testing::TempDir() + "/full";
  const auto files = std::make_shared<FaultyFiles>();
  auto log = OpenRocksDbLog(directory, files);
  ASSERT_TRUE(log.ok()) << log.status();
  files->HarmFrom(0, Harm::kNoSpace);
  const absl::Status status = (*log)->Append(0, {Joined("n0", "a", 2)});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), absl::StrCat("write ", directory, ": IO error: No space left on ",
                                           "device: injected", "; free some space there"));
}

TEST(RocksDbFaultsTest, ANewLogOnAFullDiskAsksForSpace) {
  const auto files = std::make_shared<FaultyFiles>();
  files->HarmFrom(0, Harm::kNoSpace);
  const auto log = OpenRocksDbLog(::testing::TempDir() + "/new-on-full", files);
  EXPECT_EQ(log.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::EndsWith(log.status().message(),
                             "; free some space there, or choose another directory"))
      << log.status();
}

TEST(RocksDbFaultsTest, ALogThatFailedTakesNothingMore) {
  const auto files = std::make_shared<FaultyFiles>();
  auto log = OpenRocksDbLog(::testing::TempDir() + "/failed", files);
  ASSERT_TRUE(log.ok()) << log.status();
  files->HarmFrom(0, Harm::kSyncFails);
  EXPECT_EQ((*log)->Append(0, {Joined("n0", "a", 2)}).code(), absl::StatusCode::kUnavailable);
  files->HarmFrom(0, Harm::kNone);
  EXPECT_FALSE((*log)->Append(1, {Joined("n1", "a", 2)}).ok());
}

}  // namespace
}  // namespace megascale::driver
