#include "controlplane/driver/retention/job_retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/testing/test_events.h"

namespace megascale::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Jobs j1 to j5, of which j1 to j4 were cancelled at hours 1 to 4.
DriverState FourEnded() {
  DriverState state;
  for (int i = 1; i <= 5; ++i) Apply(Submitted(absl::StrCat("j", i), SpecOf(1, 1, 30)), &state);
  for (int i = 1; i <= 4; ++i) {
    Event cancel = Cancelled(false);
    cancel.mutable_cancel_requested()->set_job_id(absl::StrCat("j", i));
    cancel.set_time_unix_nanos(absl::ToInt64Nanoseconds(absl::Hours(i)));
    Apply(cancel, &state);
  }
  return state;
}

absl::Time AtHour(int hour) { return absl::UnixEpoch() + absl::Hours(hour); }

TEST(JobRetentionTest, ForgetsWhatIsNeitherNewNorYoung) {
  const DriverState state = FourEnded();
  EXPECT_THAT(JobsToForget(state, {2, absl::Hours(10)}, AtHour(11)), ElementsAre("j1"));
  EXPECT_THAT(JobsToForget(state, {2, absl::Hours(10)}, AtHour(100)), ElementsAre("j1", "j2"));
  EXPECT_THAT(JobsToForget(state, {0, absl::ZeroDuration()}, AtHour(4)),
              ElementsAre("j1", "j2", "j3", "j4"));
}

TEST(JobRetentionTest, KeepsWhatIsOldButAmongTheNewestAndWhatIsYoung) {
  const DriverState state = FourEnded();
  EXPECT_THAT(JobsToForget(state, {4, absl::ZeroDuration()}, AtHour(100)), IsEmpty());
  EXPECT_THAT(JobsToForget(state, {0, absl::Hours(10)}, AtHour(10)), IsEmpty());
}

TEST(JobRetentionTest, RecordsOfEndedJobsAreBoundedInBytesWhateverTheOtherRulesSay) {
  const DriverState state = FourEnded();
  size_t bytes = 0;  // of the three newest
  for (const char* id : {"j2", "j3", "j4"}) bytes += FindJob(state, id)->ByteSizeLong();
  const JobRetention keeps_all = {.newest = 100, .age = absl::Hours(100), .bytes = bytes};
  EXPECT_THAT(JobsToForget(state, keeps_all, AtHour(5)), ElementsAre("j1"));
  EXPECT_THAT(JobsToForget(state, {100, absl::Hours(100), bytes - 1}, AtHour(5)),
              ElementsAre("j1", "j2"));
}

TEST(JobRetentionTest, ForgettingTakesTheRecordOfEndedJobsOnly) {
  DriverState state = FourEnded();
  Event forgotten;
  for (const char* id : {"j1", "j5", "nobody"}) forgotten.mutable_jobs_forgotten()->add_job_ids(id);
  EXPECT_TRUE(Apply(forgotten, &state));
  EXPECT_EQ(FindJob(state, "j1"), nullptr);
  EXPECT_NE(FindJob(state, "j5"), nullptr) << "it has not ended";
  EXPECT_EQ(state.jobs_size(), 4);
  EXPECT_FALSE(Apply(forgotten, &state));
}

TEST(NodeRetentionTest, ForgetsNodesThatWereLostLongAgoAndHoldNothing) {
  DriverState state;
  const auto at = [&](int hour, Event event) {
    event.set_time_unix_nanos(absl::ToInt64Nanoseconds(absl::Hours(hour)));
    return Apply(event, &state);
  };
  Event started;
  started.mutable_driver_started()->set_rules(kRules);
  at(0, started);
  for (const std::string id : {"n0", "n1", "n2", "n3", "n4"}) at(1, Joined(id, "a", 1));
  at(1, Submitted("j", SpecOf(1, 1, 30)));  // on n0
  at(1, Evicted("n1", "disk"));
  Event quarantined;
  quarantined.mutable_node_quarantined()->set_node_id("n4");
  quarantined.mutable_node_quarantined()->set_evidence("its memory has errors");
  at(1, quarantined);
  for (const std::string id : {"n0", "n1", "n2", "n4"}) at(2, Lost(id, "a"));
  EXPECT_THAT(NodesToForget(state, AtHour(25)), IsEmpty());
  EXPECT_THAT(NodesToForget(state, AtHour(26)), ElementsAre("n2"))
      << "a job has ranks on n0 or waits for it, an operator evicted n1, n3 lives, and n4 may be "
         "under repair";
  at(30, Joined("n2", "b", 1));
  EXPECT_THAT(NodesToForget(state, AtHour(60)), IsEmpty());
  EXPECT_THAT(NodesToForget(state, AtHour(30 * 24 + 1)), IsEmpty());
  EXPECT_THAT(NodesToForget(state, AtHour(30 * 24 + 2)), ElementsAre("n4"))
      << "it did not come back from its repair";
}

}  // namespace
}  // namespace megascale::driver
