#include "tests/sim/simulation.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/agent_node.h"
#include "tests/sim/checkers/cause_checker.h"
#include "tests/sim/checkers/commit_checkers.h"
#include "tests/sim/checkers/job_checkers.h"
#include "tests/sim/checkers/link_checker.h"
#include "tests/sim/checkers/status_checkers.h"
#include "tests/sim/checkers/step_checkers.h"
#include "tests/sim/checkpoint_storage.h"
#include "tests/sim/driver_node.h"
#include "tests/sim/faults.h"
#include "tests/sim/liar.h"
#include "tests/sim/network.h"
#include "tests/sim/operators.h"
#include "tests/sim/worker_process.h"

namespace megascale::sim {
namespace {

constexpr int64_t kAgentsMax = 8;
constexpr int kJobsMax = 4;
constexpr uint64_t kTurnsSalt = uint64_t{53} << 32;
constexpr uint64_t kLiesSalt = uint64_t{59} << 32;

// The share of seeds with a large cluster; such a seed takes as long as a hundred others.
constexpr double kLargeSeeds = 0.005;
constexpr int64_t kLargeAgentsMax = 64;
constexpr int kLargeJobsMax = 32;
constexpr int64_t kSlotsMax = 4;
constexpr absl::Duration kStormMin = absl::Seconds(10);
constexpr absl::Duration kStormMax = absl::Seconds(60);
// When SimulationOptions::driver_away begins; jobs are running by then.
constexpr absl::Duration kDriverEnds = absl::Seconds(8);
// When SimulationOptions::reporter_fault happens.
constexpr absl::Duration kReporterFails = absl::Seconds(7);
// When SimulationOptions::drain happens.
constexpr absl::Duration kDrains = absl::Seconds(7);
// After the last fault every job has ended within this.
constexpr absl::Duration kEndWithin = absl::Seconds(1500);

// Counts events for the outcome.
class Census : public Observer {
 public:
  Census(const World* world, Outcome* outcome) : world_(*world), outcome_(*outcome) {}
  void OnState(const DriverState& before, const DriverState& after) override {
    outcome_.had_old_driver = outcome_.had_old_driver || world_.old_driver;
    if (world_.old_driver) {
      for (const auto& node : after.nodes()) joined_old_.insert(node.hello().incarnation());
    }
    for (const JobRecord& job : after.jobs()) {
      const JobRecord* old = driver::FindJob(before, driver::JobId(job));
      if (old == nullptr || old->attempt() == job.attempt()) continue;
      ++outcome_.num_attempts;
      outcome_.num_not_met +=
          absl::StrContains(old->culprit().evidence(), WorkerProcess::kNotMet) ? 1 : 0;
      outcome_.num_failed_links +=
          old->culprit().failure_class() == telemetry::FAILURE_CLASS_LINK ? 1 : 0;
      if (old->attempt() == 0) continue;
      outcome_.num_from_memory +=
          job.restore().source() == agent::RestorePoint::SOURCE_MEMORY ? 1 : 0;
      outcome_.num_from_storage +=
          job.restore().source() == agent::RestorePoint::SOURCE_STORAGE ? 1 : 0;
    }
  }
  void OnReadRefused(const ProcessName& process) override { ++outcome_.num_reads_refused; }
  void OnDrained(const std::string& node_id) override { ++outcome_.num_drained; }
  void OnTestStarted(const std::string& incarnation) override {
    outcome_.num_tested_late += joined_old_.erase(incarnation) > 0 ? 1 : 0;
  }
  void OnEnd(const DriverState& durable) override {
    for (const JobRecord& job : durable.jobs()) {
      outcome_.num_succeeded += job.state() == control::JOB_STATE_SUCCEEDED ? 1 : 0;
    }
    for (const auto& node : durable.nodes()) {
      outcome_.num_in_rounds += node.exchanges().has_round() ? 1 : 0;
    }
  }

 private:
  const World& world_;
  Outcome& outcome_;
  std::set<std::string> joined_old_;  // incarnations
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options)
      : keep_going_(options.keep_going),
        stop_at_(options.stop_at),
        calm_(options.calm),
        driver_away_(options.driver_away),
        restore_after_(options.restore_after),
        undeclared_(options.undeclared),
        upgrade_after_(options.upgrade_after),
        reporter_fault_(options.reporter_fault),
        link_fault_(options.link_fault),
        link_fails_after_(options.link_fails_after),
        drain_(options.drain),
        draws_numerics_(options.draws_numerics),
        draws_evaluations_(options.draws_evaluations),
        world_(options.seed, options.trace, options.tampering),
        storage_(&world_),
        collective_(&world_),
        driver_(&world_),
        network_(&world_, &driver_) {
    const Cluster cluster = {&world_, &network_, &collective_, &storage_};
    if (world_.rng.Chance(0.5)) world_.machine_tests = agent::TEST_KIND_QUICK;
    world_.forgets_jobs = !calm_ && world_.rng.Chance(0.1);
    const bool is_large = world_.rng.Chance(kLargeSeeds);
    const int64_t num_agents = is_large ? world_.rng.Between(kAgentsMax, kLargeAgentsMax)
                                        : world_.rng.Between(1, kAgentsMax);
    for (int64_t i = 0; i < num_agents; ++i) AddAgent(cluster, absl::StrCat("n", i));
    Rng links(Rng(world_.rng).Next());  // apart: the other draws of a seed stay what they were
    if (!calm_ && links.Chance(0.3)) {
      world_.bad_links.insert(agents_[links.Index(agents_.size())]->node_id());
    }
    DrawVersions();
    // Apart, so that seeds which once broke an invariant stay what they were.
    world_.logs_take_turns = Rng(options.seed ^ kTurnsSalt).Chance(0.2);
    faults_ = std::make_unique<Faults>(cluster, &driver_, agents_, options.calm);
    DrawOperators(is_large);
    // Apart, too. A liar's processes cannot be fenced, for which a restored log waits.
    Rng lies(options.seed ^ kLiesSalt);
    if (!calm_ && restore_after_ == absl::ZeroDuration() && lies.Chance(0.25)) {
      liar_ = std::make_unique<Liar>(cluster, driver_, lies);
    }
  }

  Outcome Run() {
    AddObservers();
    const absl::Duration storm = world_.rng.Between(kStormMin, kStormMax);
    driver_.Start();
    for (const auto& agent : agents_) {
      world_.timeline.At(world_.rng.Between(absl::ZeroDuration(), absl::Seconds(2)),
                         [&agent] { agent->Start(); });
    }
    for (size_t i = 0; i < num_lost_; ++i) {
      world_.timeline.At(world_.rng.Between(absl::Seconds(3), storm),
                         [this, i] { agents_[i]->Remove(); });
    }
    operators_->Start(storm);
    faults_->Start(storm);
    if (liar_ != nullptr) liar_->Start(storm);
    if (world_.old_driver && upgrade_after_ < absl::InfiniteDuration()) {
      world_.timeline.At(upgrade_after_, [this] { driver_.Upgrade(); });
    }
    for (size_t i = 0; i < upgrade_at_.size(); ++i) {
      world_.timeline.At(storm * upgrade_at_[i],
                         [this, i] { agents_[i]->Upgrade("2", absl::Milliseconds(300)); });
    }
    if (driver_away_ > absl::ZeroDuration()) {
      world_.timeline.At(kDriverEnds, [this] { driver_.Crash("kill -9", driver_away_); });
    }
    if (reporter_fault_ != ReporterFault::kNone) {
      world_.timeline.At(kReporterFails, [this] {
        outcome_.num_reporter_faults += faults_->FailReporter(reporter_fault_) ? 1 : 0;
      });
    }
    if (link_fault_ != LinkFault::kNone) {
      world_.timeline.At(link_fails_after_, [this] { faults_->CutLinkForGood(link_fault_); });
    }
    if (drain_) world_.timeline.At(kDrains, [this] { faults_->DrainOne(); });
    while (GoesOn() && !IsOver(storm)) {
      if (world_.timeline.now() > storm + kEndWithin) {
        SayUnended();
        break;
      }
      if (!world_.timeline.RunNext()) break;
    }
    world_.Tell(&Observer::OnEnd, driver_.durable());
    outcome_.violations = world_.violations;
    outcome_.hash = world_.timeline.hash();
    outcome_.num_lines = world_.timeline.num_lines();
    outcome_.virtual_time = world_.timeline.now();
    outcome_.num_outdated = driver_.num_outdated();
    outcome_.num_refused = driver_.num_refused();
    outcome_.num_jobs = static_cast<int64_t>(operators_->num_jobs());
    return outcome_;
  }

 private:
  void AddAgent(const Cluster& cluster, const std::string& node_id) {
    AgentNode::Identity identity;
    identity.node_id = node_id;
    identity.num_slots = static_cast<int>(world_.rng.Between(1, kSlotsMax));
    identity.is_old = world_.rng.Chance(0.1);
    if (identity.is_old) world_.old_agents.insert(node_id);
    agents_.push_back(std::make_unique<AgentNode>(cluster, identity));
  }

  void DrawVersions() {
    // Apart, and unlike `links`: the other draws of a seed stay what they were.
    Rng versions(~Rng(world_.rng).Next());
    const bool draws = !calm_ && restore_after_ == absl::ZeroDuration();
    if (draws && upgrade_after_ == absl::ZeroDuration() && versions.Chance(0.1)) {
      upgrade_after_ = versions.Chance(0.2) ? absl::InfiniteDuration()
                                            : versions.Between(absl::Seconds(3), kStormMax);
    }
    world_.old_driver = upgrade_after_ > absl::ZeroDuration();
    if (draws && draws_numerics_ && versions.Chance(0.15)) DrawNumerics(&versions);
  }

  // The machines get a new numerics version one by one during the storm. A job that fits on no
  // machines of one version waits until then.
  void DrawNumerics(Rng* versions) {
    outcome_.had_numerics = true;
    for (const auto& agent : agents_) {
      if (versions->Chance(0.1)) continue;  // its first agent does not tell
      agent->SetNumerics(versions->Chance(0.5) ? "1" : "2");
    }
    for (size_t i = 0; i < agents_.size(); ++i) {
      upgrade_at_.push_back(static_cast<double>(versions->Between(5, 99)) / 100);
    }
  }

  // Some machines may be lost for good, the first ones, and the last one may be a spare; jobs fit
  // into the others.
  void DrawOperators(bool is_large) {
    Operators::Options options;
    options.jobs_max = is_large ? kLargeJobsMax : kJobsMax;
    options.draws_evaluations = draws_evaluations_;
    if (!calm_ && world_.rng.Chance(0.3)) num_lost_ = world_.rng.Index(agents_.size());
    size_t end = agents_.size();
    if (end - num_lost_ > 1 && world_.rng.Chance(0.2)) {
      options.spare_node = agents_[--end]->node_id();
    }
    int num_pairs = 0;
    options.num_slots = 0;
    for (size_t i = num_lost_; i < end; ++i) {
      options.num_slots += agents_[i]->num_slots();
      num_pairs += agents_[i]->num_slots() / 2;
    }
    // A job of groups of two needs machines with two slots each: then slots are counted in pairs.
    if (num_pairs > 0 && world_.rng.Chance(0.3)) {
      options.num_slots = 2 * num_pairs;
      options.tensor_max = 2;
    }
    const bool evicts = !calm_ && world_.rng.Chance(0.25) && restore_after_ == absl::ZeroDuration();
    if (evicts) options.evicted_node = agents_[world_.rng.Index(agents_.size())]->node_id();
    operators_ = std::make_unique<Operators>(&world_, &driver_, options);
  }

  void AddObservers() {
    if (restore_after_ > absl::ZeroDuration()) return AddObserversOfRestore();
    checkers_.push_back(std::make_unique<CommitChecker>(&world_, &storage_));
    checkers_.push_back(std::make_unique<KeptChecker>(&world_));
    checkers_.push_back(std::make_unique<FenceChecker>(&world_));
    checkers_.push_back(std::make_unique<PreflightChecker>(&world_));
    checkers_.push_back(std::make_unique<NumericsChecker>(&world_));
    checkers_.push_back(std::make_unique<TestedChecker>(&world_));
    checkers_.push_back(std::make_unique<StarvationChecker>(&world_));
    checkers_.push_back(std::make_unique<RestoreChecker>(&world_));
    checkers_.push_back(std::make_unique<TerminalChecker>(&world_));
    checkers_.push_back(std::make_unique<AcknowledgedChecker>(&world_));
    checkers_.push_back(std::make_unique<RestartChecker>(&world_));
    checkers_.push_back(std::make_unique<InitialChecker>(&world_));
    checkers_.push_back(std::make_unique<BlameChecker>(&world_));  // first: it tells causes
    checkers_.push_back(std::make_unique<CauseChecker>(&world_));
    checkers_.push_back(std::make_unique<SuspectChecker>(&world_));
    checkers_.push_back(std::make_unique<PoolChecker>(&world_));
    checkers_.push_back(std::make_unique<StrangerChecker>(&world_));
    if (drain_) checkers_.push_back(std::make_unique<DrainChecker>(&world_));
    checkers_.push_back(std::make_unique<LinkAvoidedChecker>(&world_));
    if (link_fault_ != LinkFault::kNone) {
      checkers_.push_back(std::make_unique<LinkOnlyChecker>(&world_));
    }
    checkers_.push_back(std::make_unique<LivenessChecker>(&world_));
    checkers_.push_back(std::make_unique<StorageChecker>(&world_));
    checkers_.push_back(std::make_unique<TimeChecker>(&world_));
    checkers_.push_back(std::make_unique<DurationChecker>(&world_));
    checkers_.push_back(std::make_unique<StatusChecker>(&world_, &storage_));
    checkers_.push_back(std::make_unique<AgeChecker>(&world_));
    checkers_.push_back(std::make_unique<LossLogChecker>(&world_, &driver_));
    checkers_.push_back(std::make_unique<KeepersChecker>(&world_));
    if (calm_ && !drain_ && driver_away_ + upgrade_after_ == absl::ZeroDuration() &&
        reporter_fault_ != ReporterFault::kBothCut) {
      checkers_.push_back(std::make_unique<PromptnessChecker>(&world_, &driver_));
    }
    checkers_.push_back(std::make_unique<Census>(&world_, &outcome_));
    for (const auto& checker : checkers_) world_.observers.push_back(checker.get());
  }

  // A restored log may lack what was acknowledged after the copy was made, and repeats steps. So
  // the other checkers would find what nobody promised.
  void AddObserversOfRestore() {
    checkers_.push_back(std::make_unique<EpochChecker>(&world_));
    checkers_.push_back(std::make_unique<TestedChecker>(&world_));
    checkers_.push_back(std::make_unique<CommitChecker>(&world_, &storage_));
    checkers_.push_back(std::make_unique<FenceChecker>(&world_));
    checkers_.push_back(std::make_unique<PreflightChecker>(&world_));
    checkers_.push_back(std::make_unique<LivenessChecker>(&world_));
    checkers_.push_back(std::make_unique<LossLogChecker>(&world_, &driver_));
    checkers_.push_back(std::make_unique<Census>(&world_, &outcome_));
    for (const auto& checker : checkers_) world_.observers.push_back(checker.get());
    const absl::Duration copied = world_.old_driver ? upgrade_after_ : kDriverEnds;
    world_.timeline.At(copied, [this] { driver_.BackUp(); });
    const auto restore = [this, was_old = world_.old_driver](absl::Duration when, bool declared) {
      world_.timeline.At(when, [this, was_old, declared] {
        world_.old_driver = was_old;
        driver_.Restore(absl::Seconds(1), declared);
      });
    };
    const absl::Duration lost = copied + restore_after_;
    if (undeclared_ > absl::ZeroDuration()) restore(lost, false);
    restore(lost + undeclared_, true);
  }

  bool GoesOn() const {
    if (world_.violations.empty()) return true;
    return keep_going_ &&
           std::none_of(world_.violations.begin(), world_.violations.end(),
                        [this](const auto& one) { return one.invariant == stop_at_; });
  }

  bool IsOver(absl::Duration storm) const {
    if (world_.timeline.now() < storm || !operators_->done() || !driver_.up()) return false;
    const DriverState& state = driver_.durable();
    if (restore_after_ > absl::ZeroDuration() && !KnowsTheEpochEverywhere(state)) return false;
    return std::all_of(state.jobs().begin(), state.jobs().end(),
                       [](const JobRecord& job) { return driver::IsTerminal(job); });
  }

  // True when each agent that runs has ended the processes of older epochs, also those of jobs that
  // the restored log does not have, or that had ended in it.
  bool KnowsTheEpochEverywhere(const DriverState& state) const {
    return std::all_of(agents_.begin(), agents_.end(), [&](const auto& agent) {
      const auto* node = driver::FindNode(state, agent->node_id());
      return !agent->up() || (node != nullptr && node->alive() &&
                              (node->has_quarantine() || driver::HasFencedEpoch(state, *node)));
    });
  }

  void SayUnended() {
    for (const JobRecord& job : driver_.durable().jobs()) {
      if (driver::IsTerminal(job)) continue;
      world_.Violate("RunsOrEnds",
                     absl::StrCat("job ", driver::JobId(job), " did not end within ",
                                  absl::FormatDuration(kEndWithin),
                                  " after the last fault: ", job.reason(), ": ", job.message()));
    }
    world_.Violate("RunsOrEnds", "an operator was not answered");
  }

  const bool keep_going_;
  const std::string stop_at_;
  const bool calm_;
  const absl::Duration driver_away_;
  const absl::Duration restore_after_;
  const absl::Duration undeclared_;
  absl::Duration upgrade_after_;
  const ReporterFault reporter_fault_;
  const LinkFault link_fault_;
  const absl::Duration link_fails_after_;
  const bool drain_;
  const bool draws_numerics_;
  const bool draws_evaluations_;
  World world_;
  CheckpointStorage storage_;
  Collective collective_;
  DriverNode driver_;
  Network network_;
  std::vector<std::unique_ptr<AgentNode>> agents_;
  size_t num_lost_ = 0;             // of the first ones
  std::vector<double> upgrade_at_;  // of each agent, as a share of the storm; empty: never
  std::unique_ptr<Operators> operators_;
  std::unique_ptr<Faults> faults_;
  std::unique_ptr<Liar> liar_;  // null: nobody lies
  std::vector<std::unique_ptr<Observer>> checkers_;
  Outcome outcome_;
};

}  // namespace

Outcome Simulate(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace megascale::sim
