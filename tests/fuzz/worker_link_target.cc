#include <sys/socket.h>

#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/core/agent_core.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "runtime/base/frame.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

namespace pb = megascale::agent::v1;

// The first byte of a frame gives its sender: 0 - the host; 1, 2 - workers; 3 - a worker that
// ended.
constexpr int64_t kHostProcess = 1;
constexpr int kNumSenders = 4;

// An agent with two ranks of a job, without its shell.
class Agent {
 public:
  Agent() {
    pb::DesiredState desired;
    desired.set_version(1);
    desired.set_incarnation("i1");
    pb::DesiredJob* job = desired.add_jobs();
    job->set_job_id("j");
    job->set_attempt(1);
    job->set_phase(pb::DesiredJob::PHASE_RUN);
    for (int rank = 0; rank < 2; ++rank) {
      pb::Placement* placement = job->add_placements();
      placement->set_rank(rank);
      placement->set_node_id("n0");
    }
    core_.OnDesired(desired, now_);
    Settle();
  }

  void Receive(absl::string_view frame) {
    if (frame.empty()) return;
    const int sender = static_cast<unsigned char>(frame[0]) % kNumSenders;
    const char* message = frame.data() + 1;
    const int size = static_cast<int>(frame.size()) - 1;
    if (sender == 0) {
      link::v1::FromHost from_host;
      if (from_host.ParseFromArray(message, size)) core_.OnHostMessage(kHostProcess, from_host);
    } else if (sender == 3) {
      core_.OnEnded(kHostProcess + 1, {0, "", "", std::string(message, frame.size() - 1), false},
                    now_);
    } else {
      link::v1::FromWorker from_worker;
      if (from_worker.ParseFromArray(message, size)) {
        core_.OnWorkerMessage(kHostProcess + sender, from_worker);
      }
    }
    now_ += absl::Milliseconds(50);
    Settle();
    const pb::ActualState report = core_.Report({});
    MEGASCALE_CHECK(report.incarnation() == "i1");
    pb::ActualState again;
    MEGASCALE_CHECK(again.ParseFromString(report.SerializeAsString()));
  }

 private:
  // Carries out the actions; a core that never settles is a bug.
  void Settle() {
    for (int round = 0;; ++round) {
      MEGASCALE_CHECK(round < 100);
      const auto actions = core_.Reconcile(now_);
      if (actions.empty()) return;
      for (const agent::Action& action : actions) {
        if (const auto* start = std::get_if<agent::StartProcess>(&action)) {
          core_.OnStarted(start->process_id, 1000, now_);
        } else if (const auto* kill = std::get_if<agent::KillProcess>(&action)) {
          core_.OnEnded(kill->process_id, {9, "", "", "", true}, now_);
        }
      }
    }
  }

  agent::AgentCore core_{"n0", "i1"};
  absl::Duration now_ = absl::Seconds(1000);
};

template <typename Message>
std::string Mutated(const std::string& frame, Random* random) {
  Message message;
  if (!message.ParseFromArray(frame.data() + 1, static_cast<int>(frame.size()) - 1)) return frame;
  MutateMessage(&message, random);
  return absl::StrCat(frame.substr(0, 1), message.SerializeAsString());
}

std::string MutateFrame(const std::string& frame, Random* random) {
  if (frame.empty()) return std::string(1, static_cast<char>(random->Next()));
  return static_cast<unsigned char>(frame[0]) % kNumSenders == 0
             ? Mutated<link::v1::FromHost>(frame, random)
             : Mutated<link::v1::FromWorker>(frame, random);
}

}  // namespace

void RunWorkerLink(absl::string_view input) {
  auto ends = base::MakeSocketPair();
  MEGASCALE_CHECK(ends.ok());
  constexpr size_t kSocketBytes = 64 << 10;  // fits what a socket holds
  MEGASCALE_CHECK(base::WriteAll(ends->first.get(), input.substr(0, kSocketBytes)).ok());
  ::shutdown(ends->first.get(), SHUT_WR);
  Agent agent;
  for (;;) {
    const auto frame = base::ReceiveFrame(ends->second.get(), absl::Seconds(10));
    if (!frame.ok()) break;
    MEGASCALE_CHECK(frame->payload.size() <= base::kFrameBytesMax);
    agent.Receive(frame->payload);
  }
}

std::string MutateWorkerLink(const std::string& input, Random* random) {
  return MutateFrames(input, random, MutateFrame);
}

}  // namespace megascale::fuzz
