// Benchmarks of the control plane, over real processes and sockets. See --help.
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/bench/control/benchmarks.h"

namespace megascale::bench {
namespace {

constexpr char kExamples[] = R"(
Without a name all parts run, one after the other.

Examples:
  control_benchmark --job examples/fortunes.yaml
  control_benchmark recovery --kills 20
  control_benchmark machine --losses 5
  control_benchmark fleet --agents 1536 --slots 8
  control_benchmark startup --ranks 256 12288 --barriers 256
  control_benchmark fleet --retained 10000 --running 999 --failures 5
)";

int Main(int argc, char** argv) {
  std::string job = "examples/fortunes.yaml";
  int kills = 10;
  int losses = 5;
  int submits = 20;
  int watchers = 500;
  int steps = 20;
  FleetLoad load;
  CLI::App app("Times the control plane.");
  app.footer(kExamples);
  app.fallthrough();
  app.add_option("--job", job, "the job file whose workers are killed")->capture_default_str();
  app.add_option("--kills", kills, "how often")->capture_default_str();
  app.add_option("--losses", losses, "of a machine")->capture_default_str();
  app.add_option("--submits", submits, "of each of 100 clients; ten times as many of one alone")
      ->capture_default_str();
  app.add_option("--watchers", watchers, "streams")->capture_default_str();
  app.add_option("--steps", steps, "that they are told of")->capture_default_str();
  app.add_option("--agents", load.agents, "of the fleet")->capture_default_str();
  app.add_option("--slots", load.slots, "ranks of each of them")->capture_default_str();
  app.add_option("--seconds", load.seconds, "for which the fleet is measured")
      ->capture_default_str();
  app.add_option("--retained", load.retained, "jobs that have ended and are kept")
      ->capture_default_str();
  app.add_option("--running", load.running, "jobs of one agent each, beside the large one")
      ->capture_default_str();
  app.add_option("--fleet-watchers", load.watchers, "of the fleet's large job")
      ->capture_default_str();
  app.add_option("--watched-ranks", load.watched_ranks,
                 "that each of them asks for, as `megascale watch` does; 0: all")
      ->capture_default_str();
  app.add_option("--metrics", load.metrics_seconds,
                 "seconds between two reads of the metrics of all machines; 0: nobody reads them")
      ->capture_default_str();
  app.add_option("--checkpoints", load.checkpoint_steps, "steps between two; 0: there are none")
      ->capture_default_str();
  app.add_option("--failures", load.seconds_between_failures,
                 "seconds between two failures of the jobs of one agent; 0: there are none")
      ->capture_default_str();
  const CLI::App* recovery = app.add_subcommand("recovery", "a killed worker to the next step");
  const CLI::App* machine =
      app.add_subcommand("machine", "a lost machine, replaced by a tested spare, to the next step");
  const CLI::App* restart = app.add_subcommand("restart", "a killed driver");
  const CLI::App* submit = app.add_subcommand("submit", "acknowledged submits");
  const CLI::App* watch = app.add_subcommand("watch", "fan-out to watchers");
  const CLI::App* fleet =
      app.add_subcommand("fleet", "a driver with many agents, and the loss of one of them");
  std::vector<int> start_ranks = {256, 1024, 2048, 4096, 12288};
  int barrier_ranks_max = 2048;
  CLI::App* startup = app.add_subcommand("startup", "the ranks of a job find each other");
  startup->add_option("--ranks", start_ranks, "of the jobs; multiples of 64")
      ->capture_default_str();
  startup
      ->add_option("--barriers", barrier_ranks_max,
                   "most ranks that are also timed with a barrier after each group")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto wanted = [&](const CLI::App* part) {
    return app.get_subcommands().empty() || part->parsed();
  };
  bool ok = true;
  if (wanted(recovery)) ok &= MeasureRecovery(job, kills);
  if (wanted(machine)) ok &= MeasureLostMachine(job, losses);
  if (wanted(restart)) ok &= MeasureDriverRestart(job, kills);
  if (wanted(submit)) MeasureSubmit(submits);
  if (wanted(watch)) MeasureWatch(watchers, steps);
  if (wanted(fleet)) MeasureFleet(load);
  if (wanted(startup)) MeasureStartup(start_ranks, barrier_ranks_max);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace megascale::bench

int main(int argc, char** argv) { return megascale::bench::Main(argc, argv); }
