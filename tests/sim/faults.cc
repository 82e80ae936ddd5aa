#include "tests/sim/faults.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/detection/step_reporters.h"

namespace megascale::sim {
namespace {

constexpr absl::Duration kAwayMin = absl::Milliseconds(300);
constexpr absl::Duration kAwayMax = absl::Seconds(5);
constexpr absl::Duration kLostMin = absl::Seconds(8);
constexpr absl::Duration kLostMax = absl::Seconds(40);
constexpr absl::Duration kGraceMax = absl::Seconds(6);
constexpr absl::Duration kStorageAwayMax = absl::Seconds(20);
constexpr double kCalmSeeds = 0.03;

}  // namespace

Faults::Faults(const Cluster& cluster, DriverNode* driver,
               const std::vector<std::unique_ptr<AgentNode>>& agents, bool calm)
    : cluster_(cluster),
      world_(*cluster.world),
      driver_(*driver),
      network_(*cluster.network),
      agents_(agents) {
  // Some kinds are listed several times, because they are more likely and have more consequences.
  constexpr std::array kAll = {
      &Faults::KillProcess,     &Faults::KillProcess,
      &Faults::KillProcess,     &Faults::HangProcess,
      &Faults::BreakConnection, &Faults::CrashDriverAtEffect,
      &Faults::CrashDriver,     &Faults::CrashDriverAtEffect,
      &Faults::FailDriverWrite, &Faults::StallDriver,
      &Faults::StepWallClock,   &Faults::CrashAgent,
      &Faults::LoseMachine,     &Faults::CrashAgentAtAction,
      &Faults::StallAgent,      &Faults::KillProcess,
      &Faults::HangProcess,     &Faults::FailStart,
      &Faults::FailPrepare,     &Faults::DelayKills,
      &Faults::CutOff,          &Faults::FailStorage,
      &Faults::BreakConnection, &Faults::FillStorage,
      &Faults::FailReads,       &Faults::FailReads,
      &Faults::LoseData,        &Faults::HangKills,
      &Faults::FailJobFiles,    &Faults::CorruptLossLog,
      &Faults::FailTest,        &Faults::HangTest,
      &Faults::StallReporter,   &Faults::CutOffReporter,
      &Faults::CutOffKeepers,   &Faults::DrainAgent,
      &Faults::CopyAgent,       &Faults::DamageCheckpoint,
      &Faults::DamageMemory,    &Faults::DamageDriverLog,
      &Faults::UnmountStorage,  &Faults::TakeDirectoryOver,
      &Faults::CutLink,
  };
  if (world_.rng.Chance(kCalmSeeds) || calm) {
    world_.storm = false;
    return;
  }
  const double share = static_cast<double>(world_.rng.Between(10, 100)) / 100;
  for (const Kind kind : kAll) {
    if (world_.rng.Chance(share)) kinds_.push_back(kind);
  }
  pause_max_ = world_.rng.Between(absl::Milliseconds(700), absl::Seconds(8));
}

void Faults::Start(absl::Duration until) {
  until_ = until;
  world_.timeline.At(until, [this] { Heal(); });
  if (kinds_.empty()) return;
  world_.timeline.At(world_.rng.Between(absl::ZeroDuration(), until / 2),
                     [this] { driver_.KeepCopyOfLog(); });
  // The first fault comes late enough that jobs may have begun.
  world_.timeline.After(world_.rng.Between(absl::ZeroDuration(), kGraceMax), [this] { Next(); });
}

void Faults::Next() {
  const absl::Duration pause = world_.rng.Between(absl::ZeroDuration(), pause_max_);
  world_.timeline.After(pause, [this] {
    if (world_.timeline.now() >= until_) return;
    (this->*kinds_[world_.rng.Index(kinds_.size())])();
    Next();
  });
}

void Faults::Heal() {
  world_.Break({}, "from now on nothing is broken any more");
  world_.storm = false;
  world_.storage_fails_until = world_.timeline.now();
  world_.storage_full_until = world_.timeline.now();
  world_.storage_away_until = world_.timeline.now();
  world_.reads_fail_until.clear();
  world_.data_gone_until.clear();
  world_.tests_fail_until.clear();
  world_.tests_hang_until.clear();
  world_.bad_links.clear();
  for (auto& [link, until] : world_.cut_until) until = std::min(until, world_.timeline.now());
  driver_.MendLog();
  for (const auto& agent : agents_) {
    network_.SetPartitioned(agent->node_id(), false);
    agent->DelayKills(absl::ZeroDuration());
    agent->HangKills(absl::ZeroDuration());
  }
  for (const auto& copy : copies_) copy->Remove();
  world_.Tell(&Observer::OnHealed);
}

AgentNode& Faults::AnyAgent() { return *agents_[world_.rng.Index(agents_.size())]; }

// --- the driver -------------------------------------------------------------------------------

void Faults::CrashDriver() {
  if (driver_.up()) driver_.Crash("kill -9");
}

void Faults::CrashDriverAtEffect() { driver_.CrashAtEffect(world_.rng.Between(1, 12)); }

// The disk fails, or a record of the log is too large to be written.
void Faults::FailDriverWrite() {
  world_.rng.Chance(0.5) ? driver_.FailNextWrite() : driver_.LimitRecords();
}

void Faults::StallDriver() {
  driver_.Stall(world_.rng.Between(absl::Milliseconds(500), absl::Seconds(15)));
}

void Faults::StepWallClock() {
  driver_.StepWallClock(world_.rng.Between(-absl::Hours(48), absl::Hours(48)));
}

// --- machines and agents ----------------------------------------------------------------------

void Faults::CrashAgent() { AnyAgent().Crash("kill -9", world_.rng.Between(kAwayMin, kAwayMax)); }

void Faults::CrashAgentAtAction() { AnyAgent().CrashAtAction(world_.rng.Between(1, 8)); }

void Faults::LoseMachine() {
  AnyAgent().Crash("the machine is lost", world_.rng.Between(kLostMin, kLostMax));
}

void Faults::DrainAgent() {
  AnyAgent().Drain(world_.rng.Between(absl::Seconds(10), absl::Seconds(60)),
                   world_.rng.Between(kAwayMin, kAwayMax));
}

bool Faults::DrainOne() {
  for (const JobRecord& job : driver_.durable().jobs()) {
    if (job.state() != control::JOB_STATE_RUNNING) continue;
    FindAgent(job.placements(0).node_id())->Drain(absl::Minutes(2), kAwayMax);
    return true;
  }
  return false;
}

// An agent on another machine has the node id of this one. The driver must not take it while this
// one reports.
void Faults::CopyAgent() {
  if (!world_.rng.Chance(0.3)) return;
  const AgentNode& agent = AnyAgent();
  world_.Say(agent.node_id(), "another agent with this node id starts");
  copies_.push_back(std::make_unique<AgentNode>(
      cluster_, AgentNode::Identity{.node_id = agent.node_id(),
                                    .num_slots = agent.num_slots(),
                                    .copy = static_cast<int>(copies_.size()) + 1}));
  copies_.back()->Start();
  world_.timeline.After(world_.rng.Between(absl::Seconds(2), absl::Seconds(40)),
                        [copy = copies_.back().get()] { copy->Remove(); });
}

// The whole agent stands still, or its loop is busy and its newest report is repeated.
void Faults::StallAgent() {
  AnyAgent().Stall(world_.rng.Between(absl::Milliseconds(500), absl::Seconds(10)),
                   world_.rng.Chance(0.5));
}

AgentNode* Faults::FindAgent(const std::string& node_id) {
  for (const auto& agent : agents_) {
    if (agent->node_id() == node_id) return agent.get();
  }
  return nullptr;
}

Faults::Keepers Faults::AnyKeepers() {
  for (const JobRecord& job : driver_.durable().jobs()) {
    if (job.state() != control::JOB_STATE_RUNNING) continue;
    const auto keepers = driver::StepReporters::KeepersOf(job);
    if (!keepers.deputy.empty()) return {FindAgent(keepers.first), FindAgent(keepers.deputy)};
  }
  return {};
}

void Faults::StallReporter() {
  if (const Keepers keepers = AnyKeepers(); keepers.first != nullptr) {
    keepers.first->Stall(world_.rng.Between(absl::Milliseconds(500), absl::Seconds(10)));
  }
}

void Faults::CutOffReporter() {
  if (const Keepers keepers = AnyKeepers(); keepers.first != nullptr) {
    CutOffFor(keepers.first->node_id(),
              world_.rng.Between(absl::Milliseconds(500), absl::Seconds(10)));
  }
}

// The newest steps are then with nobody else: if both are lost, they must be computed again.
void Faults::CutOffKeepers() {
  const Keepers keepers = AnyKeepers();
  if (keepers.first == nullptr) return;
  for (const AgentNode* keeper : {keepers.first, keepers.deputy}) {
    CutOffFor(keeper->node_id(), world_.rng.Between(absl::Seconds(1), absl::Seconds(12)));
  }
}

bool Faults::FailReporter(ReporterFault fault) {
  constexpr absl::Duration kShort = absl::Seconds(3);  // the node does not count as lost
  const Keepers keepers = AnyKeepers();
  if (keepers.first == nullptr) return false;
  switch (fault) {
    case ReporterFault::kNone:
      return false;
    case ReporterFault::kStops:
      keepers.first->Stall(kShort);
      return true;
    case ReporterFault::kBothCut:
      CutOffFor(keepers.deputy->node_id(), kShort);
      [[fallthrough]];
    case ReporterFault::kCutOff:
      CutOffFor(keepers.first->node_id(), kShort);
      return true;
    case ReporterFault::kLost:
      keepers.first->Crash("the machine is lost", kLostMin);
      return true;
  }
  return false;
}

void Faults::DelayKills() {
  AgentNode& agent = AnyAgent();
  world_.Break({agent.node_id(), Harm::kSlowKills}, "its processes take long to die");
  agent.DelayKills(world_.rng.Between(absl::Milliseconds(100), absl::Seconds(20)));
}

// Long enough that the driver gives these processes up.
void Faults::HangKills() {
  if (!world_.rng.Chance(0.2)) return;
  AgentNode& agent = AnyAgent();
  world_.Break({agent.node_id(), Harm::kSlowKills}, "its processes hang when they are killed");
  agent.HangKills(world_.rng.Between(absl::Minutes(3), absl::Minutes(6)));
}

// --- processes --------------------------------------------------------------------------------

void Faults::KillProcess() { AnyAgent().KillSomething(); }

void Faults::HangProcess() { AnyAgent().HangSomething(); }

void Faults::FailStart() { AnyAgent().FailNextStart(); }

void Faults::FailPrepare() { AnyAgent().FailNextPrepare(); }

// --- what lies between them -------------------------------------------------------------------

void Faults::CutOff() {
  CutOffFor(AnyAgent().node_id(), world_.rng.Between(absl::Milliseconds(500), absl::Seconds(20)));
}

void Faults::CutOffFor(const std::string& node_id, absl::Duration how_long) {
  network_.SetPartitioned(node_id, true);
  world_.timeline.After(how_long, [this, node_id] { network_.SetPartitioned(node_id, false); });
}

// The ranks of two machines do not reach each other, and both machines reach the driver.
void Faults::CutLink() {
  constexpr std::array kWays = {LinkFault::kOneWay, LinkFault::kOtherWay, LinkFault::kBothWays};
  CutLinkUntil(kWays[world_.rng.Index(kWays.size())],
               world_.timeline.now() + world_.rng.Between(absl::Seconds(1), absl::Seconds(40)));
}

void Faults::CutLinkForGood(LinkFault fault) { CutLinkUntil(fault, absl::InfiniteDuration()); }

void Faults::CutLinkUntil(LinkFault fault, absl::Duration until) {
  if (agents_.size() < 2) return;
  const size_t one = world_.rng.Index(agents_.size() - 1);
  const size_t other = one + 1 + world_.rng.Index(agents_.size() - 1 - one);
  const std::string& from = agents_[one]->node_id();
  const std::string& to = agents_[other]->node_id();
  for (const std::string& node_id : {from, to}) {
    world_.Break({node_id, Harm::kLink}, absl::StrCat("no packets pass between ", from, " and ", to,
                                                      " until ", absl::FormatDuration(until)));
  }
  if (fault != LinkFault::kOtherWay) world_.cut_until[{from, to}] = until;
  if (fault != LinkFault::kOneWay) world_.cut_until[{to, from}] = until;
}

void Faults::BreakConnection() { network_.Break(AnyAgent().node_id()); }

void Faults::FillStorage() {
  const absl::Duration how_long = world_.rng.Between(absl::Seconds(1), absl::Seconds(20));
  world_.Break({"", Harm::kStorage},
               absl::StrCat("storage is full for ", absl::FormatDuration(how_long)));
  world_.storage_full_until = world_.timeline.now() + how_long;
}

// Sometimes all agents start again meanwhile, as after a power cut.
void Faults::UnmountStorage() {
  const absl::Duration how_long = world_.rng.Between(absl::Seconds(1), kStorageAwayMax);
  world_.Break({"", Harm::kStorage},
               absl::StrCat("storage is not mounted for ", absl::FormatDuration(how_long)));
  world_.storage_away_until = world_.timeline.now() + how_long;
  if (!world_.rng.Chance(0.5)) return;
  for (const auto& agent : agents_) {
    agent->Crash("power cut", world_.rng.Between(kAwayMin, kAwayMax));
  }
}

// The job ends: its checkpoints are safe, but no longer its own.
void Faults::TakeDirectoryOver() {
  if (!world_.tampering.no_owners && !world_.rng.Chance(0.1)) return;
  const std::string job_id = cluster_.storage->TakeOver();
  if (job_id.empty()) return;
  world_.Say("storage", absl::StrCat("another driver's job takes the directory of ", job_id));
}

void Faults::FailReads() {
  const std::string node_id = AnyAgent().node_id();
  const absl::Duration how_long = world_.rng.Between(absl::Seconds(1), absl::Seconds(60));
  world_.Break({node_id, Harm::kReads},
               absl::StrCat("cannot read storage for ", absl::FormatDuration(how_long)));
  world_.reads_fail_until[node_id] = world_.timeline.now() + how_long;
}

void Faults::DamageCheckpoint() {
  if (world_.rng.Chance(0.3)) cluster_.storage->Damage();
}

void Faults::DamageMemory() { AnyAgent().DamageMemory(); }

// The mount of the training data is missing on a machine.
void Faults::LoseData() {
  const std::string node_id = AnyAgent().node_id();
  const absl::Duration how_long = world_.rng.Between(absl::Seconds(1), absl::Seconds(60));
  world_.Break({node_id, Harm::kData},
               absl::StrCat("has no data for ", absl::FormatDuration(how_long)));
  world_.data_gone_until[node_id] = world_.timeline.now() + how_long;
}

void Faults::FailTest() {
  const std::string node_id = AnyAgent().node_id();
  world_.Say(node_id, "its tests fail from now on");
  world_.tests_fail_until[node_id] =
      world_.timeline.now() + world_.rng.Between(absl::Seconds(1), absl::Seconds(30));
}

void Faults::HangTest() {
  const std::string node_id = AnyAgent().node_id();
  world_.Say(node_id, "its tests hang from now on");
  world_.tests_hang_until[node_id] =
      world_.timeline.now() + world_.rng.Between(absl::Seconds(1), absl::Seconds(30));
}

void Faults::FailJobFiles() {
  driver_.FailJobFiles(world_.rng.Between(absl::Milliseconds(100), absl::Seconds(10)));
}

void Faults::CorruptLossLog() { driver_.CorruptLossLog(); }

// A part of the driver's log is lost or damaged, or somebody puts an older copy in its place.
void Faults::DamageDriverLog() {
  using Damage = driver::SimulatedDisk::LogDamage;
  constexpr std::array kDamages = {Damage::kLostMiddle, Damage::kFlipped, Damage::kLostEnd,
                                   Damage::kOlderCopy};
  const Damage damage = kDamages[world_.rng.Index(kDamages.size())];
  driver_.DamageLog(damage, world_.rng.Between(absl::Seconds(1), absl::Seconds(12)));
}

void Faults::FailStorage() {
  const absl::Duration how_long = world_.rng.Between(absl::Seconds(1), absl::Seconds(20));
  world_.Break({"", Harm::kStorage},
               absl::StrCat("storage fails for ", absl::FormatDuration(how_long)));
  world_.storage_fails_until =
      std::max(world_.storage_fails_until, world_.timeline.now() + how_long);
}

}  // namespace megascale::sim
