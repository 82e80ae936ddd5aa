// What the driver knew at the end of one of its rounds: its durable state, joined with the agents'
// newest reports. A view never changes. In each round the driver's loop makes a new view, which
// shares with the view before all that the round did not touch. Readers take the newest view, so
// they never enter the loop, and the loop does not wait for them. The reader's thread computes what
// is derived for people.
// For a job that has ended, a view has only the record and the last steps; everything else is read
// from the job's folder. Threads: any, for a view. A publisher has one owner.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/core/job_index.h"
#include "controlplane/driver/detection/agent_monitor.h"
#include "controlplane/driver/shell/job_logs.h"
#include "controlplane/driver/shell/job_view.h"
#include "controlplane/driver/shell/shared_map.h"
#include "controlplane/driver/shell/shared_record.h"
#include "controlplane/driver/shell/step_counts.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/driver/storage/log_clock.h"
#include "controlplane/driver/storage/recent_steps.h"
#include "proto/control.pb.h"

namespace megascale::driver {

class DriverView {
 public:
  // `now`: wall time, for ages. Moments in the answers are moments of the wall clock, also here and
  // below. Blocking: for a job that has ended, the disk. Errors: NotFound.
  absl::StatusOr<megascale::control::v1::Job> Job(const std::string& job_id, absl::Time now) const;
  // Returns all jobs in the order of submission. Reads no files: a job that has ended comes without
  // its evidence, and may lack the figures of its last step.
  std::vector<megascale::control::v1::Job> Jobs(absl::Time now) const;
  // Returns the jobs that had begun an attempt and ended after this time; jobs that succeeded come
  // after the others, the newest first.
  std::vector<std::string> EndedSince(absl::Time since) const;
  // Returns a page of all jobs; reads no files either. Errors: InvalidArgument - size or token.
  absl::StatusOr<megascale::control::v1::ListJobsResponse> List(
      const megascale::control::v1::ListJobsRequest& request, absl::Time now) const;
  megascale::control::v1::GetClusterResponse Nodes() const;
  // NotFound: the node was forgotten.
  absl::StatusOr<megascale::control::v1::NodeView> Node(const std::string& node_id) const;
  // Returns the steps of a job that were completed since `position`, which it moves to the end;
  // with -1 no steps.
  std::vector<megascale::telemetry::v1::StepRecord> StepsSince(const std::string& job_id,
                                                               int64_t* position) const;
  // Returns the jobs that train and of which no rank has ended, in no order. Valid as long as the
  // view.
  std::vector<const JobRecord*> TrainingJobs() const;
  // Returns the newest steps of the job's loss log. Valid as long as the view.
  const RecentSteps& Steps(const JobRecord& job) const;
  // Returns UsualStep of the job (step_counts.h); zero: not known.
  absl::Duration StepTime(const JobRecord& job) const;
  // Returns what these ranks of the job's attempt said last. Requires: they are ranks of the job.
  std::vector<megascale::control::v1::RankView> Ranks(const JobRecord& job,
                                                      const std::vector<int>& ranks) const;
  // Returns the job's record as it is in the state; null: there is no such job. Valid as long as
  // the view. Cost: the first reader copies it.
  const JobRecord* Record(const std::string& job_id) const;
  // The number of the round that made it.
  int64_t round() const { return round_; }

 private:
  friend class ViewPublisher;
  struct JobPart {
    std::shared_ptr<const SharedRecord> record;
    int64_t number = 0;  // in the order of submission
    RecentSteps steps;
    megascale::driver::v1::StepsTaken new_steps;
    std::string log_warning;  // JobLogs::WarningOf
  };
  struct AgentPart {
    std::shared_ptr<const megascale::agent::v1::ActualState> report;
    std::shared_ptr<const ReportedGpus> gpus;     // null: there are none
    absl::Duration heard = absl::ZeroDuration();  // in awake time
  };

  // Returns the view of the job without what is kept in files. `place`: in the queue, from 1; 0:
  // the job is not in it.
  megascale::control::v1::Job ViewOf(const JobPart& part, const RecentSteps& steps, int64_t place,
                                     absl::Time now, bool is_summary = false) const;
  // Returns the number of the job after which a page begins; with newest_first, before which.
  absl::StatusOr<int64_t> BeginOfPage(const megascale::control::v1::ListJobsRequest& request) const;
  std::string TokenAfter(const JobPart& part, bool newest_first) const;
  std::map<absl::string_view, int64_t> PlacesInQueue() const;
  NodeLookup LookupOfNodes() const;
  ReportLookup LookupOfReports(const JobRecord& job) const;
  absl::Duration SilenceOf(const std::string& node_id) const;
  void AddGpus(megascale::control::v1::NodeView* view) const;
  std::map<std::string, NodeUse> UseNow() const;

  SharedMap<JobPart> jobs_;
  SharedMap<NodeRecord> nodes_;
  SharedMap<AgentPart> agents_;
  std::shared_ptr<const std::vector<std::string>> queue_;  // jobs, in the order of the queue
  // By job: since when its checkpoints cannot be written, in awake time.
  std::shared_ptr<const std::map<std::string, absl::Duration>> storage_fails_;
  double exchange_rate_min_ = 0;  // MinimumExchangeRate
  absl::Duration awake_ = absl::ZeroDuration();
  absl::Duration clock_ahead_ = absl::ZeroDuration();  // LogClock::Ahead
  int64_t round_ = 0;
  int64_t start_ = 0;  // of the driver: the events before it
  JobFiles* files_ = nullptr;
};

class ViewPublisher {
 public:
  // Where the view's parts come from. All outlive the publisher.
  struct Sources {
    const DriverState* state = nullptr;
    const JobIndex* index = nullptr;
    const AgentMonitor* monitor = nullptr;
    const JobLogs* logs = nullptr;
    const StepCounts* counts = nullptr;
    JobFiles* files = nullptr;
    const LogClock* clock = nullptr;
  };
  explicit ViewPublisher(const Sources& sources);

  // Note what changed since the last call of Publish.
  void TouchSteps(const std::string& job_id) { steps_.insert(job_id); }
  void TouchAgent(const std::string& node_id) { agents_.insert(node_id); }
  void ForgetJob(const std::string& job_id) { forgotten_.insert(job_id); }

  // Makes the next view. `touched`: by events. `now`: monotonic. Cost: what was touched.
  void Publish(const JobIndex::Touched& touched, absl::Duration now);

  // Returns the newest view. Threads: any.
  std::shared_ptr<const DriverView> Newest() const;

 private:
  void PublishJob(const std::string& job_id, bool with_record, DriverView* view);
  // Returns SharedRecord::Head of the job; null: there is no such job.
  static const JobRecord* HeadOf(const std::string& job_id, const DriverView& view);
  void PublishNode(const std::string& node_id, DriverView* view);
  void PublishNodes(DriverView* view);
  void PublishQueue(DriverView* view);
  void PublishStorage(DriverView* view);
  void DropOldSteps(absl::Duration now, DriverView* view);

  const Sources sources_;
  std::set<std::string> steps_;
  std::set<std::string> agents_;
  std::set<std::string> forgotten_;
  std::deque<std::pair<absl::Duration, std::string>> ended_;  // jobs with all steps, and when
  int64_t num_jobs_ = 0;                                      // that were ever published

  mutable std::mutex mutex_;
  std::shared_ptr<const DriverView> newest_;
};

}  // namespace megascale::driver
