// A fixture for tests of what the driver makes of agents' reports and silence.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/detection/agent_monitor.h"

namespace megascale::driver {

// A monitor with a core that has job "j" of 4 ranks on n0 and n1. Events are applied at once.
class AgentMonitorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Apply(Submitted("j", SpecOf(2, 2, 30)), &state_);
    Hello("n0", "a");
    Hello("n1", "a");
  }

  std::vector<Event> Take(std::vector<Event> events) {
    for (const Event& event : events) Apply(event, &state_);
    return events;
  }
  std::vector<Event> Hello(const std::string& node_id, const std::string& incarnation) {
    return Take(monitor_.OnHello(state_, HelloOf(node_id, incarnation, 2), now_));
  }
  std::vector<Event> Tick() { return Take(monitor_.OnTick(state_, now_)); }
  std::vector<Event> Report(const std::string& node_id,
                            const megascale::agent::v1::ActualState& report) {
    return Take(monitor_.OnReport(state_, node_id, report, now_));
  }

  // Lets time pass in which the driver ticks and both agents repeat their reports.
  std::vector<Event> Pass(absl::Duration duration) {
    std::vector<Event> all;
    const absl::Duration end = now_ + duration;
    while (now_ < end) {
      now_ += absl::Milliseconds(500);
      for (const auto& [node_id, report] : reports_) {
        const std::vector<Event> events = Report(node_id, report);
        all.insert(all.end(), events.begin(), events.end());
      }
      const std::vector<Event> events = Tick();
      all.insert(all.end(), events.begin(), events.end());
    }
    return all;
  }

  megascale::agent::v1::ActualJob* JobOn(const std::string& node_id) {
    megascale::agent::v1::ActualState& report = reports_[node_id];
    report.set_incarnation("a");
    report.set_applied_version(VersionOfEvent(state_.num_events()));
    if (report.jobs_size() == 0) report.add_jobs()->set_job_id("j");
    report.mutable_jobs(0)->set_attempt(job().attempt());
    return report.mutable_jobs(0);
  }

  megascale::agent::v1::ActualRank* RankOf(int rank) {
    megascale::agent::v1::ActualJob* actual = JobOn(NodeOfRank(job(), rank));
    for (auto& known : *actual->mutable_ranks()) {
      if (known.status().rank() == rank) return &known;
    }
    megascale::agent::v1::ActualRank* added = actual->add_ranks();
    added->set_state(megascale::agent::v1::ActualRank::STATE_RUNNING);
    added->mutable_status()->set_rank(rank);
    added->mutable_status()->set_phase(megascale::telemetry::v1::PHASE_TRAINING);
    actual->set_num_processes(actual->num_processes() + 1);
    return added;
  }

  // Brings the job to training.
  void Train() {
    for (const char* node : {"n0", "n1"}) {
      JobOn(node)->mutable_preflight()->set_state(megascale::agent::v1::Preflight::STATE_PASSED);
    }
    Pass(absl::Seconds(1));
    ASSERT_EQ(job().stage(), megascale::driver::v1::STAGE_RUN);
    for (int rank = 0; rank < 4; ++rank) RankOf(rank);
    Pass(absl::Seconds(1));
    ASSERT_EQ(job().state(), megascale::control::v1::JOB_STATE_RUNNING);
  }

  const JobRecord& job() const { return *FindJob(state_, "j"); }

  DriverState state_;
  absl::Duration now_ = absl::Seconds(1000);
  AgentMonitor monitor_{now_};
  std::map<std::string, megascale::agent::v1::ActualState> reports_;
};

}  // namespace megascale::driver
