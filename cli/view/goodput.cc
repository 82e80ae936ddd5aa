#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/view/live_view.h"

namespace megascale::cli {
namespace {

constexpr double kPercentMin = 0.1;

double Percent(int64_t part, const control::v1::TimeAccount& account) {
  return account.wall_nanos() <= 0
             ? 0
             : 100 * static_cast<double>(part) / static_cast<double>(account.wall_nanos());
}

std::string LostText(const control::v1::TimeAccount& account) {
  std::vector<std::pair<double, const char*>> lost;
  const auto add = [&](int64_t part, const char* name) {
    if (Percent(part, account) >= kPercentMin) lost.emplace_back(Percent(part, account), name);
  };
  add(account.queue_nanos(), "queue");
  add(account.start_nanos(), "start");
  add(account.load_nanos(), "load");
  add(account.checkpoint_nanos(), "checkpoints");
  add(account.detection_nanos(), "detection");
  add(account.decision_nanos(), "decision");
  add(account.recomputation_nanos(), "recomputation");
  add(account.degraded_nanos(), "degraded speed");
  add(account.evaluation_nanos(), "evaluation");
  std::stable_sort(lost.begin(), lost.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [percent, name] : lost) {
    absl::StrAppend(&text, text.empty() ? "; lost: " : ", ", name,
                    absl::StrFormat(" %.1f %%", percent));
  }
  return text;
}

}  // namespace

std::string GoodputLine(const control::v1::Job& job) {
  const control::v1::TimeAccount& account = job.time_account();
  if (account.wall_nanos() <= 0) return "";
  std::string line =
      absl::StrFormat("goodput %.1f %% of %s", Percent(account.kept_nanos(), account),
                      ShortDuration(absl::Nanoseconds(account.wall_nanos())));
  const control::v1::TimeAccount& hour = job.last_hour();
  if (hour.wall_nanos() < account.wall_nanos()) {
    absl::StrAppendFormat(&line, ", %.1f %% of the last hour", Percent(hour.kept_nanos(), hour));
  }
  return line + LostText(account);
}

}  // namespace megascale::cli
