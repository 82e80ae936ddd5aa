#include <signal.h>

#include <functional>
#include <iostream>
#include <set>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "controlplane/address/address.h"
#include "controlplane/client/job_client.h"
#include "tests/bench/control/benchmarks.h"
#include "tests/bench/control/measures.h"
#include "tests/chaos/probe.h"
#include "tests/e2e/cluster.h"

namespace megascale::bench {
namespace {

using control::v1::Job;

constexpr char kJobId[] = "bench";
constexpr int kRanks = 4;
constexpr int kSlots = 2;
constexpr int64_t kStepsBetween = 12;
constexpr int kWaitSeconds = 120;

// A cluster of two agents, and spares that are added, on which a job trains for a long time.
class TrainingCluster {
 public:
  explicit TrainingCluster(const std::string& job_file, const std::string& machine_tests = "off",
                           const std::vector<std::string>& sets = {}) {
    cluster_.SetDriverFlags({"--machine-tests", machine_tests});
    cluster_.StartDriver();
    client::ClientOptions options;
    options.address = client::ParseAddress(cluster_.address()).value();
    client_ = client::JobClient::Create(options).value();
    for (int i = 0; i < kRanks / kSlots; ++i) AddAgent();
    std::vector<std::string> submit = {"submit", job_file, "--job-id",
                                       kJobId,   "--set",  "train.steps=100000"};
    for (const std::string& set : sets) submit.insert(submit.end(), {"--set", set});
    const auto submitted = cluster_.Megascale(submit);
    if (submitted.exit_code != 0) std::cerr << submitted.err;
    AwaitSteps();
  }

  // Returns the new agent's number.
  int AddAgent() {
    const int index = num_agents_++;
    cluster_.StartAgent(index, kSlots);
    probes.emplace_back(cluster_.agent_pid(index));
    return index;
  }
  // Adds a machine, waits until its tests have passed, and makes it a spare.
  bool AddTestedSpare() {
    const std::string name = absl::StrCat("n", AddAgent());
    const bool tested = e2e::WaitUntil(
        [&] { return Node(name).machine_test().state() == agent::v1::MachineTest::STATE_PASSED; },
        kWaitSeconds);
    return tested && cluster_.Megascale({"spares", "--add", name}).exit_code == 0;
  }

  Job Now() { return client_->Get(kJobId).value_or(Job()); }
  // As the driver sees it; empty if it does not know it.
  control::v1::NodeView Node(const std::string& node_id) {
    const auto cluster = client_->Cluster();
    if (!cluster.ok()) return {};
    for (const auto& node : cluster->nodes()) {
      if (node.node_id() == node_id) return node;
    }
    return {};
  }
  // Waits for steps that no earlier attempt has completed, because a backoff follows an attempt
  // without progress.
  bool AwaitSteps() {
    best_step_ += kStepsBetween;
    return e2e::WaitUntil(
        [&] {
          const int64_t step = Now().last_step();
          if (step < best_step_) return false;
          best_step_ = step;
          return true;
        },
        kWaitSeconds);
  }
  e2e::Cluster& cluster() { return cluster_; }

  std::vector<chaos::AgentProbe> probes;

 private:
  e2e::Cluster cluster_;
  std::unique_ptr<client::JobClient> client_;
  int num_agents_ = 0;
  int64_t best_step_ = 0;
};

// Waits until `condition` holds; false after a minute or two. Polls often, because the measured
// times are milliseconds.
bool Until(const std::function<bool()>& condition) {
  const double deadline = Now() + kWaitSeconds;
  while (!condition()) {
    if (Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

// True when every rank of a newer attempt than `dead` shows at least `phase`.
bool AllAtLeast(TrainingCluster* training, telemetry::v1::Phase phase,
                const std::set<int32_t>& dead) {
  int ranks = 0;
  for (chaos::AgentProbe& probe : training->probes) {
    for (const auto& status : probe.Ranks()) {
      if (status.pid() == 0 || dead.count(status.pid()) > 0 || status.phase() < phase) return false;
      ++ranks;
    }
  }
  return ranks == kRanks;
}

struct Times {
  std::vector<double> noticed, decided, started, loaded, stepping, all, since_noticed;
};

// Calls `strike`, which ends ranks of the job, and notes when the driver notices (`is_noticed`) and
// when the job does what on its way back. Returns false if it did not recover.
bool StrikeOnce(TrainingCluster* training, const std::function<void(const Job&)>& strike,
                const std::function<bool(const Job&)>& is_noticed, Times* times) {
  if (!training->AwaitSteps()) return false;
  const Job job = training->Now();
  std::set<int32_t> pids;
  for (const auto& rank : job.ranks()) pids.insert(rank.status().pid());
  double last = Now();
  const double struck = last;
  strike(job);
  bool seen = true;
  const auto lap = [&](std::vector<double>* laps, const std::function<bool()>& condition) {
    seen = seen && Until(condition);
    const double now = Now();
    laps->push_back(now - last);
    last = now;
  };
  lap(&times->noticed, [&] { return is_noticed(job); });
  const double noticed = last;
  lap(&times->decided, [&] { return training->Now().attempt() > job.attempt(); });
  lap(&times->started, [&] { return AllAtLeast(training, telemetry::v1::PHASE_LOADING, pids); });
  lap(&times->loaded, [&] { return AllAtLeast(training, telemetry::v1::PHASE_FIRST_STEP, pids); });
  lap(&times->stepping, [&] {
    const Job now = training->Now();
    return now.attempt() > job.attempt() && now.last_record().attempt() == now.attempt();
  });
  times->all.push_back(last - struck);
  times->since_noticed.push_back(last - noticed);
  return seen;
}

void PrintRow(const char* what, const std::vector<double>& seconds) {
  std::cout << absl::StrFormat("  %-52s %7.0f ms  (worst %.0f)\n", what,
                               1e3 * Quantile(seconds, 0.5), 1e3 * Quantile(seconds, 1));
}

void PrintRecovery(const Times& times) {
  PrintRow("decided: fenced, the next attempt is placed", times.decided);
  PrintRow("started: processes joined their groups", times.started);
  PrintRow("loaded: weights and moments are back", times.loaded);
  PrintRow("stepping: a step was completed and reported", times.stepping);
}

void PrintStep(const Job& job) {
  std::cout << absl::StrFormat("  beside it: a step of this job takes %.0f ms\n",
                               1e3 * job.last_record().seconds());
}

// Says on standard error that the job did not go on, and returns false.
bool DidNotGoOn(const char* what, int number, const Job& job) {
  std::cerr << absl::StrFormat("%s %d: the job did not go on: %s: %s\n", what, number, job.reason(),
                               job.message());
  return false;
}

}  // namespace

bool MeasureRecovery(const std::string& job_file, int kills) {
  TrainingCluster training(job_file);
  Times times;
  for (int i = 0; i < kills; ++i) {
    const auto kill = [&](const Job& job) {
      ::kill(job.ranks(i % kRanks).status().pid(), SIGKILL);
    };
    const auto recovers = [&](const Job& job) {
      const Job now = training.Now();
      return now.state() == control::v1::JOB_STATE_RECOVERING || now.attempt() > job.attempt();
    };
    if (!StrikeOnce(&training, kill, recovers, &times))
      return DidNotGoOn("kill", i + 1, training.Now());
  }
  std::cout << absl::StrFormat("kill -9 of a worker to the next completed step, median of %d\n",
                               kills);
  PrintRow("noticed: the driver says RECOVERING", times.noticed);
  PrintRecovery(times);
  PrintRow("all", times.all);
  PrintStep(training.Now());
  return true;
}

bool MeasureLostMachine(const std::string& job_file, int losses) {
  TrainingCluster training(job_file, "quick", {"checkpoint.interval=10"});
  Times times;
  for (int i = 0; i < losses; ++i) {
    if (!training.AddTestedSpare()) {
      std::cerr << "a machine did not pass its tests, or did not become a spare\n";
      return false;
    }
    std::string lost;
    const auto lose = [&](const Job& job) {
      lost = job.ranks(i % 2 == 0 ? 0 : kRanks - 1).node_id();
      training.cluster().KillAgent(std::stoi(lost.substr(1)));
    };
    const auto is_dead = [&](const Job&) { return !training.Node(lost).alive(); };
    if (!StrikeOnce(&training, lose, is_dead, &times))
      return DidNotGoOn("loss", i + 1, training.Now());
  }
  std::cout << absl::StrFormat(
      "a machine is lost, a tested spare takes its place, and the job goes on from storage: median "
      "of %d\n",
      losses);
  PrintRow("declared dead: silent for the driver's --node-timeout", times.noticed);
  PrintRecovery(times);
  PrintRow("all since it was declared dead", times.since_noticed);
  PrintStep(training.Now());
  return true;
}

bool MeasureDriverRestart(const std::string& job_file, int restarts) {
  TrainingCluster training(job_file);
  std::vector<double> listens;
  std::vector<double> back;
  for (int i = 0; i < restarts; ++i) {
    if (!training.AwaitSteps()) {
      std::cerr << "the job does not make steps: " << training.Now().message() << "\n";
      return false;
    }
    training.cluster().KillDriver();
    const double begin = Now();
    training.cluster().StartDriver();
    listens.push_back(Now() - begin);
    const bool all_back = Until([&] {
      const Job now = training.Now();
      int known = 0;
      for (const auto& rank : now.ranks()) known += rank.status().pid() > 0 ? 1 : 0;
      return known == kRanks;
    });
    back.push_back(Now() - begin);
    const Job job = training.Now();
    if (!all_back || job.attempt() != 1) {
      std::cerr << absl::StrFormat("restart %d: attempt %d, %s: %s\n", i + 1, job.attempt(),
                                   job.reason(), job.message());
      return false;
    }
  }
  std::cout << absl::StrFormat("restart of a killed driver, median of %d\n", restarts);
  PrintRow("it answers (with the start of a `megascale list`)", listens);
  PrintRow("all agents and ranks are taken back", back);
  std::cout << "  no worker was restarted\n";
  return true;
}

}  // namespace megascale::bench
