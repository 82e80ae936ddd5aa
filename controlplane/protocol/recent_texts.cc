#include "controlplane/protocol/recent_texts.h"

namespace megascale::protocol {
namespace {

// Returns the text of the rank in the report before if the rank has made no progress since; null:
// there is none, or the rank has one.
const std::string* KnownText(const agent::v1::ActualState& before, const agent::v1::ActualJob& job,
                             const agent::v1::ActualRank& rank) {
  if (rank.state() != agent::v1::ActualRank::STATE_RUNNING || !rank.status().recent().empty()) {
    return nullptr;
  }
  for (const agent::v1::ActualJob& known : before.jobs()) {
    if (known.job_id() != job.job_id() || known.attempt() != job.attempt()) continue;
    for (const agent::v1::ActualRank& then : known.ranks()) {
      const bool is_same =
          then.status().rank() == rank.status().rank() &&
          then.status().pid() == rank.status().pid() &&
          then.status().progress_age_seconds() <= rank.status().progress_age_seconds();
      if (is_same && !then.status().recent().empty()) return &then.status().recent();
    }
  }
  return nullptr;
}

}  // namespace

std::vector<std::string*> RecentTextsOf(agent::v1::ActualState* report) {
  std::vector<std::string*> texts;
  for (agent::v1::ActualJob& job : *report->mutable_jobs()) {
    for (agent::v1::ActualRank& rank : *job.mutable_ranks()) {
      if (rank.status().recent().empty()) continue;
      texts.push_back(rank.mutable_status()->mutable_recent());
    }
  }
  return texts;
}

bool HasRecentTexts(const agent::v1::ActualState& report) {
  for (const agent::v1::ActualJob& job : report.jobs()) {
    for (const agent::v1::ActualRank& rank : job.ranks()) {
      if (!rank.status().recent().empty()) return true;
    }
  }
  return false;
}

void ClearRecentTexts(agent::v1::ActualState* report) {
  for (std::string* text : RecentTextsOf(report)) text->clear();
}

bool LacksRecentTexts(const agent::v1::ActualState& before, const agent::v1::ActualState& report) {
  if (!HasRecentTexts(before)) return false;
  for (const agent::v1::ActualJob& job : report.jobs()) {
    for (const agent::v1::ActualRank& rank : job.ranks()) {
      if (KnownText(before, job, rank) != nullptr) return true;
    }
  }
  return false;
}

void KeepRecentTexts(const agent::v1::ActualState& before, agent::v1::ActualState* report) {
  if (!HasRecentTexts(before)) return;
  for (agent::v1::ActualJob& job : *report->mutable_jobs()) {
    for (agent::v1::ActualRank& rank : *job.mutable_ranks()) {
      const std::string* text = KnownText(before, job, rank);
      if (text != nullptr) rank.mutable_status()->set_recent(*text);
    }
  }
}

}  // namespace megascale::protocol
