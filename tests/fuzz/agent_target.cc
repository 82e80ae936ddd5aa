#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/driver/core/desired_states.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/epoch.h"
#include "controlplane/driver/detection/agent_hello.h"
#include "controlplane/driver/service/attempt_store.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "controlplane/driver/storage/loss_line.h"
#include "controlplane/driver/storage/testing/simulated_disk.h"
#include "proto/agent.pb.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/job/job_spec.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

namespace agent = megascale::agent::v1;
using driver::DriverState;
using driver::Event;

constexpr char kJob[] = "j";

driver::v1::JobSubmitted SubmittedJob() {
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
  driver::v1::JobSubmitted submitted;
  submitted.set_job_id(kJob);
  *submitted.mutable_spec() = *resolved;
  submitted.set_secret_seed("seed");
  return submitted;
}

// What a frame's first byte says: bit 0 the session on which the message comes, bits 1 to 4 the
// time that passes before it, bits 5 to 7 what else happens first.
enum class Before {
  kNothing = 0,
  kStreamEnds = 4,  // of the session
  kDriverEnds = 5,  // and is started again
  kFilesFail = 6,   // those of jobs; or they work again
  kSilence = 7,     // of all agents, long enough that machines count as lost
};
constexpr absl::Duration kSilence = absl::Seconds(40);

// A session of an agent, as the service keeps it.
class Link : public driver::AgentLink {
 public:
  void SendDesired(const agent::DesiredState& desired) override { last = desired; }
  void Close(const absl::Status& why) override {
    if (!why.ok()) CheckLine(why);
    closed = true;
  }
  agent::DesiredState last;
  bool closed = false;
};

// The driver's shell, its disk, and two sessions of agents.
class Driver {
 public:
  Driver() {
    Start();
    Round([this] { MEGASCALE_CHECK(shell_->Submit(SubmittedJob()).ok()); });
    for (int i = 0; i < kNumSessions; ++i) Join(HelloOf(i), &sessions_[i]);
  }

  void Receive(absl::string_view frame) {
    if (frame.empty()) return;
    const auto control = static_cast<unsigned char>(frame[0]);
    Session& session = sessions_[control & 1];
    Happen(static_cast<Before>(control >> 5), &session);
    Pass(absl::Milliseconds(100 * (control >> 1 & 15)));
    agent::AgentUp up;
    if (!up.ParseFromArray(frame.data() + 1, static_cast<int>(frame.size()) - 1)) return;
    if (up.has_hello()) {
      const absl::Status checked = driver::CheckHello(up.hello());
      checked.ok() ? Join(up.hello(), &session) : CheckLine(checked);
    } else if (up.has_actual() && session.link != nullptr && !session.link->closed) {
      Round([&] { shell_->OnReport(session.node_id, up.actual()); });
    } else if (session.link != nullptr && !session.link->closed) {
      for (const auto& request : up.store().requests()) Serve(request, session.node_id);
    }
    CheckState();
    CheckSteps();
  }

  void Pass(absl::Duration duration) {
    for (; duration > absl::ZeroDuration(); duration -= absl::Seconds(1)) {
      clock_.Advance(std::min(duration, absl::Seconds(1)));
      Round([] {});
    }
  }

 private:
  static constexpr int kNumSessions = 2;
  struct Session {
    std::string node_id;
    std::shared_ptr<Link> link;  // null: no agent is connected
  };

  static agent::Hello HelloOf(int index) {
    agent::Hello hello;
    hello.set_protocol_version(agent::PROTOCOL_VERSION_CURRENT);
    hello.set_node_id(absl::StrCat("n", index));
    hello.set_incarnation("i1");
    hello.set_num_slots(2);
    hello.set_machine_id("m");
    hello.set_instruction_set("avx2");
    return hello;
  }

  // Each request is answered at most once; a wait perhaps later, or never.
  void Serve(const agent::StoreRequest& request, const std::string& node_id) {
    const auto num_answers = std::make_shared<int>(0);
    store_->Handle(request, node_id, [request, num_answers](const agent::StoreReply& reply) {
      MEGASCALE_CHECK(++*num_answers == 1);
      MEGASCALE_CHECK(reply.request_id() == request.request_id());
    });
  }

  void Start() {
    store_ = std::make_unique<driver::AttemptStore>();
    driver::DriverShell::Options options;
    options.state_directory = "/state";
    options.log = disk_.OpenLog();
    options.files = &disk_;
    options.clock = &clock_;
    options.secret = "secret";
    options.snapshot_interval_events = 10;
    options.on_attempts = [this](const auto& attempts) { store_->SetAttempts(attempts); };
    auto shell = driver::DriverShell::Create(std::move(options));
    MEGASCALE_CHECK_MSG(shell.ok(), shell.status().ToString());
    shell_ = *std::move(shell);
    shell_->Begin();
    position_ = -1;
    Round([] {});
  }

  // A driver that is started again has the state of the one before, and its own start.
  void StartAgain() {
    DriverState expected = shell_->state();
    Event started = driver::StartedEvent(expected, {clock_.Wall(), "secret", false, {}});
    started.set_time_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    driver::Apply(started, &expected);
    shell_.reset();
    disk_.Crash();
    for (Session& session : sessions_) session.link.reset();
    SetFilesFail(false);
    Start();
    MEGASCALE_CHECK(shell_->state().SerializeAsString() == expected.SerializeAsString());
    for (int i = 0; i < kNumSessions; ++i) Join(HelloOf(i), &sessions_[i]);
  }

  void Happen(Before before, Session* session) {
    switch (before) {
      case Before::kStreamEnds:
        return End(session);
      case Before::kDriverEnds:
        return StartAgain();
      case Before::kFilesFail:
        return SetFilesFail(!files_fail_);
      case Before::kSilence:
        return Pass(kSilence);
      default:
        return;
    }
  }

  void SetFilesFail(bool fail) {
    files_fail_ = fail;
    disk_.SetFaults(
        [fail](absl::string_view effect) {
          return fail && absl::StrContains(effect, "/jobs/") ? driver::SimulatedDisk::Fate::kFails
                                                             : driver::SimulatedDisk::Fate::kDone;
        },
        {});
  }

  void End(Session* session) {
    if (session->link == nullptr) return;
    const std::shared_ptr<Link> link = std::move(session->link);
    Round([&] { shell_->OnGone(session->node_id, link.get()); });
  }

  // An agent connects: its stream before this one has not ended yet.
  void Join(const agent::Hello& hello, Session* session) {
    const std::shared_ptr<Link> before = std::move(session->link);
    const std::string node_before = session->node_id;
    session->node_id = hello.node_id();
    session->link = std::make_shared<Link>();
    Round([&] {
      const bool joined = shell_->OnHello(hello, session->link);
      MEGASCALE_CHECK(joined == !session->link->closed);
    });
    if (before != nullptr) Round([&] { shell_->OnGone(node_before, before.get()); });
  }

  void Round(const std::function<void()>& input) {
    const absl::Status status = shell_->Round({[&]() -> driver::DriverShell::Output {
      input();
      return [] {};
    }});
    MEGASCALE_CHECK_MSG(status.ok(), status.ToString());
  }

  void CheckState() const {
    const DriverState& state = shell_->state();
    const driver::DesiredStates desired(state);
    for (const driver::NodeRecord& node : state.nodes()) desired.For(node.hello().node_id());
    driver::LossLogCutsFor(state);
    const driver::JobRecord* job = driver::FindJob(state, kJob);
    MEGASCALE_CHECK(job != nullptr);
    MEGASCALE_CHECK(job->placements_size() == 0 ||
                    job->placements_size() == driver::WorldSize(*job));
    MEGASCALE_CHECK(job->best_step() >= 0);
    const auto view = shell_->view();
    MEGASCALE_CHECK(view->Job(kJob, clock_.Wall()).ok());
    MEGASCALE_CHECK(view->Jobs(clock_.Wall()).size() == 1);
    MEGASCALE_CHECK(view->Nodes().nodes_size() == state.nodes_size());
  }

  // The loss log has its steps in order, each once; and a watcher gets what it has.
  void CheckSteps() {
    const driver::JobRecord* job = driver::FindJob(shell_->state(), kJob);
    if (job == nullptr) return;
    const std::string path = absl::StrCat("/state/jobs/", kJob, "/", driver::kLossLogFile);
    const std::string text = disk_.ReadAt(path, 0, disk_.Size(path).value_or(0)).value_or("");
    int64_t newest = 0;
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const auto record = driver::FromLossLine(line);
      MEGASCALE_CHECK_MSG(record.ok(), std::string(line));
      MEGASCALE_CHECK_MSG(record->step() > newest, text);
      newest = record->step();
    }
    if (job->stage() == driver::v1::STAGE_RUN && job->attempt() > attempt_) {
      attempt_ = job->attempt();
      watched_ = std::min(watched_, job->restore().step());  // a rollback takes steps back
    }
    for (const auto& record : shell_->view()->StepsSince(kJob, &position_)) {
      MEGASCALE_CHECK(record.step() > watched_);
      watched_ = record.step();
    }
  }

  base::FakeClock clock_;
  driver::SimulatedDisk disk_;
  std::unique_ptr<driver::AttemptStore> store_;
  std::unique_ptr<driver::DriverShell> shell_;
  std::array<Session, kNumSessions> sessions_;
  bool files_fail_ = false;
  int64_t position_ = -1;  // of a watcher
  int64_t watched_ = 0;    // the newest step that it has got
  int64_t attempt_ = 0;    // the newest that began to run
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
  driver.Pass(absl::Seconds(6));
}

std::string MutateAgentMessages(const std::string& input, Random* random) {
  return MutateFrames(input, random, MutateFrame);
}

}  // namespace megascale::fuzz
