#include "controlplane/driver/reports/agent_monitor.h"

#include <utility>

#include "controlplane/driver/core/epoch.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace pb = megascale::driver::v1;

}  // namespace

std::vector<Event> AgentMonitor::OnHello(const DriverState& state, const agent::Hello& hello,
                                         absl::Duration now, const std::string& certificate) {
  reports_.Advance(now);
  reports_.TakeHello(hello);
  const NodeRecord* known = FindNode(state, hello.node_id());
  if (known != nullptr && known->alive() &&
      known->hello().SerializeAsString() == hello.SerializeAsString() &&
      (certificate.empty() || known->certificate() == certificate)) {
    return {};
  }
  Event event;
  *event.mutable_node_joined()->mutable_hello() = hello;
  event.mutable_node_joined()->set_certificate(certificate);
  return {event};
}

std::vector<Event> AgentMonitor::OnReport(const DriverState& state, const std::string& node_id,
                                          const agent::ActualState& report, absl::Duration now) {
  reports_.Advance(now);
  const NodeRecord* known = FindNode(state, node_id);
  const bool counts = IsOfThisEpoch(state, report);
  agent::ActualState alive;  // all that a report of another epoch tells
  alive.set_incarnation(report.incarnation());
  alive.set_epoch(report.epoch());
  if (known == nullptr || known->hello().incarnation() != report.incarnation() ||
      !reports_.TakeReport(node_id, counts ? report : alive)) {
    return {};
  }
  if (!known->alive()) {
    // The node was lost and is back. Its processes belong to an attempt that was given up.
    Event event;
    *event.mutable_node_joined()->mutable_hello() = reports_.HelloOf(node_id);
    return {event};
  }
  if (!counts) return {};
  return events_.EventsOf(state, *known, report, reports_);
}

std::vector<Event> AgentMonitor::OnTick(const DriverState& state, absl::Duration now) {
  reports_.Advance(now);
  std::vector<Event> events;
  for (Event& lost : FailureDetector::LostNodes(state, reports_)) {
    for (const JobRecord& job : state.jobs()) {
      if (job.stage() == pb::STAGE_RUN) events_.AddProgress(job, &events);
    }
    events.push_back(std::move(lost));
  }
  for (const JobRecord& job : state.jobs()) {
    if (IsTerminal(job)) {
      reports_.Forget(JobId(job));
      events_.Forget(JobId(job));
      detector_.Forget(JobId(job));
      continue;
    }
    events_.AddRetentionEnded(state, job, reports_, &events);
    for (Event& failed : detector_.FailuresOf(job, reports_)) {
      events_.AddProgress(job, &events);
      events.push_back(std::move(failed));
    }
  }
  return events;
}

}  // namespace megascale::driver
