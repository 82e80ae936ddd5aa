#include "controlplane/driver/driver_loop.h"

#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/driver_core.h"
#include "controlplane/driver/job_view.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;

constexpr absl::Duration kTickInterval = absl::Milliseconds(100);
constexpr size_t kInputsPerRound = 1024;

// The specification as the job runs it, for people. Written once.
absl::Status WriteJobFile(const JobRecord& job) {
  const std::string path = absl::StrCat(job.submitted().directory(), "/job.json");
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) return absl::OkStatus();
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  const auto status =
      google::protobuf::util::MessageToJsonString(job.submitted().spec(), &text, options);
  if (!status.ok()) return absl::InternalError(absl::StrCat(path, ": ", status.ToString()));
  return base::WriteFileDurably(path, text);
}

// What the log says of an event: not the secret of a job, nor its whole specification.
std::string Summary(const Event& event) {
  if (event.has_job_submitted()) {
    return absl::StrCat("job ", event.job_submitted().job_id(), " was submitted");
  }
  Event shown = event;
  shown.clear_time_unix_nanos();
  return shown.ShortDebugString().substr(0, 300);
}

bool SameButVersion(const agent::DesiredState& a, agent::DesiredState b) {
  b.set_version(a.version());
  return a.SerializeAsString() == b.SerializeAsString();
}

}  // namespace

DriverLoop::DriverLoop(Options options)
    : options_(std::move(options)), detector_(options_.clock->Monotonic()) {}

absl::StatusOr<std::unique_ptr<DriverLoop>> DriverLoop::Create(Options options) {
  std::unique_ptr<DriverLoop> loop(new DriverLoop(std::move(options)));
  RETURN_IF_ERROR(loop->Replay());
  return loop;
}

absl::Status DriverLoop::Replay() {
  ASSIGN_OR_RETURN(LogContents contents, options_.log->ReadAll());
  state_ = std::move(contents.state);
  num_snapshot_ = state_.num_events();
  for (const Event& event : contents.events) Apply(event, &state_);
  for (const JobRecord& job : state_.jobs()) {
    if (IsTerminal(job)) continue;
    RETURN_IF_ERROR(LossLogOf(job).status());
  }
  Event started;
  started.mutable_driver_started();
  Feed(std::move(started));
  return absl::OkStatus();
}

DriverLoop::~DriverLoop() { Stop(); }

void DriverLoop::Start() {
  // The grace period of all nodes begins now.
  detector_ = FailureDetector(options_.clock->Monotonic());
  for (const auto& [job_id, log] : loss_logs_) detector_.NoteStep(job_id, log->last_step());
  thread_ = std::thread([this] { Run(); });
}

void DriverLoop::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status DriverLoop::WaitForFailure(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [&] { return !failure_.ok(); });
  return failure_;
}

// --- inputs -----------------------------------------------------------------------------------

bool DriverLoop::Post(Input input) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return false;
    inputs_.push_back(std::move(input));
  }
  wake_.notify_all();
  return true;
}

template <typename T>
absl::StatusOr<T> DriverLoop::Call(std::function<absl::Status()> decide,
                                   std::function<absl::StatusOr<T>()> answer) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<T>>>();
  std::future<absl::StatusOr<T>> future = promise->get_future();
  const auto unavailable = [] {
    return absl::UnavailableError("the driver is stopping; ask again when it is back");
  };
  const bool posted = Post([promise = std::move(promise), decide = std::move(decide),
                            answer = std::move(answer)]() -> Output {
    if (absl::Status status = decide(); !status.ok()) {
      return [promise, status] { promise->set_value(status); };
    }
    return [promise, answer] { promise->set_value(answer()); };
  });
  if (!posted) return unavailable();
  if (future.wait_for(absl::ToChronoMilliseconds(kAnswerTimeout)) != std::future_status::ready) {
    return absl::DeadlineExceededError(
        "the driver did not answer in time and may still do what was asked; ask again");
  }
  try {
    return future.get();
  } catch (const std::future_error&) {
    return unavailable();
  }
}

absl::StatusOr<control::Job> DriverLoop::Submit(pb::JobSubmitted submit) {
  const std::string job_id = submit.job_id();
  submit.set_directory(absl::StrCat(options_.state_directory, "/jobs/", job_id));
  return Call<control::Job>(
      [this, submit]() -> absl::Status {
        ASSIGN_OR_RETURN(const bool is_new, IsNewSubmit(state_, submit));
        if (!is_new) return absl::OkStatus();
        Event event;
        *event.mutable_job_submitted() = submit;
        Feed(std::move(event));
        return absl::OkStatus();
      },
      [this, job_id] { return View(job_id); });
}

absl::StatusOr<control::Job> DriverLoop::Cancel(const pb::CancelRequested& cancel) {
  return Call<control::Job>(
      [this, cancel]() -> absl::Status {
        ASSIGN_OR_RETURN(const bool is_new, IsNewCancel(state_, cancel.job_id()));
        if (!is_new) return absl::OkStatus();
        Event event;
        *event.mutable_cancel_requested() = cancel;
        Feed(std::move(event));
        return absl::OkStatus();
      },
      [this, job_id = cancel.job_id()] { return View(job_id); });
}

absl::StatusOr<control::Job> DriverLoop::GetJob(const std::string& job_id) {
  return Call<control::Job>([] { return absl::OkStatus(); },
                            [this, job_id] { return View(job_id); });
}

absl::StatusOr<std::vector<control::Job>> DriverLoop::ListJobs() {
  return Call<std::vector<control::Job>>([] { return absl::OkStatus(); },
                                         [this]() -> absl::StatusOr<std::vector<control::Job>> {
                                           std::vector<control::Job> jobs;
                                           for (const JobRecord& job : state_.jobs()) {
                                             ASSIGN_OR_RETURN(control::Job view, View(JobId(job)));
                                             jobs.push_back(std::move(view));
                                           }
                                           return jobs;
                                         });
}

absl::StatusOr<control::GetClusterResponse> DriverLoop::GetCluster() {
  return Call<control::GetClusterResponse>(
      [] { return absl::OkStatus(); },
      [this]() -> absl::StatusOr<control::GetClusterResponse> {
        return ViewCluster({&state_, &detector_, options_.clock->Wall()});
      });
}

absl::StatusOr<WatchUpdate> DriverLoop::Watch(const std::string& job_id, int64_t position) {
  return Call<WatchUpdate>([] { return absl::OkStatus(); },
                           [this, job_id, position] { return ViewUpdate(job_id, position); });
}

void DriverLoop::OnHello(const agent::Hello& hello, std::shared_ptr<AgentLink> link,
                         std::function<void()> done) {
  Post([this, hello, link = std::move(link), done = std::move(done)]() -> Output {
    Link& entry = links_[hello.node_id()];
    const NodeRecord* known = FindNode(state_, hello.node_id());
    if (entry.link != nullptr && entry.link != link) {
      const bool newer = known != nullptr && known->hello().incarnation() != hello.incarnation();
      entry.link->Close(newer ? absl::AbortedError(absl::StrCat(
                                    "node ", hello.node_id(),
                                    ": a newer agent with this id connected; this one is to end"))
                              : absl::UnavailableError("this agent connected again"));
    }
    entry = Link{link, {}};
    state_changed_ = true;
    FeedAll(detector_.OnHello(state_, hello, options_.clock->Monotonic()));
    return done;
  });
}

void DriverLoop::OnReport(const std::string& node_id, agent::ActualState report,
                          std::function<void()> done) {
  Post([this, node_id, report = std::move(report), done = std::move(done)]() -> Output {
    if (absl::Status status = TakeSteps(node_id, report); !status.ok()) loss_status_ = status;
    FeedAll(detector_.OnReport(state_, node_id, report, options_.clock->Monotonic()));
    return done;
  });
}

void DriverLoop::OnGone(const std::string& node_id, const AgentLink* link) {
  Post([this, node_id, link]() -> Output {
    const auto it = links_.find(node_id);
    if (it != links_.end() && it->second.link.get() == link) links_.erase(it);
    return [] {};
  });
}

// --- the loop ---------------------------------------------------------------------------------

void DriverLoop::Run() {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const absl::Duration wait =
          std::max(absl::ZeroDuration(), next_tick_ - options_.clock->Monotonic());
      wake_.wait_for(lock, absl::ToChronoMicroseconds(wait),
                     [&] { return stopping_ || !inputs_.empty(); });
      if (stopping_) break;
    }
    const absl::Status status = Round();
    if (status.ok()) continue;
    base::LogError(
        absl::StrCat("stops, because what it decides cannot be kept: ", status.ToString()));
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = status;
    stopping_ = true;
    break;
  }
  std::deque<Input> dropped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(inputs_);
  }
  wake_.notify_all();
}

std::deque<DriverLoop::Input> DriverLoop::TakeInputs() {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t count = std::min(inputs_.size(), kInputsPerRound);
  std::deque<Input> taken(std::make_move_iterator(inputs_.begin()),
                          std::make_move_iterator(inputs_.begin() + count));
  inputs_.erase(inputs_.begin(), inputs_.begin() + count);
  return taken;
}

absl::Status DriverLoop::Round() {
  std::vector<Output> outputs;
  for (Input& input : TakeInputs()) outputs.push_back(input());
  const absl::Duration now = options_.clock->Monotonic();
  const bool tick = now >= next_tick_;
  if (tick) Tick(now);
  const bool changed = state_changed_;
  RETURN_IF_ERROR(Commit());
  if (changed) {
    RETURN_IF_ERROR(CutLossLogs());
    KeepTimers(now);
    TellAttempts();
  }
  // Acknowledgements of steps alone are not worth a message each.
  if (changed || tick) SendDesired();
  for (const Output& output : outputs) output();
  return absl::OkStatus();
}

void DriverLoop::Tick(absl::Duration now) {
  next_tick_ = now + kTickInterval;
  FeedAll(detector_.OnTick(state_, now));
  std::vector<Event> due;
  for (auto it = timers_.begin(); it != timers_.end();) {
    if (it->second.first > now) {
      ++it;
      continue;
    }
    due.push_back(it->second.second);
    it = timers_.erase(it);
  }
  FeedAll(std::move(due));
}

void DriverLoop::Feed(Event event) {
  event.set_time_unix_nanos(absl::ToUnixNanos(options_.clock->Wall()));
  const bool accepted = Apply(event, &state_);
  if (accepted && event.event_case() != Event::kAttemptProgressed) {
    base::LogInfo(Summary(event));
  }
  pending_.push_back(std::move(event));
  state_changed_ = true;
}

void DriverLoop::FeedAll(std::vector<Event> events) {
  for (Event& event : events) Feed(std::move(event));
}

absl::Status DriverLoop::Commit() {
  // Steps before events: a checkpoint must not be known to a restarted driver that lost its steps.
  RETURN_IF_ERROR(loss_status_);
  for (const auto& [job_id, log] : loss_logs_) RETURN_IF_ERROR(log->Sync());
  if (pending_.empty()) return absl::OkStatus();
  const int64_t num_before = state_.num_events() - static_cast<int64_t>(pending_.size());
  RETURN_IF_ERROR(options_.log->Append(num_before, pending_));
  pending_.clear();
  if (state_.num_events() - num_snapshot_ >= options_.snapshot_interval_events) {
    RETURN_IF_ERROR(options_.log->WriteSnapshot(state_));
    num_snapshot_ = state_.num_events();
  }
  return absl::OkStatus();
}

absl::Status DriverLoop::CutLossLogs() {
  for (const LossLogCut& cut : LossLogCutsFor(state_)) {
    if (cut_attempts_[cut.job_id] == cut.attempt) continue;
    ASSIGN_OR_RETURN(LossLog * log, LossLogOf(*FindJob(state_, cut.job_id)));
    RETURN_IF_ERROR(log->CutTo(cut.restore_step, cut.attempt));
    detector_.NoteStep(cut.job_id, log->last_step());
    cut_attempts_[cut.job_id] = cut.attempt;
  }
  return absl::OkStatus();
}

void DriverLoop::KeepTimers(absl::Duration now) {
  std::map<std::string, std::pair<absl::Duration, Event>> kept;
  for (Timer& timer : TimersFor(state_)) {
    const auto it = timers_.find(timer.key);
    kept[timer.key] = it != timers_.end()
                          ? it->second
                          : std::make_pair(now + timer.delay, std::move(timer.when_due));
  }
  timers_ = std::move(kept);
}

void DriverLoop::TellAttempts() {
  std::map<std::string, int64_t> attempts;
  for (const JobRecord& job : state_.jobs()) {
    if (HoldsSlots(job)) attempts[JobId(job)] = job.attempt();
  }
  if (attempts == told_attempts_) return;
  for (const auto& [job_id, attempt] : told_attempts_) {
    if (attempts.count(job_id) == 0 && loss_logs_.count(job_id) > 0) loss_logs_[job_id]->Close();
  }
  if (options_.on_attempts) options_.on_attempts(attempts);
  told_attempts_ = std::move(attempts);
}

void DriverLoop::SendDesired() {
  state_changed_ = false;
  for (auto& [node_id, link] : links_) {
    const NodeRecord* node = FindNode(state_, node_id);
    if (node == nullptr) continue;
    agent::DesiredState desired = DesiredFor(state_, node_id);
    for (auto& job : *desired.mutable_jobs()) {
      const auto it = loss_logs_.find(job.job_id());
      if (it != loss_logs_.end()) job.set_acked_step(it->second->synced_step());
    }
    if (link.sent.version() > 0 && SameButVersion(link.sent, desired)) continue;
    version_ = std::max(version_ + 1, desired.version());
    desired.set_version(version_);
    link.link->SendDesired(desired);
    link.sent = std::move(desired);
  }
}

absl::Status DriverLoop::TakeSteps(const std::string& node_id, const agent::ActualState& report) {
  const NodeRecord* node = FindNode(state_, node_id);
  if (node == nullptr || node->hello().incarnation() != report.incarnation()) {
    return absl::OkStatus();
  }
  for (const auto& actual : report.jobs()) {
    const JobRecord* job = FindJob(state_, actual.job_id());
    if (job == nullptr || IsTerminal(*job)) continue;
    ASSIGN_OR_RETURN(LossLog * log, LossLogOf(*job));
    // A rollback that is decided but not done yet would be undone by what is appended before it.
    if (job->attempt() > 1 && cut_attempts_[actual.job_id()] != job->attempt() &&
        job->stage() == pb::STAGE_RUN) {
      continue;
    }
    for (const auto& record : actual.steps()) {
      if (record.attempt() != job->attempt()) continue;
      RETURN_IF_ERROR(log->Append(record));
    }
    detector_.NoteStep(actual.job_id(), log->last_step());
  }
  return absl::OkStatus();
}

absl::StatusOr<LossLog*> DriverLoop::LossLogOf(const JobRecord& job) {
  std::unique_ptr<LossLog>& log = loss_logs_[JobId(job)];
  if (log == nullptr) {
    absl::StatusOr<std::unique_ptr<LossLog>> opened = LossLog::Open(job.submitted().directory());
    if (!opened.ok()) {
      loss_logs_.erase(JobId(job));
      return opened.status();
    }
    log = *std::move(opened);
    if (IsTerminal(job)) log->Close();
    RETURN_IF_ERROR(WriteJobFile(job));
    detector_.NoteStep(JobId(job), log->last_step());
  }
  return log.get();
}

absl::StatusOr<control::Job> DriverLoop::View(const std::string& job_id) {
  const JobRecord* job = FindJob(state_, job_id);
  if (job == nullptr) {
    return absl::NotFoundError(absl::StrCat("job ", job_id,
                                            ": there is no such job; `megascale "
                                            "list` shows those that are"));
  }
  const absl::StatusOr<LossLog*> log = LossLogOf(*job);
  // A job that has ended is shown even where its folder was taken away.
  if (!log.ok() && !IsTerminal(*job)) return log.status();
  return ViewJob(*job, log.ok() ? *log : nullptr, {&state_, &detector_, options_.clock->Wall()});
}

absl::StatusOr<WatchUpdate> DriverLoop::ViewUpdate(const std::string& job_id, int64_t position) {
  WatchUpdate update;
  ASSIGN_OR_RETURN(update.job, View(job_id));
  update.position = position;
  const auto log = loss_logs_.find(job_id);
  if (log != loss_logs_.end()) update.steps = log->second->Since(&update.position);
  return update;
}

}  // namespace megascale::driver
