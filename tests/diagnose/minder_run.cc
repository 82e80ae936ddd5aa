#include "tests/diagnose/minder_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "runtime/base/fd.h"
#include "tests/diagnose/paced_cluster.h"

namespace megascale::injection {
namespace {

constexpr double kSlowMbit = 4;
constexpr size_t kLogBytesMax = size_t{16} << 20;
constexpr absl::Duration kPause = absl::Milliseconds(200);

std::string NodeOf(int machine) { return absl::StrCat("n", machine); }

class OneMinderRun {
 public:
  explicit OneMinderRun(const MinderRun& run) { report_.run = run; }
  ~OneMinderRun() {
    if (minder_ > 0) e2e::KillAndReap(minder_);
  }

  MinderReport Run() {
    if (!paced_.status().ok()) return Problem(std::string(paced_.status().message()));
    Start();
    if (!cluster_.WaitForStep("job", 2, 90)) return Problem("the job did not begin to train");
    paced_.LimitCores();
    StartMinder();
    absl::SleepFor(report_.run.calm);
    if (const auto verdict = FirstVerdict(); verdict.has_value()) {
      report_.calm_alarm = verdict->value("machine", "");
      return report_;
    }
    struck_ = absl::Now();
    Strike();
    if (!paced_.status().ok()) return Problem(std::string(paced_.status().message()));
    Await();
    return report_;
  }

 private:
  MinderReport Problem(const std::string& text) {
    report_.problem = text;
    cluster_.KeepLogs();
    return report_;
  }

  void Start() {
    paced_.Start(1, {"parallel.data_parallel_size=4", "parallel.pipeline_model_parallel_size=1",
                     "train.steps=100000", "train.global_batch_size=16", "checkpoint.interval=0"});
  }

  void StartMinder() {
    log_ = cluster_.directory() + "/minder.log";
    const auto flag = [](absl::Duration time) { return absl::FormatDuration(time); };
    minder_ = e2e::Spawn(
        {e2e::Program(), "minder", "watch", "job", "--address", cluster_.address(), "--every",
         flag(report_.run.every), "--continuity", flag(report_.run.continuity), "-o", "json"},
        log_);
  }

  // The job has one rank on each machine.
  void Strike() {
    const std::vector<Fault>& faults = SlowingFaults();
    const bool slows = std::find(faults.begin(), faults.end(), report_.run.fault) != faults.end();
    if (!slows || !paced_.Strike(report_.run.fault, report_.run.victim, 0, kSlowMbit)) {
      report_.problem = absl::StrCat(Name(report_.run.fault), ": slows no machine");
    }
  }

  // Returns the first verdict that `minder watch` has printed.
  std::optional<nlohmann::json> FirstVerdict() const {
    const std::string text = base::ReadFile(log_, kLogBytesMax).value_or("");
    for (const auto line : absl::StrSplit(text, '\n')) {
      const auto object = nlohmann::json::parse(line, nullptr, false);
      if (object.is_discarded() || !object.contains("verdict")) continue;
      if (object["verdict"].is_object()) return object["verdict"];
    }
    return std::nullopt;
  }

  void Await() {
    while (absl::Now() < struck_ + report_.run.deadline) {
      const auto verdict = FirstVerdict();
      if (!verdict.has_value()) {
        absl::SleepFor(kPause);
        continue;
      }
      report_.after = absl::Now() - struck_;
      report_.named = verdict->value("machine", "");
      report_.metric = verdict->value("metric", "");
      report_.score = verdict->value("score", 0.0);
      const auto suspicion = cluster_.Status("job").suspicion();
      if (suspicion.has_began_at()) {
        report_.began_after = absl::FromUnixSeconds(suspicion.began_at().seconds()) - struck_;
      }
      return;
    }
  }

  MinderReport report_;
  PacedCluster paced_;
  e2e::Cluster& cluster_ = paced_.cluster();
  pid_t minder_ = -1;
  std::string log_;
  absl::Time struck_;
};

std::string SecondsOf(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "";
  return absl::StrFormat("%.0f s", absl::ToDoubleSeconds(duration));
}

}  // namespace

const std::vector<Fault>& SlowingFaults() {
  static const auto* const faults =
      new std::vector<Fault>{Fault::kCutQuota,    Fault::kSlowLink, Fault::kSlowRank,
                             Fault::kBusyMachine, Fault::kBusyLink, Fault::kLateRank};
  return *faults;
}

bool MinderReport::is_right() const {
  return problem.empty() && calm_alarm.empty() && named == NodeOf(run.victim);
}

MinderReport RunMinder(const MinderRun& run) { return OneMinderRun(run).Run(); }

std::string MinderTable(const std::vector<MinderReport>& reports) {
  std::string table =
      "| fault | victim | named | after | began, from the fault on | metric | score |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const MinderReport& report : reports) {
    std::string named = report.named.empty() ? "nobody" : report.named;
    if (!report.calm_alarm.empty()) named = absl::StrCat(report.calm_alarm, " before the fault");
    if (!report.problem.empty()) named = absl::StrCat("PROBLEM ", report.problem);
    absl::StrAppendFormat(&table, "| %s | %s | %s | %s | %s | %s | %.2f |\n",
                          Name(report.run.fault), NodeOf(report.run.victim), named,
                          SecondsOf(report.after), SecondsOf(report.began_after), report.metric,
                          report.score);
  }
  return table;
}

}  // namespace megascale::injection
