#include "controlplane/driver/service/watched_jobs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "controlplane/driver/shell/job_view.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::driver {

WatchedJobs::Watch::Watch(WatchedJobs* jobs, const std::string& job_id, int ranks_max)
    : jobs_(*jobs),
      key_(job_id, static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks_max)))) {
  const std::lock_guard<std::mutex> lock(jobs_.mutex_);
  std::shared_ptr<Entry>& entry = jobs_.entries_[key_];
  if (entry == nullptr) entry = std::make_shared<Entry>();
  ++entry->num_watchers;
}

WatchedJobs::Watch::~Watch() {
  const std::lock_guard<std::mutex> lock(jobs_.mutex_);
  const auto found = jobs_.entries_.find(key_);
  if (--found->second->num_watchers == 0) jobs_.entries_.erase(found);
}

absl::StatusOr<std::shared_ptr<const WatchedJobs::Shown>> WatchedJobs::Watch::Show() {
  absl::Duration age_max;
  auto shown = jobs_.Show(key_, std::exchange(is_first_, false), &age_max);
  interval_ = std::clamp(age_max / 4, kIntervalMin, kIntervalMax);
  return shown;
}

int64_t WatchedJobs::num_made() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_made_;
}

absl::StatusOr<std::shared_ptr<const WatchedJobs::Shown>> WatchedJobs::Show(
    const Key& key, bool newest, absl::Duration* age_max) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    entry = entries_.at(key);
  }
  const std::lock_guard<std::mutex> lock(entry->mutex);
  *age_max = entry->age_max;
  const absl::Duration now = base::RealClock().Monotonic();
  if (!newest && now - entry->made < entry->age_max) return entry->shown;
  ASSIGN_OR_RETURN(auto view, loop_.View());
  if (entry->shown != nullptr && entry->shown->view == view) return entry->shown;
  auto shown = std::make_shared<Shown>();
  const auto& [job_id, ranks_max] = key;
  ASSIGN_OR_RETURN(shown->job, view->Job(job_id, loop_.wall()));
  const auto whole_bytes = static_cast<double>(shown->job.ByteSizeLong());
  if (ranks_max > 0) ShortenRanks(ranks_max, &shown->job);
  shown->num_bytes = shown->job.ByteSizeLong();
  std::string essence = WithoutAges(shown->job).SerializeAsString();
  const bool is_news = entry->shown == nullptr || essence != entry->essence;
  shown->version = (entry->shown == nullptr ? 0 : entry->shown->version) + (is_news ? 1 : 0);
  shown->view = std::move(view);
  entry->essence = std::move(essence);
  entry->shown = std::move(shown);
  entry->made = now;
  entry->age_max = std::clamp(absl::Seconds(whole_bytes / kBytesPerSecond), kAgeMin, kAgeMax);
  *age_max = entry->age_max;
  const std::lock_guard<std::mutex> counting(mutex_);
  ++num_made_;
  return entry->shown;
}

}  // namespace megascale::driver
