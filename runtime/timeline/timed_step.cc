#include "runtime/timeline/timed_step.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace megascale::timeline {

using plan::Instruction;
using plan::RankPlan;

std::string NameOf(const RankPlan& plan) {
  return plan.mesh.world_size() == plan.mesh.pipeline_size()
             ? absl::StrCat("stage ", plan.stage())
             : absl::StrCat("rank ", plan.rank, ", stage ", plan.stage());
}

MeetingName MeetingOf(const RankPlan& plan, const Instruction& instruction) {
  return {plan.mesh.GroupName(instruction.group, plan.rank), instruction.channel,
          instruction.id.MessageId().packed()};
}

Beginning BeginningOf(const StepTime& time, int64_t instructions_max) {
  Beginning beginning = {.time = time};
  std::vector<int64_t> ready;
  for (const std::vector<SpanTime>& rank : time.ranks) {
    for (const SpanTime& span : rank) ready.push_back(span.ready);
  }
  if (static_cast<int64_t>(ready.size()) <= instructions_max) return beginning;
  std::sort(ready.begin(), ready.end());
  beginning.time.end = ready[static_cast<size_t>(instructions_max)];
  for (std::vector<SpanTime>& rank : beginning.time.ranks) {
    for (SpanTime& span : rank) {
      if (span.ready < beginning.time.end) continue;
      span = {.state = SpanState::kNotBegun};
      ++beginning.num_left_out;
    }
  }
  return beginning;
}

std::vector<RankTime> Summarize(absl::Span<const RankPlan> plans, const StepTime& time) {
  std::vector<RankTime> ranks(plans.size());
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (size_t i = 0; i < plans[rank].instructions.size(); ++i) {
      if (plans[rank].instructions[i].stream != plan::StreamKind::kCompute) continue;
      ranks[rank].compute += time.ranks[rank][i].end - time.ranks[rank][i].begin;
    }
    ranks[rank].idle = time.end - ranks[rank].compute;
  }
  return ranks;
}

}  // namespace megascale::timeline
