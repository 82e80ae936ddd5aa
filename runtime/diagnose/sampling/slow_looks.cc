#include "runtime/diagnose/sampling/slow_looks.h"

namespace megascale::diagnose {

bool SlowLooks::IsConfirmed(const std::string& job_id, const Finding& finding) {
  const auto found = found_.find(job_id);
  const bool is_same = found != found_.end() && !finding.node_id.empty() &&
                       found->second.first.node_id == finding.node_id &&
                       found->second.first.attempt == finding.attempt;
  if (!is_same) {
    found_.erase(job_id);
    if (!finding.node_id.empty()) found_[job_id] = {.first = finding};
    return false;
  }
  found->second.is_of_round = true;
  return finding.newest_step >= found->second.first.newest_step + kStepsBetween;
}

void SlowLooks::PassOver(const std::string& job_id) {
  const auto found = found_.find(job_id);
  if (found != found_.end()) found->second.is_of_round = true;
}

void SlowLooks::EndRound() {
  std::erase_if(found_, [](const auto& entry) { return !entry.second.is_of_round; });
  for (auto& [job_id, kept] : found_) kept.is_of_round = false;
}

}  // namespace megascale::diagnose
