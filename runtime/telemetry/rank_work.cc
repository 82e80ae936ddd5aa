#include "runtime/telemetry/rank_work.h"

#include <algorithm>
#include <utility>

namespace megascale::telemetry {
namespace {

void AddTo(const v1::StepsWork& part, v1::StepsWork* sum) {
  sum->set_num_steps(sum->num_steps() + part.num_steps());
  sum->set_seconds(sum->seconds() + part.seconds());
  sum->set_compute_seconds(sum->compute_seconds() + part.compute_seconds());
  sum->set_wait_seconds(sum->wait_seconds() + part.wait_seconds());
}

}  // namespace

RankWorkSum::RankWorkSum(std::string job_id, std::vector<v1::StepRange> ranges)
    : job_id_(std::move(job_id)), ranges_(std::move(ranges)) {
  ranges_.resize(std::min(ranges_.size(), kRangesMax));
}

void RankWorkSum::Add(const v1::MachineSample& sample) {
  for (const v1::ProcessSample& rank : sample.ranks()) {
    if (rank.job_id() != job_id_) continue;
    const auto [place, is_new] = ranks_.try_emplace(rank.rank());
    Seen& seen = place->second;
    if (is_new || rank.step() < seen.step) {
      seen = {.sums = std::vector<Sum>(ranges_.size())};
    } else {
      AddSecond(rank, static_cast<double>(sample.monotonic_nanos() - seen.nanos) / 1e9, &seen);
    }
    seen.nanos = sample.monotonic_nanos();
    seen.step = rank.step();
  }
}

// A second counts for the step in which it begins.
void RankWorkSum::AddSecond(const v1::ProcessSample& rank, double seconds, Seen* seen) const {
  const int64_t num_ended = rank.step() - seen->step;
  v1::StepsWork second;
  second.set_num_steps(num_ended);
  second.set_seconds(seconds);
  second.set_compute_seconds(seconds * rank.compute_share());
  second.set_wait_seconds(seconds * rank.wait_share());
  for (size_t i = 0; i < ranges_.size() && seen->has_ended_step; ++i) {
    const int64_t step = seen->step + 1;
    if (step < ranges_[i].first_step() || step > ranges_[i].last_step()) continue;
    Sum& sum = seen->sums[i];
    AddTo(second, &sum.open);
    if (num_ended == 0) continue;
    AddTo(sum.open, &sum.whole);
    sum.open.Clear();
  }
  if (num_ended > 0) seen->has_ended_step = true;
}

std::vector<v1::RankWork> RankWorkSum::Ranks() const {
  std::vector<v1::RankWork> ranks;
  for (const auto& [rank, seen] : ranks_) {
    v1::RankWork& work = ranks.emplace_back();
    work.set_rank(rank);
    for (const Sum& sum : seen.sums) *work.add_ranges() = sum.whole;
  }
  return ranks;
}

}  // namespace megascale::telemetry
