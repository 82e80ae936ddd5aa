#include "controlplane/driver/shell/driver_view.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "controlplane/driver/shell/job_evidence.h"
#include "controlplane/driver/shell/pages.h"
#include "controlplane/driver/shell/step_counts.h"
#include "controlplane/driver/storage/loss_history.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/version.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

// Steps of a job that has ended stay for its watchers at first, then for its rate.
constexpr absl::Duration kEndedStepsAge = absl::Minutes(1);
constexpr size_t kEndedStepsMax = 20;

// Reads the last steps of a job that ended before this driver started, or a while ago.
RecentSteps LastStepsOf(const JobRecord& job, JobFiles* files) {
  RecentSteps steps;
  const auto records = ReadLastSteps(job.submitted().directory(), files, RecentSteps::kMax);
  if (!records.ok()) {
    base::LogWarning(records.status().message());
    return steps;
  }
  for (const auto& record : *records) steps.Load(record);
  return steps;
}

void AddEvidence(const JobRecord& job, JobFiles* files, absl::Duration clock_ahead,
                 control::Job* view) {
  auto evidence = ReadEvidence(job, files);
  if (evidence.ok()) {
    MoveTimes(clock_ahead, &*evidence);
    *view->mutable_evidence() = *std::move(evidence);
    view->mutable_warnings()->MergeFrom(view->evidence().warnings());
  } else if (!absl::IsNotFound(evidence.status())) {
    base::LogWarning(evidence.status().message());
  }
}

}  // namespace

// --- reading ------------------------------------------------------------------------------------

NodeLookup DriverView::LookupOfNodes() const {
  return [this](const std::string& node_id) { return nodes_.Find(node_id); };
}

const JobRecord* DriverView::Record(const std::string& job_id) const {
  const JobPart* part = jobs_.Find(job_id);
  return part == nullptr ? nullptr : &part->record->Whole();
}

control::Job DriverView::ViewOf(const JobPart& part, const RecentSteps& steps, int64_t place,
                                absl::Time now, bool is_summary) const {
  const JobRecord& job = part.record->Whole();
  JobSources sources;
  sources.now = now - clock_ahead_;
  sources.clock_ahead = clock_ahead_;
  sources.is_summary = is_summary;
  sources.steps = &steps;
  if (part.new_steps.num_steps() > 0) sources.new_steps = &part.new_steps;
  sources.queue_position = place;
  if (const auto since = storage_fails_->find(JobId(job)); since != storage_fails_->end()) {
    sources.storage_fails_for = awake_ - since->second;
  }
  sources.node = LookupOfNodes();
  sources.report = LookupOfReports(job);
  control::Job view = ViewJob(job, sources);
  if (!is_summary && !part.log_warning.empty()) view.add_warnings(part.log_warning);
  MoveTimes(clock_ahead_, &view);
  return view;
}

ReportLookup DriverView::LookupOfReports(const JobRecord& job) const {
  return [this, &job](const std::string& node_id) -> const agent::ActualJob* {
    const AgentPart* part = agents_.Find(node_id);
    if (part == nullptr || part->report == nullptr) return nullptr;
    for (const agent::ActualJob& actual : part->report->jobs()) {
      if (actual.job_id() == JobId(job)) return &actual;
    }
    return nullptr;
  };
}

std::vector<const JobRecord*> DriverView::TrainingJobs() const {
  std::vector<const JobRecord*> training;
  for (const JobPart* part : jobs_.Values()) {
    if (part->record->Head().stage() != v1::STAGE_RUN) continue;
    const JobRecord& job = part->record->Whole();
    if (Trains(job)) training.push_back(&job);
  }
  return training;
}

const RecentSteps& DriverView::Steps(const JobRecord& job) const {
  static const RecentSteps kNone;
  const JobPart* part = jobs_.Find(JobId(job));
  return part == nullptr ? kNone : part->steps;
}

absl::Duration DriverView::StepTime(const JobRecord& job) const {
  const JobPart* part = jobs_.Find(JobId(job));
  return UsualStep(job, part == nullptr ? nullptr : &part->new_steps);
}

std::vector<control::RankView> DriverView::Ranks(const JobRecord& job,
                                                 const std::vector<int>& ranks) const {
  std::vector<control::RankView> views;
  for (const int rank : ranks) views.push_back(ViewRank(job, rank, LookupOfReports(job)));
  return views;
}

absl::StatusOr<control::Job> DriverView::Job(const std::string& job_id, absl::Time now) const {
  const JobPart* part = jobs_.Find(job_id);
  if (part == nullptr) return NoSuchJob(job_id);
  const JobRecord& job = part->record->Head();
  if (!IsTerminal(job) || job.attempt() == 0) {
    const auto place = std::find(queue_->begin(), queue_->end(), job_id);
    return ViewOf(*part, part->steps, place == queue_->end() ? 0 : place - queue_->begin() + 1,
                  now);
  }
  const bool has_all = part->steps.size() > kEndedStepsMax;
  control::Job view = ViewOf(*part, has_all ? part->steps : LastStepsOf(job, files_), 0, now);
  AddEvidence(job, files_, clock_ahead_, &view);
  return view;
}

std::vector<control::Job> DriverView::Jobs(absl::Time now) const {
  std::vector<const JobPart*> parts = jobs_.Values();
  std::sort(parts.begin(), parts.end(),
            [](const JobPart* a, const JobPart* b) { return a->number < b->number; });
  const std::map<absl::string_view, int64_t> places = PlacesInQueue();
  std::vector<control::Job> jobs;
  jobs.reserve(parts.size());
  for (const JobPart* part : parts) {
    const auto place = places.find(JobId(part->record->Head()));
    jobs.push_back(ViewOf(*part, part->steps, place == places.end() ? 0 : place->second, now));
  }
  return jobs;
}

std::vector<std::string> DriverView::EndedSince(absl::Time since) const {
  std::vector<std::string> ended;
  std::multimap<int64_t, std::string, std::greater<>> succeeded;  // newest first
  for (const JobPart* part : jobs_.Values()) {
    const JobRecord& job = part->record->Head();
    if (!IsTerminal(job) || job.attempt() == 0) continue;
    if (absl::FromUnixNanos(job.ended_unix_nanos()) + clock_ahead_ < since) continue;
    if (job.state() == control::JOB_STATE_SUCCEEDED) {
      succeeded.emplace(job.ended_unix_nanos(), JobId(job));
    } else {
      ended.push_back(JobId(job));
    }
  }
  for (const auto& [nanos, job_id] : succeeded) ended.push_back(job_id);
  return ended;
}

std::map<absl::string_view, int64_t> DriverView::PlacesInQueue() const {
  std::map<absl::string_view, int64_t> places;
  for (const std::string& job_id : *queue_) {
    const auto place = static_cast<int64_t>(places.size()) + 1;
    places[job_id] = place;
  }
  return places;
}

namespace {

const char* ListName(bool newest_first) { return newest_first ? "newest-jobs" : "jobs"; }

}  // namespace

std::string DriverView::TokenAfter(const JobPart& part, bool newest_first) const {
  return MakePageToken({ListName(newest_first), absl::StrCat(start_), absl::StrCat(part.number),
                        JobId(part.record->Head())});
}

// Jobs are numbered anew when a driver starts: then the job at which the page before ended tells
// the place.
absl::StatusOr<int64_t> DriverView::BeginOfPage(const control::ListJobsRequest& request) const {
  ASSIGN_OR_RETURN(
      const std::vector<std::string> fields,
      ReadPageToken("page_token", request.page_token(), ListName(request.newest_first()), 4));
  int64_t start = 0;
  int64_t number = 0;
  if (!absl::SimpleAtoi(fields[1], &start) || !absl::SimpleAtoi(fields[2], &number)) {
    return BadPageToken("page_token");
  }
  if (start == start_) return number;
  if (const JobPart* part = jobs_.Find(fields[3])) return part->number;
  return absl::InvalidArgumentError(
      absl::StrCat("page_token: the driver was started again and has forgotten job ", fields[3],
                   ", with which the page before ended; leave it out to get the first page"));
}

absl::StatusOr<control::ListJobsResponse> DriverView::List(const control::ListJobsRequest& request,
                                                           absl::Time now) const {
  if (request.page_size() < 0 || request.page_size() > kJobsPageMax) {
    return absl::InvalidArgumentError(absl::StrCat("page_size: ", request.page_size(),
                                                   "; expected 0 to ", kJobsPageMax,
                                                   "; 0 stands for the maximum"));
  }
  const size_t page_size = request.page_size() == 0 ? kJobsPageMax : request.page_size();
  std::vector<const JobPart*> parts = jobs_.Values();
  const bool newest_first = request.newest_first();
  if (!request.page_token().empty()) {
    ASSIGN_OR_RETURN(const int64_t begin, BeginOfPage(request));
    std::erase_if(parts, [&](const JobPart* part) {
      return newest_first ? part->number >= begin : part->number <= begin;
    });
  }
  auto end = parts.begin() + static_cast<std::ptrdiff_t>(std::min(page_size, parts.size()));
  std::partial_sort(parts.begin(), end, parts.end(), [&](const JobPart* a, const JobPart* b) {
    return newest_first ? a->number > b->number : a->number < b->number;
  });
  const std::map<absl::string_view, int64_t> places = PlacesInQueue();
  control::ListJobsResponse response;
  size_t num_bytes = 0;
  for (auto part = parts.begin(); part != end; ++part) {
    const auto place = places.find(JobId((*part)->record->Head()));
    control::Job job = ViewOf(**part, (*part)->steps, place == places.end() ? 0 : place->second,
                              now, !request.with_ranks());
    num_bytes += job.ByteSizeLong();
    if (num_bytes > kPageBytesMax && part != parts.begin()) {
      end = part;
      break;
    }
    *response.add_jobs() = std::move(job);
  }
  if (end != parts.end()) response.set_next_page_token(TokenAfter(**(end - 1), newest_first));
  return response;
}

absl::Duration DriverView::SilenceOf(const std::string& node_id) const {
  const AgentPart* part = agents_.Find(node_id);
  return part == nullptr ? awake_ : awake_ - part->heard;
}

std::map<std::string, NodeUse> DriverView::UseNow() const {
  std::vector<const JobRecord*> jobs;
  for (const JobPart* part : jobs_.Values()) {
    if (HoldsSlots(part->record->Head())) jobs.push_back(&part->record->Whole());
  }
  return UseOfNodes(jobs, LookupOfNodes());
}

void DriverView::AddGpus(control::NodeView* view) const {
  const AgentPart* part = agents_.Find(view->node_id());
  if (part == nullptr || part->gpus == nullptr || !view->alive()) return;
  for (const auto& [index, gpu] : *part->gpus) {
    if (awake_ - gpu->heard <= AgentReports::kGpuAgeMax) *view->add_gpus() = gpu->sample;
  }
}

control::GetClusterResponse DriverView::Nodes() const {
  control::GetClusterResponse response;
  response.set_version(base::kVersion);
  response.set_exchange_rate_min(exchange_rate_min_);
  std::map<std::string, NodeUse> use = UseNow();
  std::vector<const NodeRecord*> nodes = nodes_.Values();
  std::sort(nodes.begin(), nodes.end(), [](const NodeRecord* a, const NodeRecord* b) {
    return a->hello().node_id() < b->hello().node_id();
  });
  for (const NodeRecord* node : nodes) {
    const std::string& node_id = node->hello().node_id();
    control::NodeView* view = response.add_nodes();
    *view = ViewNode(*node, use[node_id], SilenceOf(node_id));
    AddGpus(view);
  }
  MoveTimes(clock_ahead_, &response);
  return response;
}

absl::StatusOr<control::NodeView> DriverView::Node(const std::string& node_id) const {
  const NodeRecord* node = nodes_.Find(node_id);
  if (node == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("node ", node_id, ": was lost long ago; its record is deleted"));
  }
  control::NodeView view = ViewNode(*node, UseNow()[node_id], SilenceOf(node_id));
  AddGpus(&view);
  MoveTimes(clock_ahead_, &view);
  return view;
}

std::vector<RecentSteps::StepRecord> DriverView::StepsSince(const std::string& job_id,
                                                            int64_t* position) const {
  const JobPart* part = jobs_.Find(job_id);
  return part == nullptr ? std::vector<RecentSteps::StepRecord>() : part->steps.Since(position);
}

// --- publishing ---------------------------------------------------------------------------------

ViewPublisher::ViewPublisher(const Sources& sources) : sources_(sources) {
  auto empty = std::make_shared<DriverView>();
  empty->queue_ = std::make_shared<const std::vector<std::string>>();
  empty->storage_fails_ = std::make_shared<const std::map<std::string, absl::Duration>>();
  empty->files_ = sources.files;
  empty->clock_ahead_ = sources.clock->Ahead();
  empty->start_ = sources.state->num_events();
  for (const JobRecord& job : sources.state->jobs()) PublishJob(JobId(job), true, empty.get());
  PublishNodes(empty.get());
  empty->exchange_rate_min_ = MinimumExchangeRate(*sources.state);
  PublishQueue(empty.get());
  newest_ = std::move(empty);
}

std::shared_ptr<const DriverView> ViewPublisher::Newest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return newest_;
}

void ViewPublisher::PublishJob(const std::string& job_id, bool with_record, DriverView* view) {
  const JobRecord* job = sources_.index->Find(*sources_.state, job_id);
  if (job == nullptr) return;
  const DriverView::JobPart* before = view->jobs_.Find(job_id);
  auto part = std::make_shared<DriverView::JobPart>();
  part->number = before == nullptr ? num_jobs_++ : before->number;
  if (before == nullptr || with_record) {
    part->record = std::make_shared<const SharedRecord>(
        *job, sources_.index->ListsOf(job_id), before == nullptr ? nullptr : before->record.get());
  } else {
    part->record = before->record;
  }
  const LossLog* log = sources_.logs->Find(job_id);
  if (log != nullptr && (log->is_synced() || before == nullptr)) {
    part->steps = log->recent();
  } else if (before != nullptr) {
    part->steps = before->steps;
    // The job has ended, or its log fails; otherwise the log waits for its turn to be synced.
    const bool is_rolled_back = log == nullptr && job->stage() == v1::STAGE_RUN &&
                                !part->steps.empty() &&
                                part->steps.back().attempt() < job->attempt();
    if (is_rolled_back) part->steps.KeepNewest(0);
  }
  if (const auto* steps = sources_.counts->Find(job_id); steps != nullptr) part->new_steps = *steps;
  // That of a job that has ended is in its evidence.
  if (!IsTerminal(*job)) part->log_warning = sources_.logs->WarningOf(job_id);
  view->jobs_.Set(job_id, std::move(part));
}

const JobRecord* ViewPublisher::HeadOf(const std::string& job_id, const DriverView& view) {
  const DriverView::JobPart* part = view.jobs_.Find(job_id);
  return part == nullptr ? nullptr : &part->record->Head();
}

void ViewPublisher::PublishNode(const std::string& node_id, DriverView* view) {
  const NodeRecord* node = FindNode(*sources_.state, node_id);
  if (node == nullptr) {
    view->nodes_.Erase(node_id);
    view->agents_.Erase(node_id);
  } else {
    view->nodes_.Set(node_id, std::make_shared<const NodeRecord>(*node));
  }
}

void ViewPublisher::PublishNodes(DriverView* view) {
  std::set<std::string> node_ids;
  for (const NodeRecord* node : view->nodes_.Values()) node_ids.insert(node->hello().node_id());
  for (const NodeRecord& node : sources_.state->nodes()) node_ids.insert(node.hello().node_id());
  for (const std::string& node_id : node_ids) PublishNode(node_id, view);
}

void ViewPublisher::PublishQueue(DriverView* view) {
  auto queue = std::make_shared<std::vector<std::string>>();
  for (const JobRecord* job : Queue({*sources_.state, *sources_.index})) {
    queue->push_back(JobId(*job));
  }
  view->queue_ = std::move(queue);
}

void ViewPublisher::PublishStorage(DriverView* view) {
  std::map<std::string, absl::Duration> fails = sources_.monitor->StorageFailures();
  if (fails == *view->storage_fails_) return;
  view->storage_fails_ =
      std::make_shared<const std::map<std::string, absl::Duration>>(std::move(fails));
}

// Thousands of jobs may have ended, and their steps would fill the memory.
void ViewPublisher::DropOldSteps(absl::Duration now, DriverView* view) {
  while (!ended_.empty() && ended_.front().first + kEndedStepsAge <= now) {
    const std::string job_id = std::move(ended_.front().second);
    ended_.pop_front();
    const DriverView::JobPart* part = view->jobs_.Find(job_id);
    if (part == nullptr) continue;
    auto less = std::make_shared<DriverView::JobPart>(*part);
    less->steps.KeepNewest(kEndedStepsMax);
    view->jobs_.Set(job_id, std::move(less));
  }
}

void ViewPublisher::Publish(const JobIndex::Touched& touched, absl::Duration now) {
  auto view = std::make_shared<DriverView>(*newest_);
  bool queue_changed = false;
  // In the order of submission, in which jobs are listed.
  std::vector<std::pair<int, std::string>> jobs;
  for (const std::string& job_id : touched.jobs) {
    jobs.emplace_back(sources_.index->PlaceOf(job_id), job_id);
  }
  std::sort(jobs.begin(), jobs.end());
  for (const auto& [place, job_id] : jobs) {
    const JobRecord* before = HeadOf(job_id, *view);
    const bool was_open = before == nullptr || !IsTerminal(*before);
    const bool was_queued = before != nullptr && before->stage() == v1::STAGE_QUEUED;
    PublishJob(job_id, true, view.get());
    const JobRecord* job = HeadOf(job_id, *view);
    if (job == nullptr) continue;
    queue_changed = queue_changed || was_queued || job->stage() == v1::STAGE_QUEUED;
    if (was_open && IsTerminal(*job)) ended_.emplace_back(now, job_id);
  }
  for (const std::string& job_id : steps_) {
    if (touched.jobs.count(job_id) == 0) PublishJob(job_id, false, view.get());
  }
  for (const std::string& job_id : forgotten_) view->jobs_.Erase(job_id);
  if (touched.all_node_records) {
    PublishNodes(view.get());
  } else {
    for (const std::string& node_id : touched.node_records) PublishNode(node_id, view.get());
  }
  if (touched.all_node_records || !touched.node_records.empty()) {
    view->exchange_rate_min_ = MinimumExchangeRate(*sources_.state);
  }
  for (const std::string& node_id : agents_) {
    if (FindNode(*sources_.state, node_id) == nullptr) continue;
    auto part = std::make_shared<DriverView::AgentPart>();
    part->report = sources_.monitor->reports().ReportOf(node_id);
    part->gpus = sources_.monitor->reports().GpusOf(node_id);
    part->heard = sources_.monitor->reports().HeardAt(node_id);
    view->agents_.Set(node_id, std::move(part));
  }
  if (queue_changed) PublishQueue(view.get());
  PublishStorage(view.get());
  DropOldSteps(now, view.get());
  steps_.clear();
  agents_.clear();
  forgotten_.clear();
  view->awake_ = sources_.monitor->reports().awake();
  view->clock_ahead_ = sources_.clock->Ahead();
  ++view->round_;
  std::shared_ptr<const DriverView> next = std::move(view);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    newest_.swap(next);
  }
}

}  // namespace megascale::driver
