#include "tests/diagnose/injection_run.h"

#include <signal.h>

#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "tests/diagnose/paced_cluster.h"

namespace megascale::injection {
namespace {

using control::v1::Job;

constexpr int kRanksOfMachine = 2;
constexpr int kStepsBetweenSaves = 5;
constexpr int64_t kStepsOfCalm = 5;  // a job that goes on makes more
constexpr absl::Duration kPause = absl::Milliseconds(300);

double Seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

// The name that `ps` shows.
std::string NameOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  file >> name;
  return name;
}

class OneRun {
 public:
  OneRun(const Injection& injection, const RunOptions& options)
      : injection_(injection), options_(options) {
    report_.injection = injection;
    if (options.keep_logs) cluster_.KeepLogs();
  }
  ~OneRun() {
    for (const pid_t pid : stopped_) ::kill(pid, SIGCONT);
  }

  RunReport Run() {
    if (!paced_.status().ok()) return Problem(std::string(paced_.status().message()));
    Start();
    const absl::Time begin = absl::Now();
    const int64_t first = 3;
    if (!cluster_.WaitForStep("job", first, 90)) return Problem("the job did not begin to train");
    paced_.LimitCores();
    if (!cluster_.WaitForStep("job", injection_.step, 90)) return Problem("the job did not train");
    report_.step_seconds =
        Seconds(absl::Now() - begin) / static_cast<double>(injection_.step - first);
    const Said before = Ask();
    if (before.rank >= 0 || !before.node.empty() || BlamesThePlan(before)) {
      report_.calm = before.summary;
    }
    const Job job = cluster_.Status("job");
    if (job.ranks_size() != PacedCluster::kMachines * kRanksOfMachine)
      return Problem("the job lost its ranks");
    report_.node = job.ranks(injection_.rank).node_id();
    absl::SleepFor(injection_.delay);
    Strike(job);
    if (!paced_.status().ok()) return Problem(std::string(paced_.status().message()));
    if (MustHaveStopped() && stopped_.empty()) return Problem("there was no process to stop");
    Watch();
    return report_;
  }

 private:
  RunReport Problem(const std::string& text) {
    report_.problem = text;
    cluster_.KeepLogs();
    return report_;
  }

  void Start() {
    std::vector<std::string> fields = Layouts()[static_cast<size_t>(injection_.layout)].fields;
    const bool saves = injection_.fault == Fault::kFullDisk;
    fields.insert(fields.end(),
                  {"train.steps=100000",
                   absl::StrCat("checkpoint.interval=", saves ? kStepsBetweenSaves : 0)});
    paced_.Start(kRanksOfMachine, fields);
  }

  int VictimMachine() const { return report_.node.back() - '0'; }

  // The index of the rank among those of its machine.
  int LocalRank(const Job& job) const {
    int local = 0;
    for (int rank = 0; rank < injection_.rank; ++rank) {
      local += job.ranks(rank).node_id() == report_.node ? 1 : 0;
    }
    return local;
  }

  void Stop(pid_t pid) {
    ::kill(pid, SIGSTOP);
    stopped_.push_back(pid);
  }

  void Strike(const Job& job) {
    struck_ = absl::Now();
    struck_at_ = job.last_step();
    const int victim = VictimMachine();
    switch (injection_.fault) {
      case Fault::kStopWorker:
        return Stop(job.ranks(injection_.rank).status().pid());
      case Fault::kStopHost:
        for (const pid_t pid : e2e::DescendantsOf(cluster_.agent_pid(victim), "megascale host")) {
          Stop(pid);
        }
        return;
      case Fault::kStopAgent:
        return Stop(cluster_.agent_pid(victim));
      case Fault::kBusyAlike:
        for (int i = 0; i < PacedCluster::kMachines; ++i) {
          paced_.Strike(Fault::kBusyMachine, i, 0, 0);
        }
        return;
      case Fault::kStopKeeper:
        for (const pid_t pid : e2e::DescendantsOf(cluster_.agent_pid(victim), "")) {
          if (NameOf(pid) == "megascale-keep") Stop(pid);
        }
        return;
      case Fault::kStopDriver:
        return Stop(cluster_.driver_pid());
      case Fault::kNothing:
        return;
      default:
        paced_.Strike(injection_.fault, victim, LocalRank(job),
                      Layouts()[static_cast<size_t>(injection_.layout)].slow_mbit);
    }
  }

  bool MustHaveStopped() const {
    const Fault fault = injection_.fault;
    return fault == Fault::kStopHost || fault == Fault::kStopKeeper;
  }

  // "FOLDER/13-link_down.gz"
  std::string SavePath() const {
    return absl::StrCat(options_.save, "/", injection_.seed, "-", Name(injection_.fault), ".gz");
  }

  Said Ask() {
    const e2e::CommandResult result = cluster_.Megascale({"diagnose", "job", "-o", "json"});
    Said said = ReadVerdict(result.out);
    if (said.summary.empty()) said.summary = absl::StrCat("no verdict: ", result.err);
    whole_ = result.out;
    return said;
  }

  // Asks until the right verdict or until time is up; where nothing may be named, all the time.
  void Watch() {
    const bool is_calm = !MustBeNamed(injection_.fault);
    const absl::Time end = struck_ + LimitOf(injection_.fault);
    report_.is_right = report_.is_victim_right = is_calm;
    for (int i = 0; absl::Now() < end; ++i) {
      const Said said = Ask();
      const absl::Duration after = absl::Now() - struck_;
      if (!is_calm && after > LimitOf(injection_.fault)) {
        report_.said = absl::StrCat("too late: ", said.summary);
        break;
      }
      const Judgement judgement = Judge(injection_, report_.node, said);
      if (options_.say) {
        options_.say(absl::StrFormat("%5.1f s %s: %s", Seconds(after), said.cause, said.summary));
      }
      report_.said = said.summary;
      if (judgement == Judgement::kWrong) {
        if (report_.wrong.empty()) report_.wrong = said.summary;
        report_.is_right = report_.is_victim_right = false;
        if (is_calm) break;
      }
      if (judgement == Judgement::kRightVictim) report_.is_victim_right = true;
      if (judgement == Judgement::kRight && !is_calm) {
        report_.is_right = report_.is_victim_right = report_.wrong.empty();
        report_.right_after = after;
        break;
      }
      absl::SleepFor(kPause);
    }
    if (!options_.save.empty()) cluster_.Megascale({"diagnose", "job", "--save", SavePath()});
    if (is_calm && cluster_.Status("job").last_step() < struck_at_ + kStepsOfCalm) {
      report_.is_right = false;
      report_.wrong = "nothing, though the job stands still";
    }
    if (!report_.is_right && options_.say) options_.say(whole_);
  }

  const Injection injection_;
  const RunOptions options_;
  RunReport report_;
  PacedCluster paced_;
  e2e::Cluster& cluster_ = paced_.cluster();
  std::vector<pid_t> stopped_;
  absl::Time struck_;
  int64_t struck_at_ = 0;  // the step
  std::string whole_;
};

}  // namespace

Said ReadVerdict(const std::string& output) {
  Said said;
  const nlohmann::json object = nlohmann::json::parse(output, nullptr, false);
  if (object.is_discarded() || !object.contains("verdict")) return said;
  const nlohmann::json& verdict = object["verdict"];
  said.cause = verdict.value("cause", "");
  said.summary = verdict.value("summary", "");
  said.rank = verdict.value("rank", -1);
  said.node = verdict.value("node", "");
  said.peer = verdict.value("peer", -1);
  said.peer_node = verdict.value("peer_node", "");
  return said;
}

RunReport RunInjection(const Injection& injection, const RunOptions& options) {
  return OneRun(injection, options).Run();
}

}  // namespace megascale::injection
