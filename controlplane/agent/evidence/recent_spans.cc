#include "controlplane/agent/evidence/recent_spans.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/plan/instruction.h"
#include "runtime/plan/operation.h"

namespace megascale::agent {
namespace {

using telemetry::Span;

constexpr size_t kSpansKept = 8;

std::string Ago(absl::Duration now, int64_t then_nanos) {
  const absl::Duration age = now - absl::Nanoseconds(then_nanos);
  return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(std::max(age, absl::ZeroDuration())));
}

std::string IdOf(const Span& span) {
  return plan::InstructionId::FromPacked(span.instruction).ToString();
}

bool IsExchange(const Span& span) {
  return plan::IsExchangeOfPass(plan::InstructionId::FromPacked(span.instruction));
}

}  // namespace

void RecentSpans::Drain() {
  drained_.clear();
  num_lost_ = std::min(num_lost_ + reader_.Drain(&drained_), kLostMax);
  if (drained_.empty()) return;
  for (const Span& span : drained_) (IsExchange(span) ? exchanges_ : instructions_).push_back(span);
  for (std::deque<Span>* history : {&instructions_, &exchanges_}) {
    if (history->size() <= kHistorySpans) continue;
    history->erase(history->begin(), history->end() - static_cast<ptrdiff_t>(kHistorySpans));
  }
  drained_.erase(std::remove_if(drained_.begin(), drained_.end(), IsExchange), drained_.end());
  newest_.insert(newest_.end(), drained_.begin(), drained_.end());
  const size_t kept = std::min(newest_.size(), kSpansKept);
  std::partial_sort(newest_.begin(), newest_.begin() + static_cast<ptrdiff_t>(kept), newest_.end(),
                    [](const Span& a, const Span& b) { return a.end_nanos > b.end_nanos; });
  newest_.resize(kept);
}

std::vector<Span> RecentSpans::Since(int64_t first_step) const {
  std::vector<Span> since;
  const auto is_wanted = [&](const Span& span) { return span.step >= first_step; };
  for (const std::deque<Span>* history : {&instructions_, &exchanges_}) {
    std::copy_if(history->begin(), history->end(), std::back_inserter(since), is_wanted);
  }
  const std::vector<Span> open = reader_.Open();
  std::copy_if(open.begin(), open.end(), std::back_inserter(since), is_wanted);
  return since;
}

namespace {

using Intervals = std::vector<std::pair<int64_t, int64_t>>;

// Returns the length of the union.
int64_t Covered(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end());
  int64_t covered = 0;
  int64_t until = 0;
  for (const auto& [begin, end] : intervals) {
    covered += std::max<int64_t>(0, end - std::max(begin, until));
    until = std::max(until, end);
  }
  return covered;
}

bool IsForward(const Span& span) {
  return plan::InstructionId::FromPacked(span.instruction).operation() == plan::OpKind::kForward;
}

bool Evaluates(const Span& span) {
  const auto id = plan::InstructionId::FromPacked(span.instruction);
  return plan::OperationOf(id.operation()).for_evaluation;
}

bool Meets(const Span& span) {
  return plan::NeedsPeers(plan::InstructionId::FromPacked(span.instruction));
}

}  // namespace

RecentSpans::Shares RecentSpans::SharesOf(int64_t begin, int64_t end) const {
  // Spans of different lanes are not quite in the order of their ends.
  constexpr int kOldSpansMax = 256;
  Intervals computes;
  Intervals all;
  int64_t num_forwards = 0;
  const auto add = [&](const Span& span, int64_t span_end) {
    const std::pair<int64_t, int64_t> part = {std::max(begin, span.begin_nanos),
                                              std::min(end, span_end)};
    if (part.first >= part.second) return false;
    if (Evaluates(span)) return true;
    all.push_back(part);
    if (!Meets(span)) computes.push_back(part);
    if (IsForward(span) && span.end_nanos != 0 && span.end_nanos <= end) ++num_forwards;
    return true;
  };
  int num_old = 0;
  for (auto it = instructions_.rbegin(); it != instructions_.rend() && num_old < kOldSpansMax;
       ++it) {
    if (!add(*it, it->end_nanos)) ++num_old;
  }
  for (const Span& span : reader_.Open()) {
    if (!IsExchange(span)) add(span, end);
  }
  const auto length = static_cast<double>(end - begin);
  const auto computed = static_cast<double>(Covered(std::move(computes)));
  const auto covered = static_cast<double>(Covered(std::move(all)));
  return {.compute = computed / length,
          .wait = (covered - computed) / length,
          .num_forwards = num_forwards};
}

std::string RecentSpans::Describe(absl::Duration now) const {
  std::string text;
  std::vector<Span> open = reader_.Open();
  std::sort(open.begin(), open.end(),
            [](const Span& a, const Span& b) { return a.begin_nanos < b.begin_nanos; });
  for (const Span& span : open) {
    absl::StrAppend(&text, text.empty() ? "in " : ", ", IdOf(span), " of step ", span.step, " for ",
                    Ago(now, span.begin_nanos));
  }
  if (!newest_.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "last instructions completed: ");
    for (size_t i = 0; i < newest_.size(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ", ", IdOf(newest_[i]));
      if (i == 0 || newest_[i].step != newest_[i - 1].step) {
        absl::StrAppend(&text, " of step ", newest_[i].step);
      }
      if (i == 0) absl::StrAppend(&text, " ", Ago(now, newest_[i].end_nanos), " ago");
      if (newest_[i].code != 0) absl::StrAppend(&text, " (failed)");
    }
  }
  return text;
}

}  // namespace megascale::agent
