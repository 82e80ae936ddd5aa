#include "runtime/plan/rank_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megascale::plan {

std::vector<StreamKind> StreamsOf(const RankPlan& plan) {
  std::vector<StreamKind> streams;
  for (int i = 0; i < kNumStreamKinds; ++i) {
    const auto kind = static_cast<StreamKind>(i);
    if (std::any_of(plan.instructions.begin(), plan.instructions.end(),
                    [&](const Instruction& instruction) { return instruction.stream == kind; })) {
      streams.push_back(kind);
    }
  }
  return streams;
}

std::string ToString(const RankPlan& plan) {
  const Coordinate at = plan.mesh.CoordinateOf(plan.rank);
  const std::string place =
      absl::StrJoin(plan.mesh.AxesForPeople(), ", ", [&](std::string* out, const AxisRow& row) {
        absl::StrAppend(out, row.name, " ", At(at, row.axis));
      });
  std::string text =
      absl::StrCat("rank ", plan.rank, " (", place, "): ", plan.instructions.size(),
                   " instructions, ", absl::StrJoin(plan.slots, "+"), " activation slots\n");
  for (const StreamKind kind : StreamsOf(plan)) {
    absl::StrAppend(&text, "  ", Name(kind), std::string(19 - Name(kind).size(), ' '));
    for (const Instruction& instruction : plan.instructions) {
      if (instruction.stream != kind) continue;
      absl::StrAppend(&text, " ", instruction.id.ToString());
    }
    text += '\n';
  }
  return text;
}

}  // namespace megascale::plan
