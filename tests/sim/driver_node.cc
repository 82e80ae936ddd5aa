#include "tests/sim/driver_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/epoch.h"
#include "controlplane/driver/storage/counted_log.h"
#include "controlplane/driver/storage/log_clock.h"
#include "controlplane/driver/storage/loss_line.h"
#include "runtime/base/check.h"

namespace megascale::sim {
namespace {

constexpr char kStateDirectory[] = "/state";
constexpr int64_t kSnapshotIntervalEvents = 40;
constexpr absl::Duration kLossLogInterval = absl::Milliseconds(700);
// A loss log that works again for less than this may not be noticed: one that fails is tried only
// now and then.
constexpr absl::Duration kLossLogRetry = driver::JobLogs::kPatience;
constexpr int kViewsPerList = 8;
constexpr absl::Duration kRestartMin = absl::Milliseconds(200);
constexpr absl::Duration kRestartMax = absl::Seconds(4);

}  // namespace

DriverNode::DriverNode(World* world) : world_(*world) {
  clock_.timeline = &world_.timeline;
  clock_.follows_wall = world_.tampering.log_follows_wall_clock;
  disk_.SetFaults(
      [this](absl::string_view effect) { return FateOf(effect); },
      [this](size_t unsynced) {
        return static_cast<size_t>(world_.rng.Between(0, static_cast<int64_t>(unsynced)));
      });
}

bool DriverNode::Proceed() {
  if (dying_) return false;
  if (effects_left_.has_value() && --*effects_left_ <= 0) dying_ = true;
  return !dying_;
}

driver::SimulatedDisk::Fate DriverNode::FateOf(absl::string_view effect) {
  if (!Proceed()) return driver::SimulatedDisk::Fate::kDies;
  if (fail_next_write_ && !absl::StartsWith(effect, "open")) {
    fail_next_write_ = false;
    return driver::SimulatedDisk::Fate::kFails;
  }
  if (absl::StrContains(effect, "metrics") && world_.timeline.now() < job_files_fail_until_) {
    return driver::SimulatedDisk::Fate::kFails;
  }
  return driver::SimulatedDisk::Fate::kDone;
}

// An older version does not know tests of machines.
agent::TestKind DriverNode::MachineTests() const {
  return world_.old_driver ? agent::TEST_KIND_UNSPECIFIED : world_.machine_tests;
}

absl::StatusOr<std::unique_ptr<driver::DriverShell>> DriverNode::MakeShell() {
  driver::DriverShell::Options options;
  options.state_directory = kStateDirectory;
  options.log = disk_.OpenLog();
  if (world_.tampering.log) options.log = world_.tampering.log(std::move(options.log));
  options.log =
      driver::CountEvents(std::move(options.log), driver::CountPathOf(kStateDirectory), &disk_);
  options.files = &disk_;
  options.clock = &clock_;
  options.snapshot_interval_events = kSnapshotIntervalEvents;
  options.secret = "secret";
  options.machine_tests = MachineTests();
  if (world_.logs_take_turns) options.loss_log_interval = kLossLogInterval;
  if (world_.forgets_jobs) options.retention = {.newest = 1, .age = absl::Seconds(5)};
  options.slots_max = kSlotsOfAgentMax;
  options.new_nodes_per_hour = kNewNodesPerHour;
  if (world_.tampering.options) world_.tampering.options(&options);
  options.on_attempts = [this](const auto& attempts) { store_->SetAttempts(attempts); };
  return driver::DriverShell::Create(std::move(options));
}

// Events are smaller than the record of a job, so a snapshot is the first that fails.
void DriverNode::LimitRecords() {
  size_t largest = 0;
  for (const JobRecord& job : durable_.jobs()) largest = std::max(largest, job.ByteSizeLong());
  if (largest == 0) return;
  world_.Say("fault", "a record is too large for the driver's log");
  disk_.SetRecordBytesMax(largest - 1);
}

void DriverNode::Start() {
  ++world_.num_driver_starts;
  MEGASCALE_CHECK(!up());
  disk_.SetRecordBytesMax(base::kMessageBytesMax);
  dying_ = false;
  stalled_until_ = absl::ZeroDuration();
  store_ = std::make_unique<driver::AttemptStore>();
  auto shell = MakeShell();
  if (!shell.ok()) {
    if (absl::IsDataLoss(shell.status())) {
      disk_.is_log_damaged() ? (void)++num_refused_
                             : world_.Violate("ReplayGivesTheSameState", shell.status().ToString());
    }
    Crash(shell.status().ToString());
    return;
  }
  if (disk_.is_log_damaged()) {
    world_.Violate("DamagedLogIsRefused", "a driver starts although its log is damaged");
    return Crash("its log is damaged");
  }
  shell_ = *std::move(shell);
  for (auto& [job_id, reader] : readers_) {
    reader.position = -1;
    reader.may_miss = true;
  }
  CheckReplay();
  world_.Say("driver", absl::StrCat("starts with ", shell_->state().num_events(), " events"));
  shell_->Begin();
  RunRound();
}

// Checks that the new driver has the old one's durable state, and its own start.
void DriverNode::CheckReplay() {
  const driver::LogContents& log = disk_.durable_log();
  DriverState expected = durable_;
  const int64_t num_durable = driver::NumEvents(log);
  if (num_durable > expected.num_events()) {  // more reached the disk than was acknowledged
    expected = log.state;
    for (const driver::Event& event : log.events) driver::Apply(event, &expected);
  }
  driver::Event started =
      driver::StartedEvent(expected, {clock_.Wall(), "secret", false, MachineTests()});
  const driver::LogClock log_clock(&clock_, expected);
  started.set_time_unix_nanos(absl::ToUnixNanos(log_clock.Now()));
  started.set_clock_ahead_seconds(absl::ToInt64Seconds(log_clock.Ahead()));
  driver::Apply(started, &expected);
  if (shell_->state().SerializeAsString() == expected.SerializeAsString()) return;
  world_.Violate("ReplayGivesTheSameState", "a driver that was started again knows something else");
}

DriverState DriverNode::CheckTouched(const DriverState& before) {
  const driver::LogContents& log = disk_.durable_log();
  const int64_t num_new = shell_->state().num_events() - before.num_events();
  // A snapshot has replaced the events, or the log is another one.
  if (num_new < 0 || num_new > static_cast<int64_t>(log.events.size())) return shell_->state();
  DriverState expected = before;
  for (auto event = log.events.end() - num_new; event != log.events.end(); ++event) {
    driver::Apply(*event, &expected);
  }
  if (shell_->state().SerializeAsString() == expected.SerializeAsString()) return expected;
  world_.Violate("OnlyTouchedJobsChange", "an event changed a job that was not looked at");
  return shell_->state();
}

void DriverNode::CheckView() {
  const DriverState& state = shell_->state();
  if (std::exchange(num_viewed_, state.num_events()) == state.num_events()) return;
  const auto view = shell_->view();
  for (const driver::JobRecord& job : state.jobs()) {
    const driver::JobRecord* seen = view->Record(driver::JobId(job));
    if (seen != nullptr && seen->SerializeAsString() == job.SerializeAsString()) continue;
    world_.Violate("ViewIsTheState", absl::StrCat("readers see an older job ", driver::JobId(job)));
  }
  // What people see is derived from all jobs, which takes long.
  if (++num_views_ % kViewsPerList != 0) return;
  if (view->Jobs(clock_.Wall()).size() != static_cast<size_t>(state.jobs_size()) ||
      view->Nodes().nodes_size() != state.nodes_size()) {
    world_.Violate("ViewIsTheState", "readers see other jobs or nodes");
  }
}

void DriverNode::CheckCounts() {
  const DriverState& state = shell_->state();
  for (const int place : shell_->index().open()) {
    const driver::JobRecord& job = state.jobs(place);
    const int unfenced = static_cast<int>(driver::UnfencedNodesOf(state, job).size());
    int running = 0;
    for (const auto& placement : job.placements()) {
      const bool gone = driver::FindEnded(job, placement.rank()) != nullptr ||
                        driver::IsFenced(job, placement.node_id());
      running += gone ? 0 : 1;
    }
    const driver::JobIndex& index = shell_->index();
    if (index.NumUnfenced(state, job) == unfenced && index.NumRunning(job) == running) continue;
    world_.Violate("CountsAreKept",
                   absl::StrCat("job ", driver::JobId(job), ": ", unfenced, " unfenced nodes and ",
                                running, " running ranks are kept as ",
                                index.NumUnfenced(state, job), " and ", index.NumRunning(job)));
  }
}

// A reader gets what the loss log gets: it may miss only steps that the log lacks, too, because it
// was set aside or damaged, or went on after a gap that both keepers took with them. A driver that
// starts with a damaged log takes steps again whose lines are lost.
bool DriverNode::LossLogHas(const std::string& job_id, int64_t after, int64_t before) {
  for (const absl::string_view line : absl::StrSplit(LossLogOf(job_id), '\n', absl::SkipEmpty())) {
    const auto record = driver::FromLossLine(line);
    if (record.ok() && record->step() > after && record->step() < before) return true;
  }
  return false;
}

void DriverNode::CheckSteps() {
  const auto view = shell_->view();
  for (const driver::JobRecord& job : shell_->state().jobs()) {
    const auto [found, is_new] = readers_.try_emplace(driver::JobId(job));
    Reader& reader = found->second;
    if (is_new) reader.position = 0;
    if (job.stage() == driver::v1::STAGE_RUN && job.attempt() > reader.attempt) {
      reader.attempt = job.attempt();
      reader.step = std::min(reader.step, job.restore().step());
    }
    if (world_.tampering.position) world_.tampering.position(&reader.position);
    for (const auto& record : view->StepsSince(driver::JobId(job), &reader.position)) {
      const bool follows =
          record.step() == reader.step + 1 ||
          (record.step() > reader.step &&
           (reader.may_miss || !LossLogHas(driver::JobId(job), reader.step, record.step()))) ||
          (reader.may_miss && IsLossLogCorrupt(driver::JobId(job)));
      if (!follows && !backup_.has_value()) {
        world_.Violate("StepsComeOnce",
                       absl::StrCat("job ", driver::JobId(job), ": a reader gets step ",
                                    record.step(), " after step ", reader.step));
      }
      reader.step = record.step();
      reader.may_miss = false;
    }
  }
}

void DriverNode::Crash(absl::string_view why, std::optional<absl::Duration> away) {
  world_.Break({"", Harm::kDriver}, absl::StrCat("the driver ends: ", why));
  dying_ = true;
  inputs_.clear();
  shell_.reset();
  store_.reset();
  disk_.Crash();
  effects_left_.reset();
  round_at_ = absl::InfiniteDuration();
  if (ended_) ended_();
  const absl::Duration until_start =
      away.has_value() ? *away : world_.rng.Between(kRestartMin, kRestartMax);
  world_.timeline.After(until_start, [this] {
    if (up()) return;
    world_.Break({"", Harm::kDriver}, "the driver was away until now");
    Start();
  });
}

void DriverNode::Stall(absl::Duration how_long) {
  if (!up()) return;
  world_.Break({"", Harm::kDriver},
               absl::StrCat("the driver stands still for ", absl::FormatDuration(how_long)));
  stalled_until_ = std::max(stalled_until_, world_.timeline.now() + how_long);
}

namespace {

std::string LossLogPath(const std::string& job_id) {
  return absl::StrCat(kStateDirectory, "/jobs/", job_id, "/metrics.jsonl");
}

}  // namespace

std::string DriverNode::LossLogOf(const std::string& job_id) {
  return ReadWhole(LossLogPath(job_id));
}

std::string DriverNode::ReadWhole(const std::string& path) {
  return disk_.ReadAt(path, 0, disk_.Size(path).value_or(0)).value_or("");
}

void DriverNode::FailJobFiles(absl::Duration how_long) {
  world_.Say("fault", absl::StrCat("the files of jobs fail for ", absl::FormatDuration(how_long)));
  const absl::Duration now = world_.timeline.now();
  if (now >= job_files_fail_until_ + kLossLogRetry) job_files_fail_since_ = now;
  job_files_fail_until_ = now + how_long;
  may_lack_steps_ = may_lack_steps_ ||
                    job_files_fail_until_ - job_files_fail_since_ >= driver::JobLogs::kPatience;
}

void DriverNode::CorruptLossLog() {
  if (durable_.jobs().empty()) return;
  const auto& job = durable_.jobs(static_cast<int>(world_.rng.Index(durable_.jobs_size())));
  const size_t size = disk_.Size(LossLogPath(driver::JobId(job))).value_or(0);
  if (size == 0) return;
  world_.Say("fault", absl::StrCat("the loss log of ", driver::JobId(job), " is damaged"));
  corrupt_.insert(driver::JobId(job));
  const std::string bytes(static_cast<size_t>(world_.rng.Between(1, 400)),
                          world_.rng.Chance(0.5) ? '\0' : '\n');
  disk_.Corrupt(LossLogPath(driver::JobId(job)), world_.rng.Index(size), bytes);
}

void DriverNode::DamageLog(driver::SimulatedDisk::LogDamage damage, absl::Duration mended_after) {
  // The state may be a copy: then the log before the damage is another one.
  if (!up() || backup_.has_value()) return;
  dying_ = true;
  if (!disk_.DamageLog(damage, static_cast<size_t>(world_.rng.Next()))) return Crash("kill -9");
  Crash(absl::StrCat("its log is damaged, kind ", static_cast<int>(damage)));
  world_.timeline.After(mended_after, [this] {
    if (disk_.is_log_damaged()) world_.Say("fault", "the driver's log is mended");
    disk_.MendLog();
  });
}

void DriverNode::KeepCopyOfLog() {
  if (!disk_.is_log_damaged()) disk_.KeepCopyOfLog();
}

void DriverNode::BackUp() {
  disk_.MendLog();
  backup_ = Copy{disk_.durable_log(), ReadWhole(driver::CountPathOf(kStateDirectory))};
}

void DriverNode::Restore(absl::Duration away, bool declared) {
  MEGASCALE_CHECK(backup_.has_value());
  Crash("its state is lost", away);
  // The second time somebody declares the copy that the driver runs on.
  const bool is_first = !std::exchange(restored_, true);
  const driver::LogContents log = is_first ? backup_->log : disk_.durable_log();
  DriverState state = log.state;
  for (const driver::Event& event : log.events) driver::Apply(event, &state);
  if (declared) {
    driver::Event started =
        driver::StartedEvent(state, {clock_.Wall(), "another", true, MachineTests()});
    started.set_time_unix_nanos(absl::ToUnixNanos(driver::LogTimeAtStart(state, clock_.Wall())));
    started.set_clock_ahead_seconds(state.clock_ahead_seconds());
    driver::Apply(started, &state);
  } else if (is_first) {
    disk_.ReplaceFile(driver::CountPathOf(kStateDirectory), backup_->count);
  }
  durable_ = state;
  disk_.ReplaceLog({state, {}});
}

void DriverNode::Upgrade() {
  world_.old_driver = false;
  Crash("its program is replaced by that of the present version", absl::Seconds(1));
}

// --- inputs -----------------------------------------------------------------------------------

void DriverNode::Post(driver::DriverShell::Input input) {
  if (!up()) return;
  inputs_.push_back(std::move(input));
  ScheduleRound(world_.timeline.now() + absl::Microseconds(200));
}

void DriverNode::Ask(std::function<absl::Status()> decide, const std::string& job_id,
                     Answer answer) {
  Post([this, decide = std::move(decide), job_id,
        answer = std::move(answer)]() -> driver::DriverShell::Output {
    const absl::Status status = decide();
    return [this, status, job_id, answer] {
      if (!Proceed()) return;
      NoteDurable();
      const absl::StatusOr<control::Job> view = status.ok()
                                                    ? shell_->view()->Job(job_id, clock_.Wall())
                                                    : absl::StatusOr<control::Job>(status);
      if (!dying_) answer(view);
    };
  });
}

void DriverNode::Submit(const driver::v1::JobSubmitted& submit, Answer answer) {
  Ask([this, submit] { return shell_->Submit(submit); }, submit.job_id(), std::move(answer));
}

void DriverNode::Cancel(const driver::v1::CancelRequested& cancel, Answer answer) {
  Ask([this, cancel] { return shell_->Cancel(cancel); }, cancel.job_id(), std::move(answer));
}

void DriverNode::GetJob(const std::string& job_id, Answer answer) {
  Ask([] { return absl::OkStatus(); }, job_id, std::move(answer));
}

void DriverNode::Decide(std::function<absl::Status()> decide, Done done) {
  Post([this, decide = std::move(decide), done = std::move(done)]() -> driver::DriverShell::Output {
    const absl::Status status = decide();
    return [this, status, done] {
      if (Proceed()) done(status);
    };
  });
}

void DriverNode::SetEvicted(const std::string& node_id, bool evicted, Done done) {
  driver::v1::NodeEvicted event;
  event.set_node_id(node_id);
  Decide([this, event,
          evicted] { return evicted ? shell_->Evict(event) : shell_->Uncordon(event.node_id()); },
         std::move(done));
}

void DriverNode::SetSpare(const std::string& node_id, bool spare, Done done) {
  driver::v1::NodeSpareSet event;
  event.set_node_id(node_id);
  event.set_spare(spare);
  Decide([this, event] { return shell_->SetSpare(event); }, std::move(done));
}

void DriverNode::List(const control::ListJobsRequest& request, Listed listed) {
  Post([this, request, listed = std::move(listed)]() -> driver::DriverShell::Output {
    return [this, request, listed] {
      if (!Proceed()) return;
      absl::StatusOr<control::ListJobsResponse> page = shell_->view()->List(request, clock_.Wall());
      if (page.ok() && world_.tampering.list) world_.tampering.list(&*page);
      listed(page);
    };
  });
}

void DriverNode::Suspect(const driver::v1::SuspectFound& found) {
  Post([this, found]() -> driver::DriverShell::Output {
    (void)shell_->Suspect(found);
    return [] {};
  });
}

void DriverNode::OnHello(const agent::Hello& hello, std::shared_ptr<driver::AgentLink> link) {
  agent::Hello known = hello;
  if (world_.old_driver) {
    known.clear_tests_machine();
    known.clear_tests_exchange();
    known.clear_numerics_version();
  }
  Post([this, known, link = std::move(link)]() -> driver::DriverShell::Output {
    shell_->OnHello(known, link);
    return [] {};
  });
}

void DriverNode::OnReport(const std::string& node_id, const agent::ActualState& report) {
  agent::ActualState known = report;
  if (world_.old_driver) {
    known.clear_machine_test();
    known.clear_test_hangs();
  }
  Post([this, node_id, known = std::move(known)]() -> driver::DriverShell::Output {
    shell_->OnReport(node_id, known);
    return [] {};
  });
}

void DriverNode::OnGone(const std::string& node_id, const driver::AgentLink* link) {
  Post([this, node_id, link]() -> driver::DriverShell::Output {
    shell_->OnGone(node_id, link);
    return [] {};
  });
}

// Its own threads serve it, so it does not wait for a round.
void DriverNode::OnStore(const std::string& node_id, const agent::StoreRequest& request,
                         driver::AttemptStore::Reply reply) {
  if (!up()) return;
  if (world_.timeline.now() >= stalled_until_) return store_->Handle(request, node_id, reply);
  world_.timeline.At(stalled_until_,
                     [this, node_id, request, reply = std::move(reply), serving = store_.get()] {
                       if (store_.get() == serving) OnStore(node_id, request, reply);
                     });
}

// --- rounds -----------------------------------------------------------------------------------

void DriverNode::ScheduleRound(absl::Duration when) {
  if (when >= round_at_) return;
  round_at_ = when;
  world_.timeline.At(when, [this, when] {
    if (when == round_at_) RunRound();
  });
}

void DriverNode::RunRound() {
  if (!up()) return;
  round_at_ = absl::InfiniteDuration();
  if (world_.timeline.now() < stalled_until_) {
    ScheduleRound(stalled_until_);
    return;
  }
  std::vector<driver::DriverShell::Input> inputs;
  inputs.swap(inputs_);
  if (world_.tampering.state) {
    world_.tampering.state(const_cast<DriverState*>(&shell_->state()));
  }
  const absl::Status status = shell_->Round(inputs);
  NoteDurable();
  if (dying_) return Crash("before an effect");
  num_outdated_ += absl::IsFailedPrecondition(status) ? 1 : 0;
  if (!status.ok()) return Crash(status.ToString());
  CheckView();
  CheckCounts();
  CheckSteps();
  ScheduleRound(shell_->next_tick() - (clock_.Monotonic() - world_.timeline.now()));
}

// Events that are applied in memory are durable once the log holds as many.
void DriverNode::NoteDurable() {
  const driver::LogContents& log = disk_.durable_log();
  const int64_t num_durable = log.state.num_events() + static_cast<int64_t>(log.events.size());
  if (num_durable == durable_.num_events()) return;
  DriverState before = std::move(durable_);
  if (shell_->state().num_events() == num_durable) {
    durable_ = CheckTouched(before);
  } else {
    durable_ = log.state;
    for (const driver::Event& event : log.events) driver::Apply(event, &durable_);
  }
  for (int64_t i = num_durable - before.num_events(); i > 0; --i) {
    if (i > static_cast<int64_t>(log.events.size())) continue;
    driver::Event event = log.events[log.events.size() - static_cast<size_t>(i)];
    event.clear_time_unix_nanos();
    world_.timeline.Say("log", event.SerializeAsString(), [&event] {
      return event.has_job_submitted() ? "job_submitted " + event.job_submitted().job_id()
                                       : event.ShortDebugString().substr(0, 200);
    });
  }
  world_.Tell(&Observer::OnState, before, durable_);
}

}  // namespace megascale::sim
