// Short ways to make specifications and events, for tests of the core.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "controlplane/driver/core/desired_states.h"
#include "controlplane/driver/core/driver_core.h"

namespace megascale::driver {

// Returns the desired state of one node.
inline megascale::agent::v1::DesiredState DesiredFor(const DriverState& state,
                                                     const std::string& node_id) {
  return DesiredStates(state).For(node_id);
}

inline megascale::job::v1::JobSpec SpecOf(int data, int pipeline, int64_t steps) {
  megascale::job::v1::JobSpec spec;
  spec.set_name("test");
  spec.mutable_parallel()->set_data_parallel_size(data);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(pipeline);
  spec.mutable_parallel()->set_tensor_model_parallel_size(1);
  spec.mutable_train()->set_steps(steps);
  spec.mutable_checkpoint()->set_interval(10);
  spec.mutable_checkpoint()->set_keep(2);
  spec.mutable_fault()->mutable_heartbeat_interval()->set_seconds(1);
  spec.mutable_fault()->mutable_heartbeat_timeout()->set_seconds(5);
  spec.mutable_fault()->mutable_progress_timeout()->set_seconds(60);
  spec.mutable_fault()->mutable_start_timeout()->set_seconds(120);
  spec.mutable_fault()->mutable_restart_backoff()->set_seconds(1);
  spec.mutable_fault()->set_max_restarts_without_progress(3);
  return spec;
}

inline Event Submitted(const std::string& job_id, const megascale::job::v1::JobSpec& spec) {
  Event event;
  auto* submitted = event.mutable_job_submitted();
  submitted->set_job_id(job_id);
  *submitted->mutable_spec() = spec;
  submitted->set_secret_seed("seed of " + job_id);
  submitted->set_directory("/state/jobs/" + job_id);
  return event;
}

inline megascale::agent::v1::Hello HelloOf(const std::string& node_id,
                                           const std::string& incarnation, int num_slots) {
  megascale::agent::v1::Hello hello;
  hello.set_protocol_version(agent::v1::PROTOCOL_VERSION_CURRENT);
  hello.set_node_id(node_id);
  hello.set_incarnation(incarnation);
  hello.set_num_slots(num_slots);
  hello.set_machine_id("machine");
  hello.set_instruction_set("avx2");
  hello.set_key("key of " + node_id);
  hello.set_hostname("host-of-" + node_id);
  return hello;
}

inline Event Joined(const std::string& node_id, const std::string& incarnation, int num_slots) {
  Event event;
  *event.mutable_node_joined()->mutable_hello() = HelloOf(node_id, incarnation, num_slots);
  return event;
}

// An agent of this release, whose ranks prove to which address they connected.
inline Event JoinedWithBoundAddress(const std::string& node_id,
                                    const std::string& incarnation = "a", int num_slots = 2) {
  Event event = Joined(node_id, incarnation, num_slots);
  event.mutable_node_joined()->mutable_hello()->set_binds_address(true);
  return event;
}

inline Event Lost(const std::string& node_id, const std::string& incarnation) {
  Event event;
  event.mutable_node_lost()->set_node_id(node_id);
  event.mutable_node_lost()->set_incarnation(incarnation);
  event.mutable_node_lost()->set_why("no heartbeat for 5s");
  return event;
}

inline Event Evicted(const std::string& node_id, const std::string& why) {
  Event event;
  event.mutable_node_evicted()->set_node_id(node_id);
  event.mutable_node_evicted()->set_why(why);
  return event;
}

inline Event Uncordoned(const std::string& node_id) {
  Event event;
  event.mutable_node_uncordoned()->set_node_id(node_id);
  return event;
}

inline Event Draining(const std::string& node_id, const std::string& incarnation) {
  Event event;
  event.mutable_node_draining()->set_node_id(node_id);
  event.mutable_node_draining()->set_incarnation(incarnation);
  return event;
}

inline Event Passed(const std::string& job_id, int64_t attempt, const std::string& node_id) {
  Event event;
  auto* passed = event.mutable_preflight_passed();
  passed->set_job_id(job_id);
  passed->set_attempt(attempt);
  passed->set_node_id(node_id);
  passed->mutable_preflight()->set_state(megascale::agent::v1::Preflight::STATE_PASSED);
  return event;
}

inline Event Failed(int64_t attempt, int rank, const std::string& node_id,
                    megascale::telemetry::v1::FailureClass failure_class) {
  Event event;
  auto* failed = event.mutable_rank_failed();
  failed->set_job_id("j");
  failed->set_attempt(attempt);
  failed->set_rank(rank);
  failed->set_node_id(node_id);
  failed->mutable_failure()->set_failure_class(failure_class);
  failed->mutable_failure()->set_message("evidence of rank " + std::to_string(rank));
  return event;
}

// The rank could not read its restore point.
inline Event FailedToRead(int64_t attempt, int rank, const std::string& node_id) {
  Event event = Failed(attempt, rank, node_id, megascale::telemetry::v1::FAILURE_CLASS_CORRUPT);
  event.mutable_rank_failed()->mutable_failure()->set_at_restore(true);
  return event;
}

inline Event Ended(int64_t attempt, int rank, bool stopped, int64_t step) {
  Event event;
  auto* ended = event.mutable_rank_ended();
  ended->set_job_id("j");
  ended->set_attempt(attempt);
  ended->set_rank(rank);
  ended->set_stopped(stopped);
  ended->set_step(step);
  return event;
}

struct Snapshot {
  int rank = 0;
  int64_t step = 0;
};

inline Event Fenced(int64_t attempt, const std::string& node_id,
                    const std::vector<Snapshot>& snapshots) {
  Event event;
  auto* fenced = event.mutable_node_fenced();
  fenced->set_job_id("j");
  fenced->set_attempt(attempt);
  fenced->set_node_id(node_id);
  for (const Snapshot& snapshot : snapshots) {
    auto* sealed = fenced->add_snapshots();
    sealed->set_rank(snapshot.rank);
    sealed->set_attempt(attempt);
    sealed->set_step(snapshot.step);
  }
  return event;
}

inline Event Manifest(int64_t attempt, int64_t step) {
  Event event;
  auto* written = event.mutable_manifest_written();
  written->set_job_id("j");
  written->mutable_manifest()->set_attempt(attempt);
  written->mutable_manifest()->set_step(step);
  written->mutable_manifest()->set_directory("/c/step-" + std::to_string(step) + "-attempt-" +
                                             std::to_string(attempt));
  return event;
}

inline Event Stored(int64_t attempt, int64_t step) {
  Event event;
  event.mutable_shards_stored()->set_job_id("j");
  event.mutable_shards_stored()->set_attempt(attempt);
  event.mutable_shards_stored()->set_step(step);
  return event;
}

inline Event RetentionEnded(int64_t attempt, int64_t step) {
  Event event;
  event.mutable_retention_ended()->set_job_id("j");
  event.mutable_retention_ended()->set_attempt(attempt);
  event.mutable_retention_ended()->set_step(step);
  return event;
}

inline Event Progressed(int64_t attempt, int64_t step) {
  Event event;
  event.mutable_attempt_progressed()->set_job_id("j");
  event.mutable_attempt_progressed()->set_attempt(attempt);
  event.mutable_attempt_progressed()->set_step(step);
  return event;
}

inline Event Started(int64_t attempt) {
  Event event;
  event.mutable_training_started()->set_job_id("j");
  event.mutable_training_started()->set_attempt(attempt);
  return event;
}

inline Event Cancelled(bool checkpoint) {
  Event event;
  event.mutable_cancel_requested()->set_job_id("j");
  event.mutable_cancel_requested()->mutable_grace()->set_seconds(30);
  event.mutable_cancel_requested()->set_checkpoint(checkpoint);
  return event;
}

}  // namespace megascale::driver
