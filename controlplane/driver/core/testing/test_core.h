// A fixture for tests of the core: it feeds events to a core and replays them when the test ends.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controlplane/driver/core/desired_states.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/testing/test_events.h"

namespace megascale::driver {

// A core with job "j" of 4 ranks and nodes n0, n1 of 2 slots each. It keeps its events and replays
// them at the end: every prefix must give the state that the test had then, and two prints of
// desired states must differ if and only if the desired states do; and whoever is to be told
// something else must be noted.
class DriverCoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Event started;
    started.mutable_driver_started()->set_rules(kRules);
    Do(std::move(started));
  }

  bool Do(Event event) {
    event.set_time_unix_nanos(1'000'000'000 * ++seconds_);
    const bool accepted = Apply(event, &state_);
    events_.push_back(std::move(event));
    states_.push_back(state_.SerializeAsString());
    return accepted;
  }

  void TearDown() override {
    DriverState replayed;
    JobIndex index(replayed);  // so only the jobs that events touch are looked at
    for (size_t i = 0; i < events_.size(); ++i) {
      Apply(events_[i], &replayed, &index);
      ASSERT_EQ(replayed.SerializeAsString(), states_[i]) << "after event " << i;
      CheckListeners(replayed, &index, i);
      // A snapshot in between changes nothing.
      ASSERT_TRUE(replayed.ParseFromString(states_[i]));
      if (i > 0) CheckPrints(i);
    }
  }

  // Checks that an agent's print changes if and only if its desired state does.
  void CheckPrints(size_t event) const {
    DriverState before;
    DriverState after;
    ASSERT_TRUE(before.ParseFromString(states_[event - 1]) &&
                after.ParseFromString(states_[event]));
    const DesiredStates earlier(before);
    const DesiredStates later(after);
    const auto told = [](const DesiredStates& states, const std::string& node_id) {
      megascale::agent::v1::DesiredState desired = states.For(node_id);
      desired.clear_version();
      return desired.SerializeAsString();
    };
    for (const NodeRecord& node : after.nodes()) {
      const std::string& node_id = node.hello().node_id();
      EXPECT_EQ(earlier.Fingerprint(node_id) == later.Fingerprint(node_id),
                told(earlier, node_id) == told(later, node_id))
          << node_id << " after event " << event;
    }
  }

  // Checks that the agents whose prints changed by an event, of which `replayed` is the state after
  // it, are noted.
  void CheckListeners(const DriverState& replayed, JobIndex* index, size_t event) {
    const JobIndex::Touched touched = index->TakeTouched();
    const std::set<std::string> listeners = parts_.Update({replayed, *index}, touched);
    const DesiredStates kept(replayed, *index, &parts_);
    const DesiredStates anew(replayed);
    for (const NodeRecord& node : replayed.nodes()) {
      const std::string& node_id = node.hello().node_id();
      const std::string print = anew.Fingerprint(node_id);
      EXPECT_EQ(kept.Fingerprint(node_id), print) << node_id << " after event " << event;
      const bool is_noted = touched.all_node_records || listeners.count(node_id) > 0;
      EXPECT_TRUE(prints_[node_id] == print || is_noted) << node_id << " after event " << event;
      prints_[node_id] = print;
    }
  }

  void SubmitAndJoin() {
    Do(Submitted("j", SpecOf(2, 2, 30)));
    Do(Joined("n0", "a", 2));
    Do(Joined("n1", "a", 2));
  }

  void Run() {
    SubmitAndJoin();
    Do(Passed("j", 1, "n0"));
    Do(Passed("j", 1, "n1"));
    ASSERT_EQ(job().stage(), v1::STAGE_RUN);
  }

  void KillRank(int64_t attempt) {
    Do(Failed(attempt, 0, "n0", megascale::telemetry::v1::FAILURE_CLASS_EXITED));
    Do(Fenced(attempt, "n0", {}));
    Do(Fenced(attempt, "n1", {}));
  }

  void BackoffElapsed(int64_t attempt) {
    Event event;
    event.mutable_backoff_elapsed()->set_job_id("j");
    event.mutable_backoff_elapsed()->set_attempt(attempt);
    Do(event);
  }

  const JobRecord& job() const { return *FindJob(state_, "j"); }
  megascale::agent::v1::DesiredJob Desired(const std::string& node_id) const {
    const megascale::agent::v1::DesiredState desired = DesiredFor(state_, node_id);
    return desired.jobs_size() == 0 ? megascale::agent::v1::DesiredJob() : desired.jobs(0);
  }
  std::vector<std::string> PlacedNodes() const {
    std::vector<std::string> nodes;
    for (const auto& placement : job().placements()) nodes.push_back(placement.node_id());
    return nodes;
  }

  DriverState state_;
  std::vector<Event> events_;
  std::vector<std::string> states_;
  int64_t seconds_ = 0;
  // What the replay keeps:
  DesiredParts parts_;
  std::map<std::string, std::string> prints_;  // by node
};

}  // namespace megascale::driver
