#include <algorithm>
#include <atomic>
#include <functional>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "controlplane/address/address.h"
#include "controlplane/client/job_client.h"
#include "proto/agent.pb.h"
#include "tests/bench/control/benchmarks.h"
#include "tests/bench/control/fleet.h"
#include "tests/bench/control/measures.h"
#include "tests/e2e/cluster.h"

namespace megascale::bench {
namespace {

using control::v1::Job;

constexpr int kWaitSeconds = 300;

std::unique_ptr<client::JobClient> ClientOf(const e2e::Cluster& cluster) {
  client::ClientOptions options;
  options.address = client::ParseAddress(cluster.address()).value();
  return client::JobClient::Create(options).value();
}

// Calls `call` with 0 to `count` - 1, on several threads.
void InParallel(int count, const std::function<void(int)>& call) {
  constexpr int kThreads = 16;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = thread; i < count; i += kThreads) call(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Makes jobs that have ended: they are cancelled before there is any agent.
void Retain(client::JobClient* client, int count) {
  const double begin = Now();
  std::atomic<int> failures = 0;
  InParallel(count, [&](int i) {
    control::v1::SubmitJobRequest request = JobForFleet(1, 1);
    request.set_job_id(absl::StrCat("retained-", i));
    const auto submitted = client->Submit(request, {.time = absl::Seconds(30)});
    control::v1::CancelJobRequest cancel;
    cancel.set_job_id(request.job_id());
    const auto cancelled = client->Cancel(cancel);
    if (!submitted.ok() || !cancelled.ok()) ++failures;
  });
  std::cout << absl::StrFormat("  %d jobs submitted and ended in %.1f s, %d failed\n", count,
                               Now() - begin, failures.load());
}

// Watches a job until it is destroyed.
class Watchers {
 public:
  Watchers(const e2e::Cluster& cluster, int count, int ranks_max) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, ranks_max, own = ClientOf(cluster)] {
        client::StreamCallbacks<control::v1::WatchJobResponse> callbacks;
        callbacks.on_message = [this](const control::v1::WatchJobResponse&) { ++messages_; };
        callbacks.should_stop = [this] { return stopping_.load(); };
        (void)own->Watch(kFleetJobId, callbacks, ranks_max);
      });
    }
  }
  ~Watchers() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t messages() const { return messages_; }

 private:
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> messages_ = 0;
  std::vector<std::thread> threads_;
};

// Reads the metrics of all machines of a job once, as `megascale minder watch` does, and returns
// what that costs the driver beside `share`, what it takes of a core anyway.
std::string TimeMetrics(client::JobClient* client, const e2e::Cluster& cluster, double share,
                        int interval_seconds) {
  control::v1::StreamEvidenceRequest request;
  request.set_job_id(kFleetJobId);
  request.set_kind(telemetry::v1::EVIDENCE_KIND_METRICS);
  request.set_as_series(true);
  int machines = 0;
  int64_t bytes = 0;
  client::StreamCallbacks<control::v1::StreamEvidenceResponse> callbacks;
  callbacks.on_message = [&](const control::v1::StreamEvidenceResponse& response) {
    machines += response.evidence().series().columns_size() > 0 ? 1 : 0;
    bytes += static_cast<int64_t>(response.ByteSizeLong());
  };
  const absl::Duration before = UseOf(cluster.driver_pid()).cpu;
  const double begin = Now();
  const absl::Status status = client->Evidence(request, callbacks);
  if (!status.ok()) return absl::StrCat("  metrics: ", status.ToString(), "\n");
  const double elapsed = Now() - begin;
  const ProcessUse after = UseOf(cluster.driver_pid());
  const double cpu = absl::ToDoubleSeconds(after.cpu - before) - share * elapsed;
  return absl::StrFormat(
      "  the metrics of %d machines, %.1f MiB, are read in %.1f s, for %.1f s of a core of the "
      "driver's; every %d s that is %.1f %% of a core; %.0f MiB\n",
      machines, static_cast<double>(bytes) / (1 << 20), elapsed, cpu, interval_seconds,
      100 * cpu / interval_seconds, static_cast<double>(after.memory_bytes) / (1 << 20));
}

bool AwaitState(client::JobClient* client, control::v1::JobState state) {
  return e2e::WaitUntil(
      [&] {
        const auto job = client->Get(kFleetJobId);
        return job.ok() && job->state() == state;
      },
      kWaitSeconds);
}

// Returns the time that protobuf alone needs to parse a report.
double SecondsToParse(const std::string& report) {
  constexpr int kTimes = 2000;
  const double begin = Now();
  for (int i = 0; i < kTimes; ++i) {
    agent::v1::ActualState parsed;
    if (!parsed.ParseFromString(report)) return 0;
  }
  return (Now() - begin) / kTimes;
}

// Submits the jobs of the fleet, and waits until they train.
void SubmitJobs(client::JobClient* client, const FleetLoad& load) {
  const double submitted = Now();
  InParallel(load.running, [&](int i) {
    control::v1::SubmitJobRequest request = JobForFleet(1, load.slots);
    request.set_job_id(absl::StrCat("small-", i));
    const auto job = client->Submit(request, {.time = absl::Seconds(30)});
    if (!job.ok()) std::cerr << job.status() << "\n";
  });
  const int agents = load.agents - load.running;
  const auto job = client->Submit(JobForFleet(agents, load.slots), {.time = absl::Seconds(30)});
  if (!job.ok()) std::cerr << job.status() << "\n";
  const bool trains = AwaitState(client, control::v1::JOB_STATE_RUNNING);
  std::cout << absl::StrFormat(
      "  a job of %d ranks%s %s %.1f s after the first submit\n", agents * load.slots,
      load.running > 0 ? absl::StrCat(", after ", load.running, " of ", load.slots, " ranks each,")
                       : "",
      trains ? "trains" : "does NOT train", Now() - submitted);
}

// Returns how long a read of one job, and of all jobs, takes.
std::string TimeReads(client::JobClient* client) {
  std::vector<double> one;
  std::vector<double> all;
  for (int i = 0; i < 10; ++i) {
    double begin = Now();
    const bool got = client->Get(kFleetJobId).ok();
    if (got) one.push_back(Now() - begin);
    begin = Now();
    const bool listed = client->Cluster().ok();
    if (listed) all.push_back(Now() - begin);
  }
  if (one.empty() || all.empty()) return "reads fail";
  return absl::StrCat("the large job ", Quantiles(one), "; all nodes ", Quantiles(all));
}

// Ends an agent of the large job, and returns when the others are told to leave the attempt. It is
// dead once it was silent for the driver's --node-timeout.
std::string TimeLostMachine(Fleet* fleet, const FleetLoad& load) {
  constexpr double kNodeTimeoutSeconds = 5;
  const int lost = load.running + (load.agents - load.running) / 2;
  const int others = load.agents - load.running - 1;
  if (others < 1) return "";
  fleet->Lose(lost);
  const double dead = fleet->LastReport(lost) + kNodeTimeoutSeconds;
  std::vector<double> told;
  const bool all = e2e::WaitUntil(
      [&] {
        told = fleet->LeftAt();
        return static_cast<int>(told.size()) == others;
      },
      kWaitSeconds);
  if (!all)
    return absl::StrFormat("  a machine was lost, and %d of %d were told\n", told.size(), others);
  return absl::StrFormat(
      "  a machine was silent for %.0f s: %.3f s later the first other one is told to leave the "
      "attempt, %.3f s after that all %d are\n",
      kNodeTimeoutSeconds, told.front() - dead, told.back() - told.front(), others);
}

}  // namespace

void MeasureFleet(const FleetLoad& load) {
  const int agents = load.agents;
  AllowManyFiles();
  e2e::Cluster cluster;
  if (load.retained > 0) cluster.SetDriverFlags({"--keep-jobs", absl::StrCat(2 * load.retained)});
  cluster.StartDriver();
  const auto client = ClientOf(cluster);
  std::cout << absl::StrFormat(
      "%d agents of %d ranks, one gRPC stream each, a report and a step per second\n", agents,
      load.slots);
  if (load.retained > 0) Retain(client.get(), load.retained);
  const double begin = Now();
  Fleet fleet({.address = cluster.address(),
               .num_agents = agents,
               .slots = load.slots,
               .checkpoint_steps = load.checkpoint_steps});
  const bool joined = e2e::WaitUntil(
      [&] {
        const auto nodes = client->Cluster();
        return nodes.ok() && nodes->nodes_size() == agents;
      },
      kWaitSeconds);
  std::cout << absl::StrFormat("  all %s after %.1f s\n", joined ? "joined" : "did NOT join",
                               Now() - begin);
  SubmitJobs(client.get(), load);
  const Watchers watchers(cluster, load.watchers, load.watched_ranks);
  absl::SleepFor(absl::Seconds(3));  // the joins and starts are over

  const std::string log = cluster.state_directory() + "/log";
  const ProcessUse before = UseOf(cluster.driver_pid());
  const int64_t log_before = BytesBelow(log);
  const int64_t reports_before = fleet.num_reports();
  const int64_t messages_before = watchers.messages();
  const double measured = Now();
  for (int step = 1; step <= load.seconds; ++step) {
    fleet.SetStep(step);
    const int between = load.seconds_between_failures;
    if (load.running > 0 && between > 0 && step % between == 0) fleet.Fail(step / between - 1);
    absl::SleepFor(absl::Seconds(1));
  }
  const double elapsed = Now() - measured;
  const ProcessUse after = UseOf(cluster.driver_pid());
  const auto reports = static_cast<double>(fleet.num_reports() - reports_before);
  const double cpu = absl::ToDoubleSeconds(after.cpu - before.cpu);
  std::cout << absl::StrFormat(
      "  over %.0f s: %.0f reports per second of %.0f bytes; the driver: %.0f %% of a core "
      "(%.0f us a report), %.0f MiB, its log grew by %d bytes\n",
      elapsed, reports / elapsed, fleet.report_bytes(), 100 * cpu / elapsed, 1e6 * cpu / reports,
      static_cast<double>(after.memory_bytes) / (1 << 20), BytesBelow(log) - log_before);
  if (load.watchers > 0) {
    std::cout << absl::StrFormat(
        "  %d watchers got %.2f messages a second each\n", load.watchers,
        static_cast<double>(watchers.messages() - messages_before) / elapsed / load.watchers);
  }
  if (load.metrics_seconds > 0) {
    std::cout << TimeMetrics(client.get(), cluster, cpu / elapsed, load.metrics_seconds);
  }
  std::cout << "  reads: " << TimeReads(client.get()) << "\n";
  std::cout << absl::StrFormat("  beside it: protobuf alone parses such a report in %.0f us\n",
                               1e6 * SecondsToParse(fleet.SampleReport(agents / 2)));

  std::cout << TimeLostMachine(&fleet, load);
}

void MeasureWatch(int watchers, int steps) {
  AllowManyFiles();
  e2e::Cluster cluster;
  cluster.StartDriver();
  const auto client = ClientOf(cluster);
  Fleet fleet({.address = cluster.address(), .num_agents = 1, .slots = 1});
  (void)client->Submit(JobForFleet(1, 1), {.time = absl::Seconds(10)});
  AwaitState(client.get(), control::v1::JOB_STATE_RUNNING);

  std::atomic<int64_t> step = 0;
  std::atomic<double> reported = 0;
  std::atomic<int> arrived = 0;
  std::atomic<int> open = 0;
  std::atomic<bool> stopping = false;
  std::vector<double> seconds;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < watchers; ++i) {
    threads.emplace_back([&] {
      const auto own = ClientOf(cluster);
      client::StreamCallbacks<control::v1::WatchJobResponse> callbacks;
      bool first = true;
      callbacks.on_message = [&](const control::v1::WatchJobResponse& response) {
        if (first) ++open;
        first = false;
        if (response.steps_size() == 0 || response.steps().rbegin()->step() != step) return;
        const double took = Now() - reported;
        const std::lock_guard<std::mutex> lock(mutex);
        seconds.push_back(took);
        ++arrived;
      };
      callbacks.should_stop = [&] { return stopping.load(); };
      (void)own->Watch(kFleetJobId, callbacks);
    });
  }
  e2e::WaitUntil([&] { return open == watchers; }, kWaitSeconds);
  int late = 0;
  const ProcessUse before = UseOf(cluster.driver_pid());
  const double begin = Now();
  for (int64_t next = 1; next <= steps; ++next) {
    arrived = 0;
    reported = Now();
    step = next;
    fleet.SetStep(next);
    fleet.ReportFirst();
    if (!e2e::WaitUntil([&] { return arrived == watchers; }, 30)) late += watchers - arrived;
  }
  const double elapsed = Now() - begin;
  const ProcessUse after = UseOf(cluster.driver_pid());
  stopping = true;
  for (std::thread& thread : threads) thread.join();
  if (seconds.empty()) seconds.push_back(0);
  std::cout << absl::StrFormat(
      "a step's report to %d watchers: %s, %d missed; the driver used %.0f %% of a core\n",
      watchers, Quantiles(seconds), late,
      100 * absl::ToDoubleSeconds(after.cpu - before.cpu) / elapsed);
}

}  // namespace megascale::bench
