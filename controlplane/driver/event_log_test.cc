#include "controlplane/driver/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>

#include "controlplane/driver/driver_core.h"
#include "controlplane/driver/test_events.h"

namespace megascale::driver {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class RocksDbLogTest : public ::testing::Test {
 protected:
  RocksDbLogTest()
      : directory_(::testing::TempDir() + "/" +
                   ::testing::UnitTest::GetInstance()->current_test_info()->name()) {}

  std::unique_ptr<LogStore> Open() {
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
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), "schema", "2").ok());
  }
  const auto log = OpenRocksDbLog(directory_);
  EXPECT_EQ(log.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("was written by a newer megascale"));
}

TEST_F(RocksDbLogTest, TornTailLosesNothingThatWasAcknowledged) {
  ASSERT_TRUE(Open()->Append(0, Events()).ok());
  ASSERT_TRUE(Open()->Append(3, {Lost("n0", "a")}).ok());
  // A crash in the middle of the last write: part of its record is missing.
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (entry.path().extension() == ".log" && entry.path() > newest) newest = entry.path();
  }
  std::filesystem::resize_file(newest, std::filesystem::file_size(newest) - 3);
  const auto contents = Open()->ReadAll();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_THAT(contents->events, SizeIs(3));
}

TEST_F(RocksDbLogTest, MissingEventIsDataLoss) {
  ASSERT_TRUE(Open()->Append(0, Events()).ok());
  ASSERT_TRUE(Open()->Append(4, {Lost("n0", "a")}).ok());
  EXPECT_EQ(Open()->ReadAll().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace megascale::driver
