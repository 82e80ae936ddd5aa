#include "controlplane/driver/shell/shared_record.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/testing/test_events.h"

namespace megascale::driver {
namespace {

// Job "j" of 600 ranks on 150 nodes, of which a record is made after each event.
class SharedRecordTest : public ::testing::Test {
 protected:
  static constexpr int kNodes = 150;
  static constexpr int kRanks = 4 * kNodes;

  void SetUp() override {
    Event started;
    started.mutable_driver_started()->set_rules(kRules);
    Apply(started, &state_, &index_);
    for (int i = 0; i < kNodes; ++i) Apply(Joined(NodeId(i), "a", 4), &state_, &index_);
    Apply(Submitted("j", SpecOf(kRanks, 1, 30)), &state_, &index_);
    record_ = std::make_unique<SharedRecord>(job(), index_.ListsOf("j"), nullptr);
    ASSERT_EQ(job().placements_size(), kRanks);
  }

  static std::string NodeId(int i) { return absl::StrCat("n", i); }
  const JobRecord& job() const { return *index_.Find(state_, "j"); }

  // Returns how many elements of lists were copied after the event.
  int64_t Do(const Event& event) {
    EXPECT_TRUE(Apply(event, &state_, &index_)) << event.ShortDebugString();
    record_ = std::make_unique<SharedRecord>(job(), index_.ListsOf("j"), record_.get());
    EXPECT_EQ(record_->Whole().SerializeAsString(), job().SerializeAsString());
    return record_->num_copied();
  }
  void Run() {
    for (int i = 0; i < kNodes; ++i) {
      EXPECT_LE(Do(Passed("j", 1, NodeId(i))), 256) << "those that passed lately";
    }
    ASSERT_EQ(job().stage(), v1::STAGE_RUN);
  }

  DriverState state_;
  JobIndex index_{state_};
  std::unique_ptr<SharedRecord> record_;
};

TEST_F(SharedRecordTest, ARoundCopiesOfTheListsWhatWasAddedToThem) {
  Run();
  EXPECT_EQ(Do(Started(1)), 0);
  EXPECT_EQ(Do(Progressed(1, 3)), 0);
  EXPECT_EQ(Do(Manifest(1, 10)), 0);
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_LE(Do(Ended(1, rank, false, 30)), 256);
  EXPECT_EQ(record_->Head().placements_size(), 0);
  EXPECT_EQ(record_->Head().submitted().job_id(), "j");
}

TEST_F(SharedRecordTest, AListThatBecameShorterIsCopiedAnew) {
  Run();
  Do(Lost(NodeId(7), "a"));
  for (int i = 0; i < 4; ++i) Do(Fenced(1, NodeId(i), {{4 * i, 5}}));
  EXPECT_GE(Do(Lost(NodeId(1), "a")), kRanks) << "node n1 is not fenced any more";
  EXPECT_LE(Do(Fenced(1, NodeId(4), {})), 256);
}

TEST_F(SharedRecordTest, SnapshotsThatAreDroppedAreDroppedForReadersToo) {
  Run();
  Do(Lost(NodeId(7), "a"));
  for (int i = 0; i < 4; ++i) Do(Fenced(1, NodeId(i), {{4 * i, 5}}));
  ASSERT_EQ(record_->Whole().fenced(2).snapshots_size(), 1);
  Do(Evicted(NodeId(2), ""));
  EXPECT_EQ(record_->Whole().fenced(2).snapshots_size(), 0);
}

TEST_F(SharedRecordTest, AnEarlierRecordStaysAsItIs) {
  Run();
  const std::unique_ptr<SharedRecord> before = std::move(record_);
  record_ = std::make_unique<SharedRecord>(job(), index_.ListsOf("j"), before.get());
  const std::string bytes = job().SerializeAsString();
  Do(Ended(1, 5, false, 30));
  Do(Lost(NodeId(1), "a"));
  EXPECT_EQ(before->Whole().SerializeAsString(), bytes) << "read late";
}

TEST_F(SharedRecordTest, AJobThatHasEndedIsKeptInOnePiece) {
  Run();
  Do(Cancelled(false));
  for (int rank = 0; rank < kRanks; ++rank) Do(Ended(1, rank, true, 7));
  for (int i = 0; i < kNodes; ++i) Do(Fenced(1, NodeId(i), {}));
  ASSERT_EQ(job().stage(), v1::STAGE_ENDED);
  EXPECT_EQ(&record_->Whole(), &record_->Head());
}

}  // namespace
}  // namespace megascale::driver
