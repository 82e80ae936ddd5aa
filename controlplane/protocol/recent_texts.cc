#include "controlplane/protocol/recent_texts.h"

namespace megascale::protocol {
namespace {

namespace agent = megascale::agent::v1;

// Returns the text of the rank in the report before if the rank has made no progress since; null:
// there is none, or the rank has one.
const std::string* KnownText(const agent::ActualState& before, const agent::ActualJob& job,
                             const agent::ActualRank& rank) {
  if (rank.state() != agent::ActualRank::STATE_RUNNING || !rank.status().recent().empty()) {
    return nullptr;
  }
  for (const agent::ActualJob& known : before.jobs()) {
    if (known.job_id() != job.job_id() || known.attempt() != job.attempt()) continue;
    for (const agent::ActualRank& then : known.ranks()) {
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

std::vector<std::string*> RecentTextsOf(agent::ActualState* report) {
  std::vector<std::string*> texts;
  for (agent::ActualJob& job : *report->mutable_jobs()) {
    for (agent::ActualRank& rank : *job.mutable_ranks()) {
      if (rank.status().recent().empty()) continue;
      texts.push_back(rank.mutable_status()->mutable_recent());
    }
  }
  return texts;
}

bool HasRecentTexts(const agent::ActualState& report) {
  for (const agent::ActualJob& job : report.jobs()) {
    for (const agent::ActualRank& rank : job.ranks()) {
      if (!rank.status().recent().empty()) return true;
    }
  }
  return false;
}

void ClearRecentTexts(agent::ActualState* report) {
  for (std::string* text : RecentTextsOf(report)) text->clear();
}

bool LacksRecentTexts(const agent::ActualState& before, const agent::ActualState& report) {
  if (!HasRecentTexts(before)) return false;
  for (const agent::ActualJob& job : report.jobs()) {
    for (const agent::ActualRank& rank : job.ranks()) {
      if (KnownText(before, job, rank) != nullptr) return true;
    }
  }
  return false;
}

void KeepRecentTexts(const agent::ActualState& before, agent::ActualState* report) {
  if (!HasRecentTexts(before)) return;
  for (agent::ActualJob& job : *report->mutable_jobs()) {
    for (agent::ActualRank& rank : *job.mutable_ranks()) {
      const std::string* text = KnownText(before, job, rank);
      if (text != nullptr) rank.mutable_status()->set_recent(*text);
    }
  }
}

}  // namespace megascale::protocol
