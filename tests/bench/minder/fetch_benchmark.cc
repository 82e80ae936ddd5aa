// The whole of one look of `megascale minder`, in one number: fetching the series of all machines
// from their agents through a real driver, and finding the machine that differs. Agents are
// simulated, in this process; what they answer is made up (runtime/minder/testing). Some may be
// silent. The driver is that of the program, in a process of its own.
//   fetch_benchmark [--agents N] [--silent N] [--turns N] [--threads N]
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "cli/minder/job_series.h"
#include "controlplane/address/address.h"
#include "controlplane/client/job_client.h"
#include "runtime/minder/examine.h"
#include "runtime/minder/testing/fault_generator.h"
#include "tests/bench/control/fleet.h"
#include "tests/e2e/cluster.h"

namespace megascale::bench {
namespace {

constexpr absl::Duration kDeadline = absl::Minutes(5);
constexpr int kTemplates = 6;  // healthy machines with series of their own; the others repeat them
constexpr int kFaulty = 7;     // the machine

struct FetchFlags {
  int num_agents = 1500;
  int num_silent = 0;
  int turns = 3;
  int num_threads = 2;
};

// A machine's samples, as its agent has them: the task's metrics in place of the agents' own.
telemetry::v1::Evidence EvidenceOf(const minder::Task& task, size_t machine) {
  telemetry::v1::Evidence evidence;
  const auto value = [&](size_t metric, size_t t) {
    return static_cast<double>(task.metrics[metric].machines[machine][t]);
  };
  constexpr int64_t kSecond = 1'000'000'000;
  for (size_t t = 0; t < minder::kTaskSeconds; ++t) {
    auto* sample = evidence.add_samples();
    sample->set_monotonic_nanos(static_cast<int64_t>(t + 1) * kSecond);
    sample->set_busy_cores(2 * value(1, t));
    sample->set_throttled_share(value(0, t));
    sample->set_memory_available_bytes(int64_t{1} << 38);
    sample->set_disk_written_bytes(1e6 * value(2, t));
    sample->set_disk_free_bytes(int64_t{1} << 40);
    auto* interface = sample->add_interfaces();
    interface->set_name("eth0");
    interface->set_received_bytes(1e9 * value(6, t));
    interface->set_sent_bytes(1e9 * value(6, t));
    auto* rank = sample->add_ranks();
    rank->set_job_id(kFleetJobId);
    rank->set_busy_cores(value(4, t));
    rank->set_compute_share(value(5, t));
    rank->set_memory_bytes(int64_t{1} << 30);
  }
  evidence.set_monotonic_nanos((minder::kTaskSeconds + 1) * kSecond);
  return evidence;
}

// The first task in which one machine has a strong fault and no other a burst.
minder::Task TaskWithFault() {
  minder::TaskOptions options = {.num_machines = kTemplates, .has_fault = true};
  options.has_metrics = false;
  for (;; ++options.seed) {
    const minder::Task task = minder::MakeTask(options);
    if (task.is_visible && task.spells.size() == 1 && task.spells[0].strength > 0.8) break;
  }
  options.has_metrics = true;
  return minder::MakeTask(options);
}

// Healthy machines repeat those of a small task; one has a fault.
Fleet::Options FleetOf(const FetchFlags& flags) {
  const minder::Task task = TaskWithFault();
  Fleet::Options fleet;
  fleet.slots = 1;
  fleet.num_agents = flags.num_agents;
  fleet.num_silent = flags.num_silent;
  for (size_t machine = 0; machine < kTemplates; ++machine) {
    fleet.samples.push_back(EvidenceOf(task, machine));
  }
  const auto faulty = static_cast<size_t>(task.faulty);
  for (int agent = 0; agent < flags.num_agents; ++agent) {
    size_t of = static_cast<size_t>(agent) % kTemplates;
    if (of == faulty) of = (of + 1) % kTemplates;
    fleet.samples_of.push_back(agent == kFaulty ? faulty : of);
  }
  return fleet;
}

bool Look(client::JobClient* client, const FetchFlags& flags) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds = [](auto duration) {
    return std::chrono::duration<double>(duration).count();
  };
  const auto begin = now();
  const auto series = cli::FetchSeries(client, kFleetJobId, [] { return false; });
  if (!series.ok()) {
    std::fprintf(stderr, "%s\n", std::string(series.status().message()).c_str());
    return false;
  }
  const auto fetched = now();
  const minder::Examination found =
      minder::Examine(series->recording, series->groups, minder::DefaultModels(),
                      {.num_threads = flags.num_threads});
  const auto end = now();
  const std::string named = found.verdict.has_value() ? found.verdict->machine : "";
  std::printf(
      "%d agents, %d silent: fetch %.2f s, look %.2f s, both %.2f s; %zu machines compared, %s\n",
      flags.num_agents, flags.num_silent, seconds(fetched - begin), seconds(end - fetched),
      seconds(end - begin), found.num_compared,
      named.empty() ? "nobody is named" : (named + " is named").c_str());
  std::fflush(stdout);
  return named == Fleet::NodeId(kFaulty);
}

// Submits the job and waits until its ranks run.
bool BeginJob(client::JobClient* client, int num_agents) {
  const auto submitted = client->Submit(JobForFleet(num_agents, 1), {.time = absl::Minutes(1)});
  if (!submitted.ok()) {
    std::fprintf(stderr, "%s\n", std::string(submitted.status().message()).c_str());
    return false;
  }
  const absl::Time end = absl::Now() + kDeadline;
  while (absl::Now() < end) {
    const auto job = client->Get(kFleetJobId);
    if (job.ok() && job->state() == control::v1::JOB_STATE_RUNNING &&
        job->ranks_size() == num_agents) {
      return true;
    }
    absl::SleepFor(absl::Milliseconds(100));
  }
  std::fprintf(stderr, "the job did not begin in %s\n", absl::FormatDuration(kDeadline).c_str());
  return false;
}

bool Measure(const FetchFlags& flags) {
  e2e::Cluster cluster;
  cluster.StartDriver();
  Fleet::Options options = FleetOf(flags);
  options.address = cluster.address();
  const Fleet fleet(std::move(options));
  client::ClientOptions client_options;
  client_options.address = client::ParseAddress(cluster.address()).value();
  const auto client = client::JobClient::Create(client_options).value();
  if (!BeginJob(client.get(), flags.num_agents)) return false;
  bool is_right = true;
  for (int turn = 0; turn < flags.turns; ++turn) is_right = Look(client.get(), flags) && is_right;
  return is_right;
}

}  // namespace
}  // namespace megascale::bench

int main(int argc, char** argv) {
  megascale::bench::FetchFlags flags;
  CLI::App app("Fetches the series of simulated agents and finds the machine that differs.");
  // The faulty machine, and the healthy ones whose series the others repeat, always answer.
  constexpr int kAnswering = megascale::bench::kFaulty + 1;
  app.add_option("--agents", flags.num_agents)->check(CLI::Range(kAnswering, 100'000));
  app.add_option("--silent", flags.num_silent, "agents that never answer")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--turns", flags.turns)->check(CLI::PositiveNumber);
  app.add_option("--threads", flags.num_threads)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (flags.num_silent > flags.num_agents - kAnswering) {
    std::fprintf(stderr, "--silent %d: at least %d agents must answer\n", flags.num_silent,
                 kAnswering);
    return 2;
  }
  return megascale::bench::Measure(flags) ? 0 : 1;
}
