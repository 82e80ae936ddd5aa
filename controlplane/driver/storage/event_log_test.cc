#include "controlplane/driver/storage/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/file_system.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/epoch.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/storage/counted_log.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/driver/storage/log_backup.h"
#include "tests/soak.h"

namespace megascale::driver {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class RocksDbLogTest : public ::testing::Test {
 protected:
  explicit RocksDbLogTest(const std::string& below = "")
      : directory_(::testing::TempDir() + "/" +
                   ::testing::UnitTest::GetInstance()->current_test_info()->name() + below) {}

  std::unique_ptr<EventLog> Open() {
    auto log = OpenRocksDbLog(directory_);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  static std::vector<Event> Events() {
    return {Submitted("j", SpecOf(2, 2, 30)), Joined("n0", "a", 2), Joined("n1", "a", 2)};
  }
  static DriverState StateAfter(const LogContents& contents) {
    DriverState state = contents.state;
    for (const Event& event : contents.events) Apply(event, &state);
    return state;
  }

  std::filesystem::path NewestFile() const {
    std::filesystem::path newest;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      if (entry.path().extension() == ".log" && entry.path() > newest) newest = entry.path();
    }
    return newest;
  }
  // A crash in the middle of the last write: part of its record is missing.
  void TearNewestFile() const {
    const std::filesystem::path newest = NewestFile();
    std::filesystem::resize_file(newest, std::filesystem::file_size(newest) - 3);
  }
  // Damage of the length of the first record there: it seems to end behind the end of the file.
  void LengthenFirstRecord() const {
    std::fstream file(NewestFile(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4);
    file.write("\xff\xff", 2);
  }
  // Opens the directory directly, to read or change it without the log's knowledge.
  std::unique_ptr<rocksdb::DB> OpenRaw() const {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
    rocksdb::DB* opened = nullptr;
    EXPECT_TRUE(rocksdb::DB::Open(options, directory_, &opened).ok());
    return std::unique_ptr<rocksdb::DB>(opened);
  }
  std::string Get(const std::string& key) const {
    std::string value;
    EXPECT_TRUE(OpenRaw()->Get(rocksdb::ReadOptions(), key, &value).ok());
    return value;
  }
  void Put(const std::string& key, const std::string& value) const {
    EXPECT_TRUE(OpenRaw()->Put(rocksdb::WriteOptions(), key, value).ok());
  }
  void Delete(const std::string& key) const {
    EXPECT_TRUE(OpenRaw()->Delete(rocksdb::WriteOptions(), key).ok());
  }
  void Compact() const {
    EXPECT_TRUE(OpenRaw()->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr).ok());
  }
  uint64_t Bytes() const {
    uint64_t bytes = 0;
    std::error_code gone;  // RocksDB deletes files meanwhile
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      const auto size = entry.file_size(gone);
      if (!gone) bytes += size;
    }
    return bytes;
  }
  DriverState WriteSchema1() const {
    Event started;
    started.mutable_driver_started();
    const std::vector<Event> events = {started, Submitted("j", SpecOf(2, 2, 30)),
                                       Submitted("k", SpecOf(1, 1, 30)), Joined("n0", "a", 2)};
    Put("schema", "1");
    DriverState state;
    for (size_t i = 0; i < events.size(); ++i) {
      Apply(events[i], &state);
      if (i == 1) Put("snapshot", state.SerializeAsString());
      if (i > 1) Put(absl::StrFormat("event/%016x", i + 1), events[i].SerializeAsString());
    }
    return state;
  }

  const std::string directory_;
};

TEST_F(RocksDbLogTest, ReopenedLogHasAllEventsInOrder) {
  ASSERT_TRUE(Open()->Append(0, Events()).ok());
  ASSERT_TRUE(Open()->Append(3, {Lost("n0", "a")}).ok());
  const auto contents = Open()->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_THAT(contents->events, SizeIs(4));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(contents->events[i].SerializeAsString(), Events()[i].SerializeAsString());
  }
  EXPECT_TRUE(contents->events[3].has_node_lost());
}

TEST_F(RocksDbLogTest, SnapshotReplacesTheEventsBeforeIt) {
  DriverState state;
  for (const Event& event : Events()) Apply(event, &state);
  {
    const auto log = Open();
    ASSERT_TRUE(log->Append(0, Events()).ok());
    ASSERT_TRUE(log->WriteSnapshot(state).ok());
    ASSERT_TRUE(log->Append(3, {Lost("n0", "a")}).ok());
  }
  Apply(Lost("n0", "a"), &state);
  const auto contents = Open()->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_THAT(contents->events, SizeIs(1));
  EXPECT_EQ(StateAfter(*contents).SerializeAsString(), state.SerializeAsString());
}

TEST_F(RocksDbLogTest, SecondDriverIsRefusedWithOneClearLine) {
  const auto log = Open();
  const auto second = OpenRocksDbLog(directory_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("another driver has this state directory open"));
}

TEST_F(RocksDbLogTest, NewerSchemaIsRefused) {
  Open();
  {
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), directory_, &opened).ok());
    std::unique_ptr<rocksdb::DB> db(opened);
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), "schema", "6").ok());
  }
  const auto log = OpenRocksDbLog(directory_);
  EXPECT_EQ(log.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(log.status().message()),
              HasSubstr("was written by a newer megascale (schema 6; "));
}

// The directory is as a program of schema 1 leaves it: a snapshot after two events, and two more
// events.
TEST_F(RocksDbLogTest, ADirectoryOfSchema1IsUpgradedWithAllThatItHolds) {
  const DriverState before = WriteSchema1();
  {
    const auto log = Open();
    const auto contents = log->ReadAll();
    ASSERT_TRUE(contents.ok()) << contents.status();
    EXPECT_THAT(contents->events, SizeIs(0));
    EXPECT_EQ(contents->state.SerializeAsString(), before.SerializeAsString());
    // The older rules placed the jobs; this program's rules apply to later events.
    EXPECT_EQ(contents->state.rules(), 0);
    EXPECT_EQ(FindJob(contents->state, "k")->message(), "waits behind job j");
    ASSERT_TRUE(log->Append(4, {Lost("n0", "a")}).ok());
  }
  EXPECT_THAT(Open()->ReadAll()->events, SizeIs(1));
  EXPECT_EQ(Get("schema"), "5");
}

// As the last version leaves it: rules 3, a node that is lost, no epoch.
TEST_F(RocksDbLogTest, ADirectoryOfSchema2KeepsItsJobsAndBeginsAnEpochWithItsNextDriver) {
  DriverState before;
  {
    Event started;
    started.mutable_driver_started()->set_rules(3);
    const std::vector<Event> events = {started,
                                       Submitted("j", SpecOf(1, 1, 30)),
                                       Joined("n0", "a", 1),
                                       Joined("n1", "a", 1),
                                       Passed("j", 1, "n0"),
                                       Lost("n1", "a")};
    Put("schema", "2");
    for (size_t i = 0; i < events.size(); ++i) {
      Apply(events[i], &before);
      Put(absl::StrFormat("event/%016x", i + 1), events[i].SerializeAsString());
    }
  }
  DriverState state = Open()->ReadAll()->state;
  EXPECT_EQ(Get("schema"), "5");
  EXPECT_EQ(state.SerializeAsString(), before.SerializeAsString());
  EXPECT_EQ(FindJob(state, "j")->stage(), v1::STAGE_RUN);
  EXPECT_EQ(state.epoch(), 0);
  Event started = StartedEvent(state, {absl::FromUnixSeconds(100), "secret", false});
  started.set_time_unix_nanos(1);
  Apply(started, &state);
  EXPECT_GT(state.epoch(), 0);
  EXPECT_EQ(FindJob(state, "j")->stage(), v1::STAGE_RUN) << "its attempt goes on";
  EXPECT_EQ(FindNode(state, "n1")->lost_unix_nanos(), 1);
}

TEST_F(RocksDbLogTest, ACopyIsMadeWhileTheDriverRunsAndBeginsANewEpochWhenItIsRestored) {
  const std::string state_directory = directory_ + "/state";
  std::filesystem::create_directories(state_directory + "/jobs/later");
  DriverState state;
  auto log = *OpenRocksDbLog(state_directory + "/log");
  const std::vector<Event> events = {StartedEvent(state, {absl::FromUnixSeconds(100), "s", false}),
                                     Submitted("j", SpecOf(1, 1, 30)), Joined("n0", "a", 1),
                                     Passed("j", 1, "n0")};
  for (const Event& event : events) Apply(event, &state);
  ASSERT_TRUE(log->Append(0, events).ok());
  ASSERT_TRUE(BackUpLog(state_directory, directory_ + "/copy").ok());
  EXPECT_TRUE(CheckIsNoBackup(state_directory).ok());
  EXPECT_THAT(CheckIsNoBackup(directory_ + "/copy").message(),
              HasSubstr("megascale driver restore " + directory_ + "/copy"));
  EXPECT_EQ(BackUpLog(state_directory, directory_ + "/copy").status().code(),
            absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(log->Append(4, {Lost("n0", "a")}).ok()) << "the driver goes on";

  const absl::Time now = absl::FromUnixSeconds(200);
  EXPECT_EQ(RestoreLog(directory_ + "/copy", state_directory, now).status().code(),
            absl::StatusCode::kAlreadyExists);
  log.reset();
  std::filesystem::rename(state_directory + "/log", state_directory + "/log.lost");
  std::ofstream(state_directory + "/jobs.before-restore") << "in the way";
  EXPECT_FALSE(RestoreLog(directory_ + "/copy", state_directory, now).ok());
  EXPECT_FALSE(std::filesystem::exists(state_directory + "/log")) << "it can be tried again";
  std::filesystem::remove(state_directory + "/jobs.before-restore");
  std::ofstream(state_directory + "/size") << "of a backup that was moved away";
  EXPECT_EQ(RestoreLog(directory_ + "/copy", state_directory, now).value(), 1);
  EXPECT_TRUE(CheckIsNoBackup(state_directory).ok());
  std::ofstream(directory_ + "/copy/log.events") << "of a driver of an older version";
  EXPECT_TRUE(CheckIsNoBackup(directory_ + "/copy").ok()) << "its directory is a live one";
  const DriverState restored = (*OpenRocksDbLog(state_directory + "/log"))->ReadAll()->state;
  EXPECT_GT(restored.epoch(), state.epoch());
  EXPECT_EQ(restored.secret(), "s");
  EXPECT_EQ(FindJob(restored, "j")->stage(), v1::STAGE_FENCE);
  EXPECT_TRUE(std::filesystem::exists(state_directory + "/jobs.before-restore/later"));
  EXPECT_EQ(BackUpLog(directory_ + "/nothing", directory_ + "/copy2").status().code(),
            absl::StatusCode::kNotFound);
}

// As on a full disk: no file may have more bytes than the limit.
TEST_F(RocksDbLogTest, AFailedBackupLeavesNothingInTheWayOfTheNextOne) {
  const std::string state_directory = directory_ + "/state";
  {
    auto log = *OpenRocksDbLog(state_directory + "/log");
    ASSERT_TRUE(log->Append(0, {Submitted("j", SpecOf(1, 1, 30))}).ok());
  }
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t limit : {rlim_t{1}, rlim_t{10}}) {
    const rlimit small = {limit, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto failed = BackUpLog(state_directory, directory_ + "/copy");
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_THAT(std::string(failed.status().message()), HasSubstr(directory_ + "/copy/"));
    EXPECT_FALSE(std::filesystem::exists(directory_ + "/copy/log")) << limit;
  }
  EXPECT_EQ(BackUpLog(state_directory, directory_ + "/copy").value(), 1);
}

// RocksDB takes a log that was cut short for one that a crash tore, and drops the last record: the
// copy would be one without jobs.
TEST_F(RocksDbLogTest, ACopyThatWasCutShortIsRefused) {
  const std::string state_directory = directory_ + "/state";
  DriverState state;
  {
    auto log = *OpenRocksDbLog(state_directory + "/log");
    const std::vector<Event> events = {
        StartedEvent(state, {absl::FromUnixSeconds(100), "s", false}),
        Submitted("j", SpecOf(1, 1, 30))};
    ASSERT_TRUE(log->Append(0, events).ok());
  }
  const std::string copy = directory_ + "/copy";
  ASSERT_EQ(BackUpLog(state_directory, copy).value(), 1);
  for (const auto& entry : std::filesystem::directory_iterator(copy + "/log")) {
    if (entry.path().extension() != ".log") continue;
    std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) - 1);
  }
  for (const bool has_size : {true, false}) {
    if (!has_size) std::filesystem::remove(copy + "/size");
    const auto restored = RestoreLog(copy, directory_ + "/new", absl::FromUnixSeconds(200));
    EXPECT_EQ(restored.status().code(), absl::StatusCode::kDataLoss) << restored.status();
    EXPECT_FALSE(std::filesystem::exists(directory_ + "/new/log"));
  }
}

TEST_F(RocksDbLogTest, NothingIsRestoredFromOrToWhereOthersMayWrite) {
  const std::string state_directory = directory_ + "/state";
  DriverState state;
  {
    auto log = *OpenRocksDbLog(state_directory + "/log");
    ASSERT_TRUE(
        log->Append(0, {StartedEvent(state, {absl::FromUnixSeconds(100), "s", false})}).ok());
  }
  const std::string copy = directory_ + "/copy";
  const std::string made = directory_ + "/new";
  ASSERT_TRUE(BackUpLog(state_directory, copy).ok());
  std::filesystem::create_directory(made);
  const auto restore = [&] { return RestoreLog(copy, made, absl::FromUnixSeconds(200)).status(); };
  for (const std::string& open : {copy, made}) {
    std::filesystem::permissions(open, std::filesystem::perms::all);
    EXPECT_EQ(restore().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(restore().message()),
                HasSubstr(open.substr(open.rfind('/')) + ": has mode 0777"));
    std::filesystem::permissions(open, std::filesystem::perms::owner_all);
  }
  EXPECT_EQ(restore(), absl::OkStatus());
}

// All that a driver may have: jobs, nodes and what belongs to neither.
DriverState LargeState(int num_jobs) {
  DriverState state;
  Event started = StartedEvent(state, {absl::FromUnixSeconds(100), "secret", false});
  Apply(started, &state);
  Apply(Joined("n0", "a", 2), &state);
  for (int i = 0; i < num_jobs; ++i) {
    Event submitted = Submitted(absl::StrCat("j", i), SpecOf(1, 1, 30));
    submitted.mutable_job_submitted()->set_from_checkpoint(std::string(10'000, 'x'));
    Apply(submitted, &state);
  }
  return state;
}

// The limit stands for the 2 GiB that a message may have.
TEST_F(RocksDbLogTest, AStateLargerThanAMessageMayBeIsWrittenInPieces) {
  constexpr size_t kBytesMax = 16'000;
  const DriverState state = LargeState(40);
  ASSERT_GT(state.ByteSizeLong(), 20 * kBytesMax);
  {
    const auto log = OpenRocksDbLog(directory_, rocksdb::FileSystem::Default(), kBytesMax);
    ASSERT_TRUE(log.ok()) << log.status();
    ASSERT_TRUE((*log)->WriteSnapshot(state).ok());
  }
  const auto contents = ReadRocksDbLog(directory_);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->state.SerializeAsString(), state.SerializeAsString());
}

TEST_F(RocksDbLogTest, ASnapshotWritesTheRecordsThatChanged) {
  DriverState state = LargeState(100);
  { ASSERT_TRUE(Open()->WriteSnapshot(state).ok()); }
  const auto log = Open();
  ASSERT_TRUE(log->ReadAll().ok());
  const uint64_t before = Bytes();
  Event forgotten;
  forgotten.mutable_jobs_forgotten()->add_job_ids("j99");
  state.mutable_jobs(99)->set_state(megascale::control::v1::JOB_STATE_FAILED);
  state.mutable_jobs(99)->set_stage(v1::STAGE_ENDED);
  Apply(forgotten, &state);
  state.mutable_jobs(8)->set_message("changed");
  ASSERT_EQ(state.jobs_size(), 99);
  ASSERT_TRUE(log->WriteSnapshot(state).ok());
  EXPECT_LT(Bytes() - before, 100'000u) << "of a million";
  const auto contents = log->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->state.SerializeAsString(), state.SerializeAsString());
}

TEST_F(RocksDbLogTest, AMissingRecordIsDataLossThatNamesIt) {
  { ASSERT_TRUE(Open()->WriteSnapshot(LargeState(2)).ok()); }
  Delete("job/j1");
  const absl::Status status = Open()->ReadAll().status();
  EXPECT_EQ(status,
            absl::DataLossError(directory_ + ": job/j1 is missing; the log was damaged: restore it "
                                             "from a copy, or give another --state-dir"));
}

TEST_F(RocksDbLogTest, TheSnapshotOfSchema4IsReadAndKeptInPieces) {
  const DriverState state = LargeState(3);
  Put("schema", "4");
  Put("snapshot", state.SerializeAsString());
  EXPECT_EQ(ReadRocksDbLog(directory_)->state.SerializeAsString(), state.SerializeAsString());
  EXPECT_EQ(Open()->ReadAll()->state.SerializeAsString(), state.SerializeAsString());
  EXPECT_EQ(Get("schema"), "5");
  EXPECT_EQ(Get("job/j2"), state.jobs(2).SerializeAsString());
}

// With the production limit under `./dev soak`, which takes 2 GiB of memory; with a small one else.
TEST_F(RocksDbLogTest, AJobThatIsTooLargeStopsTheDriverWithItsLogWhole) {
  const size_t bytes_max = IsSoak() ? base::kMessageBytesMax : size_t{1} << 20;
  ASSERT_TRUE(Open()->Append(0, Events()).ok());
  DriverState state;
  for (const Event& event : Events()) Apply(event, &state);
  state.mutable_jobs(0)->set_message(std::string(bytes_max + 1, 'x'));
  EXPECT_EQ(OpenRocksDbLog(directory_, rocksdb::FileSystem::Default(), bytes_max)
                .value()
                ->WriteSnapshot(state)
                .code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Open()->ReadAll()->events, SizeIs(3));
}

TEST_F(RocksDbLogTest, ACrashInTheMiddleOfAnUpgradeLosesNothing) {
  const DriverState before = WriteSchema1();
  Open();
  TearNewestFile();
  EXPECT_EQ(Get("schema"), "1");
  const auto contents = Open()->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->state.SerializeAsString(), before.SerializeAsString());
  EXPECT_EQ(Get("schema"), "5");
}

TEST_F(RocksDbLogTest, ADirectoryThatIsDamagedIsNamed) {
  ASSERT_TRUE(Open()->Append(0, Events()).ok());
  Put("schema", "banana");
  EXPECT_EQ(
      OpenRocksDbLog(directory_).status(),
      absl::DataLossError(directory_ + ": its schema is 'banana' where a number was expected"));
  Delete("schema");
  EXPECT_EQ(
      OpenRocksDbLog(directory_).status(),
      absl::DataLossError(
          directory_ + ": has no schema version, but the entry event/0000000000000001; the log was "
                       "damaged: restore it from a copy, or give another --state-dir"));
  Put("schema", "5");
  Put("snapshot", "\xff\xff\xff");
  EXPECT_EQ(Open()->ReadAll().status(),
            absl::DataLossError(directory_ +
                                ": its snapshot cannot be read; the log was damaged: restore it "
                                "from a copy, or give another --state-dir"));
}

TEST_F(RocksDbLogTest, AFlippedByteIsDataLossThatNamesTheFile) {
  ASSERT_TRUE(Open()->Append(0, Events()).ok());
  Compact();
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(20);
    file.put('\x55');
  }
  absl::StatusOr<std::unique_ptr<EventLog>> log = OpenRocksDbLog(directory_);
  const absl::Status status = log.ok() ? (*log)->ReadAll().status() : log.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory_));
}

// Snapshots make events superfluous, and their disk space is freed.
TEST_F(RocksDbLogTest, ADirectoryStaysSmallHoweverManyEventsItSaw) {
  DriverState state;
  const auto log = Open();
  std::vector<Event> batch;
  uint64_t largest = 0;
  for (int64_t i = 0; i < 100'000; ++i) {
    batch.push_back(Joined("n0", absl::StrCat("incarnation ", i), 2));
    Apply(batch.back(), &state);
    if (batch.size() < 500) continue;
    ASSERT_TRUE(log->Append(state.num_events() - 500, batch).ok());
    batch.clear();
    if (state.num_events() % 1000 != 0) continue;
    ASSERT_TRUE(log->WriteSnapshot(state).ok());
    largest = std::max(largest, Bytes());
  }
  EXPECT_LT(largest, uint64_t{24} << 20);
  const auto contents = log->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_THAT(contents->events, SizeIs(0));
  EXPECT_EQ(contents->state.num_events(), 100'000);
}

TEST_F(RocksDbLogTest, TornTailLosesNothingThatWasAcknowledged) {
  ASSERT_TRUE(Open()->Append(0, Events()).ok());
  ASSERT_TRUE(Open()->Append(3, {Lost("n0", "a")}).ok());
  TearNewestFile();
  const auto contents = Open()->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_THAT(contents->events, SizeIs(3));
}

TEST_F(RocksDbLogTest, MissingEventIsDataLoss) {
  ASSERT_TRUE(Open()->Append(0, Events()).ok());
  ASSERT_TRUE(Open()->Append(4, {Lost("n0", "a")}).ok());
  EXPECT_EQ(Open()->ReadAll().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RocksDbLogTest, ALogWithoutItsFileCurrentIsRefusedAndKept) {
  ASSERT_TRUE(Open()->Append(0, Events()).ok());
  Compact();
  std::filesystem::rename(directory_ + "/CURRENT", directory_ + ".current");
  const absl::Status status = OpenRocksDbLog(directory_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("but no file CURRENT; the log was damaged"));
  std::filesystem::rename(directory_ + ".current", directory_ + "/CURRENT");
  EXPECT_THAT(Open()->ReadAll()->events, SizeIs(3));
}

class CountedLogTest : public RocksDbLogTest {
 protected:
  CountedLogTest() : RocksDbLogTest("/log") { std::filesystem::remove(count_path()); }
  std::string state_directory() const {
    return std::filesystem::path(directory_).parent_path().string();
  }
  std::string count_path() const { return CountPathOf(state_directory()); }
  std::unique_ptr<EventLog> OpenCounted() {
    return CountEvents(Open(), count_path(), &RealJobFiles());
  }
  absl::StatusCode ReadCode() { return OpenCounted()->ReadAll().status().code(); }
  // Writes the events of a driver, and then one more.
  void Write() {
    ASSERT_TRUE(Open()->ReadAll().ok());  // a file of its own has the schema
    const auto log = OpenCounted();
    ASSERT_TRUE(log->ReadAll().ok());
    std::vector<Event> events = Events();
    events.insert(events.begin(), StartedEvent({}, {absl::FromUnixSeconds(100), "secret", false}));
    ASSERT_TRUE(log->Append(0, events).ok());
    ASSERT_TRUE(log->Append(4, {Lost("n0", "a")}).ok());
  }
};

TEST_F(CountedLogTest, AWholeLogIsTakenAlsoAfterASnapshot) {
  Write();
  const auto log = OpenCounted();
  const auto contents = log->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_TRUE(log->WriteSnapshot(StateAfter(*contents)).ok());
  EXPECT_TRUE(log->ReadAll().ok());
  ASSERT_TRUE(log->Append(5, {Lost("n1", "a")}).ok());
  EXPECT_TRUE(log->ReadAll().ok());
}

// RocksDB takes damage of the last file's end, and of a length in it, for a write that a crash cut
// short.
TEST_F(CountedLogTest, ALogWhoseAcknowledgedEndWasLostIsRefusedInOneLine) {
  for (const bool cut : {true, false}) {
    std::filesystem::remove_all(directory_);
    std::filesystem::remove(count_path());
    Write();
    cut ? TearNewestFile() : LengthenFirstRecord();
    const uint64_t bytes = std::filesystem::file_size(NewestFile());
    EXPECT_EQ(CheckCount(state_directory(), &RealJobFiles()).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(std::filesystem::file_size(NewestFile()), bytes) << "what is left stays";
    const absl::Status status = OpenCounted()->ReadAll().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("the driver's log has ", cut ? 4 : 0, " events in epoch ")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("make one of a copy with `megascale"));
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("\n")));
    EXPECT_TRUE(Open()->ReadAll().ok()) << "it is taken for a torn one";

    const std::string copy = state_directory() + "/copy";
    std::filesystem::remove_all(copy);
    ASSERT_TRUE(BackUpLog(state_directory(), copy).ok());
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(RestoreLog(copy, state_directory(), absl::FromUnixSeconds(200)).ok());
    EXPECT_EQ(ReadCode(), absl::StatusCode::kOk) << "somebody declares what is left";
  }
}

TEST_F(CountedLogTest, AnOlderCopyIsRefusedUntilItIsRestored) {
  const std::string state_directory = this->state_directory() + "/state";
  const std::string log_directory = state_directory + "/log";
  const auto open = [&] {
    return CountEvents(*OpenRocksDbLog(log_directory), CountPathOf(state_directory),
                       &RealJobFiles());
  };
  auto log = open();
  ASSERT_TRUE(log->ReadAll().ok());
  ASSERT_TRUE(log->Append(0, {StartedEvent({}, {absl::FromUnixSeconds(100), "secret", false}),
                              Submitted("j", SpecOf(2, 2, 30))})
                  .ok());
  ASSERT_TRUE(BackUpLog(state_directory, directory_ + "/copy").ok());
  ASSERT_TRUE(log->Append(2, {Joined("n0", "a", 2)}).ok());
  log.reset();
  std::filesystem::remove_all(log_directory);
  std::filesystem::copy(directory_ + "/copy/log", log_directory,
                        std::filesystem::copy_options::recursive);
  EXPECT_EQ(open()->ReadAll().status().code(), absl::StatusCode::kDataLoss);

  std::filesystem::remove_all(log_directory);
  ASSERT_TRUE(RestoreLog(directory_ + "/copy", state_directory, absl::FromUnixSeconds(200)).ok());
  log = open();
  EXPECT_TRUE(log->ReadAll().ok()) << "it begins a new epoch";
  ASSERT_TRUE(log->Append(3, {Joined("n0", "a", 2)}).ok());
  EXPECT_TRUE(log->ReadAll().ok());
  log.reset();
  std::filesystem::remove_all(log_directory);
  std::filesystem::copy(directory_ + "/copy/log", log_directory,
                        std::filesystem::copy_options::recursive);
  EXPECT_EQ(open()->ReadAll().status().code(), absl::StatusCode::kDataLoss)
      << "it is of an older epoch";
}

TEST_F(CountedLogTest, ACountThatIsMissingOrDamagedClaimsNoLoss) {
  Write();
  TearNewestFile();
  const std::string text = RealJobFiles().ReadAt(count_path(), 0, 100).value();
  for (const std::string& damaged :
       {std::string(), text.substr(0, text.size() / 2), "9" + text, std::string("banana\n")}) {
    std::ofstream(count_path()) << damaged;
    EXPECT_EQ(ReadCode(), absl::StatusCode::kOk) << damaged;
  }
  std::ofstream(count_path()) << text;
  EXPECT_EQ(ReadCode(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace megascale::driver
