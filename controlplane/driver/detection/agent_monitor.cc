#include "controlplane/driver/detection/agent_monitor.h"

#include <memory>
#include <utility>

#include "controlplane/driver/core/epoch.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace pb = megascale::driver::v1;

}  // namespace

std::vector<Event> AgentMonitor::OnHello(const DriverState& state, const agent::Hello& hello,
                                         absl::Duration now, const AgentPeer& peer) {
  reports_.Advance(now);
  reports_.TakeHello(hello);
  const NodeRecord* known = FindNode(state, hello.node_id());
  if (known != nullptr && known->alive() &&
      known->hello().SerializeAsString() == hello.SerializeAsString() &&
      (peer.certificate.empty() || known->certificate() == peer.certificate) &&
      (peer.address.empty() || known->address() == peer.address)) {
    return {};
  }
  Event event;
  *event.mutable_node_joined()->mutable_hello() = hello;
  event.mutable_node_joined()->set_certificate(peer.certificate);
  event.mutable_node_joined()->set_address(peer.address);
  return {event};
}

std::vector<Event> AgentMonitor::OnReport(const IndexedState& state, const std::string& node_id,
                                          agent::ActualState report, absl::Duration now) {
  reports_.Advance(now);
  const NodeRecord* known = FindNode(state.state(), node_id);
  const bool counts = IsOfThisEpoch(state.state(), report);
  if (!counts) {
    agent::ActualState alive;  // all that a report of another epoch tells
    alive.set_incarnation(report.incarnation());
    alive.set_epoch(report.epoch());
    report = std::move(alive);
  }
  if (known == nullptr || known->hello().incarnation() != report.incarnation()) return {};
  const auto taken = std::make_shared<const agent::ActualState>(std::move(report));
  if (!reports_.TakeReport(node_id, taken)) return {};
  for (const int place : state.index().On(node_id)) {
    detector_.OnReport(JobId(state.state().jobs(place)));
  }
  if (!known->alive()) {
    // The node was lost and is back. Its processes belong to an attempt that was given up.
    Event event;
    *event.mutable_node_joined()->mutable_hello() = reports_.HelloOf(node_id);
    return {event};
  }
  if (!counts || taken->too_large_bytes() > 0) return {};
  for (const agent::ActualJob& actual : taken->jobs()) {
    const JobRecord* job = state.Find(actual.job_id());
    if (job == nullptr || !HoldsSlots(*job) || !reports_.IsOn(*job, node_id)) continue;
    step_reporters_.OnReport(*job, node_id, actual, reports_.awake());
  }
  return events_.EventsOf(state, *known, *taken, reports_);
}

std::vector<Event> AgentMonitor::OnTick(const IndexedState& indexed, absl::Duration now) {
  reports_.Advance(now);
  step_reporters_.OnTick(indexed, reports_.awake());
  const DriverState& state = indexed.state();
  std::vector<Event> events;
  for (Event& lost : detector_.LostNodes(state, reports_)) {
    for (const int place : indexed.index().open()) {
      const JobRecord& job = state.jobs(place);
      if (job.stage() == pb::STAGE_RUN) events_.AddProgress(job, &events);
    }
    events.push_back(std::move(lost));
  }
  for (const int place : indexed.index().open()) {
    const JobRecord& job = state.jobs(place);
    events_.AddRetentionEnded(state, job, reports_, &events);
    events_.AddStorageAway(state, job, reports_, &events);
    for (Event& failed : detector_.FailuresOf(job, reports_)) {
      events_.AddProgress(job, &events);
      events.push_back(std::move(failed));
    }
  }
  return events;
}

}  // namespace megascale::driver
