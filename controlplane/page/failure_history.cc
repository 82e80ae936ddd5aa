#include "controlplane/page/failure_history.h"

#include <set>

namespace megascale::page {

void FailureHistory::Observe(const control::v1::Job& job, absl::Duration now, absl::Time wall) {
  const auto [found, is_first_look] = jobs_.try_emplace(job.job_id());
  Entry& entry = found->second;
  const int64_t culprit_attempt = job.has_culprit() ? job.culprit().attempt() : 0;
  if (culprit_attempt > entry.failed_attempt) {
    ObservedFailure failure;
    failure.culprit = job.culprit();
    if (!is_first_look) {
      failure.noticed_unix_seconds = absl::ToUnixSeconds(wall);
      failure.last_step = entry.step;
      failure.detection_seconds = absl::ToDoubleSeconds(now - entry.step_at);
      ++entry.counts[job.culprit().failure_class()];
    }
    entry.failures.push_back(std::move(failure));
    if (entry.failures.size() > kFailuresMax) entry.failures.erase(entry.failures.begin());
    entry.failed_attempt = culprit_attempt;
    entry.noticed_at = now;
  }
  if (!entry.failures.empty()) {
    ObservedFailure& newest = entry.failures.back();
    newest.num_consequences = job.num_consequences();
    const bool trains_again =
        job.has_last_record() && job.last_record().attempt() > entry.failed_attempt;
    if (trains_again && newest.recovery_seconds < 0 && newest.noticed_unix_seconds != 0) {
      newest.recovery_seconds = absl::ToDoubleSeconds(now - entry.noticed_at);
    }
  }
  if (is_first_look || job.last_step() != entry.step) {
    entry.step = job.last_step();
    entry.step_at = now;
  }
}

void FailureHistory::Keep(const std::vector<control::v1::Job>& jobs) {
  std::set<std::string> kept;
  for (const control::v1::Job& job : jobs) kept.insert(job.job_id());
  std::erase_if(jobs_, [&](const auto& entry) { return kept.count(entry.first) == 0; });
}

std::vector<ObservedFailure> FailureHistory::Of(const std::string& job_id) const {
  const auto found = jobs_.find(job_id);
  return found == jobs_.end() ? std::vector<ObservedFailure>() : found->second.failures;
}

std::map<int, int64_t> FailureHistory::CountsOf(const std::string& job_id) const {
  const auto found = jobs_.find(job_id);
  return found == jobs_.end() ? std::map<int, int64_t>() : found->second.counts;
}

}  // namespace megascale::page
