#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/desired_states.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/detection/agent_monitor.h"
#include "proto/agent.pb.h"
#include "runtime/base/check.h"
#include "runtime/job/job_spec.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

namespace agent = megascale::agent::v1;
using driver::DriverState;
using driver::Event;

constexpr char kJob[] = "j";

Event SubmittedJob() {
  job::v1::JobSpec spec;
  spec.set_name(kJob);
  spec.mutable_model()->set_hidden_size(8);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_num_attention_heads(2);
  spec.mutable_data()->add_files("/text");
  spec.mutable_train()->set_steps(20);
  spec.mutable_train()->set_seq_length(8);
  spec.mutable_train()->set_global_batch_size(4);
  spec.mutable_train()->set_micro_batch_size(1);
  spec.mutable_parallel()->set_data_parallel_size(2);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(2);
  spec.mutable_checkpoint()->set_interval(5);
  const auto resolved = job::ResolveJobSpec(spec);
  MEGASCALE_CHECK_MSG(resolved.ok(), resolved.status().ToString());
  Event event;
  auto* submitted = event.mutable_job_submitted();
  submitted->set_job_id(kJob);
  *submitted->mutable_spec() = *resolved;
  submitted->set_secret_seed("seed");
  submitted->set_directory("/state/jobs/j");
  return event;
}

// The driver without its shell. Frames come from two nodes: the first byte of each gives the node
// and the time that passes before it.
class Driver {
 public:
  Driver() {
    Apply(SubmittedJob());
    for (const char* node : {"n0", "n1"}) {
      agent::Hello hello;
      hello.set_protocol_version(agent::PROTOCOL_VERSION_CURRENT);
      hello.set_node_id(node);
      hello.set_incarnation("i1");
      hello.set_num_slots(2);
      hello.set_machine_id("m");
      hello.set_instruction_set("avx2");
      ApplyAll(monitor_.OnHello(state_, hello, now_));
    }
  }

  void Receive(absl::string_view frame) {
    if (frame.empty()) return;
    const auto control = static_cast<unsigned char>(frame[0]);
    const std::string node = (control & 1) == 0 ? "n0" : "n1";
    Pass(absl::Milliseconds(100 * (control >> 1 & 15)));
    agent::AgentUp up;
    if (!up.ParseFromArray(frame.data() + 1, static_cast<int>(frame.size()) - 1)) return;
    if (up.has_hello()) {
      // The service refuses such a Hello.
      if (up.hello().node_id().empty() || up.hello().incarnation().empty()) return;
      if (up.hello().num_slots() < 0) return;
      ApplyAll(monitor_.OnHello(state_, up.hello(), now_));
    } else if (up.has_actual()) {
      monitor_.NoteStep(kJob, static_cast<int64_t>(control >> 5));
      ApplyAll(monitor_.OnReport(state_, node, up.actual(), now_));
    }
    CheckState();
  }

  void Pass(absl::Duration duration) {
    now_ += duration;
    ApplyAll(monitor_.OnTick(state_, now_));
    for (driver::Timer& timer : driver::TimersFor(state_)) {
      if (duration > absl::Seconds(1)) Apply(std::move(timer.when_due));
    }
  }

 private:
  void Apply(Event event) {
    event.set_time_unix_nanos(absl::ToInt64Nanoseconds(now_));
    const int64_t num_before = state_.num_events();
    driver::Apply(event, &state_);
    MEGASCALE_CHECK(state_.num_events() == num_before + 1);
  }
  void ApplyAll(std::vector<Event> events) {
    for (Event& event : events) Apply(std::move(event));
  }

  void CheckState() const {
    const driver::DesiredStates desired(state_);
    for (const driver::NodeRecord& node : state_.nodes()) desired.For(node.hello().node_id());
    driver::LossLogCutsFor(state_);
    const driver::JobRecord* job = driver::FindJob(state_, kJob);
    MEGASCALE_CHECK(job != nullptr);
    MEGASCALE_CHECK(job->placements_size() == 0 ||
                    job->placements_size() == driver::WorldSize(*job));
    MEGASCALE_CHECK(job->best_step() >= 0);
    // A restarted driver must read this driver's state.
    DriverState again;
    MEGASCALE_CHECK(again.ParseFromString(state_.SerializeAsString()));
  }

  DriverState state_;
  absl::Duration now_ = absl::Seconds(1000);
  driver::AgentMonitor monitor_{absl::Seconds(1000)};
};

std::string MutateFrame(const std::string& frame, Random* random) {
  agent::AgentUp up;
  if (frame.empty() || !up.ParseFromArray(frame.data() + 1, static_cast<int>(frame.size()) - 1)) {
    return frame;
  }
  MutateMessage(&up, random);
  char control = frame[0];
  if (random->OneIn(4)) control = static_cast<char>(random->Next());
  return absl::StrCat(std::string(1, control), up.SerializeAsString());
}

}  // namespace

void RunAgentMessages(absl::string_view input) {
  Driver driver;
  for (const std::string& frame : SplitFrames(input)) driver.Receive(frame);
  for (int i = 0; i < 3; ++i) driver.Pass(absl::Seconds(2));
}

std::string MutateAgentMessages(const std::string& input, Random* random) {
  return MutateFrames(input, random, MutateFrame);
}

}  // namespace megascale::fuzz
