#include "runtime/timeline/step_breakdown.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/plan/operation.h"

namespace megascale::timeline {
namespace {

using plan::Instruction;
using plan::OpClass;

// In order of precedence.
enum Activity { kCompute, kOptimizer, kReceive, kCollective, kSend, kLoad, kIdle };
constexpr int kNumActivities = kIdle + 1;

// By class of operations: the activity that an instruction counts as.
constexpr std::array<std::pair<OpClass, Activity>, plan::kNumOpClasses> kActivities = {{
    {OpClass::kUnknown, kIdle},
    {OpClass::kLoad, kLoad},
    {OpClass::kForward, kCompute},
    {OpClass::kBackward, kCompute},
    {OpClass::kWeights, kCompute},
    {OpClass::kSend, kSend},
    {OpClass::kReceive, kReceive},
    {OpClass::kCollective, kCollective},
    {OpClass::kOptimizer, kOptimizer},
}};

constexpr bool AreInOrder() {
  for (size_t i = 0; i < kActivities.size(); ++i) {
    if (static_cast<size_t>(kActivities[i].first) != i) return false;
  }
  return true;
}
static_assert(AreInOrder(), "every class has its row, in the order of OpClass");

Activity ActivityOf(const Instruction& instruction) {
  return kActivities[static_cast<size_t>(OperationOf(instruction.kind()).op_class)].second;
}

// At `nanos`, one more or one fewer instruction of this activity runs.
struct Change {
  int64_t nanos = 0;
  Activity activity = kIdle;
  int by = 0;
};

}  // namespace

StepBreakdown& StepBreakdown::operator+=(const StepBreakdown& other) {
  compute += other.compute;
  tensor_parallel += other.tensor_parallel;
  optimizer += other.optimizer;
  pipeline += other.pipeline;
  data_parallel += other.data_parallel;
  data_wait += other.data_wait;
  bubble += other.bubble;
  return *this;
}

StepBreakdown BreakDown(const plan::RankPlan& plan, absl::Span<const SpanTime> spans) {
  MEGASCALE_CHECK(spans.size() == plan.instructions.size());
  std::vector<Change> changes;
  int64_t exchanges = 0;  // a rank computes one pass at a time, so these waits never overlap
  const auto add = [&](Activity activity, int64_t begin, int64_t end) {
    if (begin > end) return;
    changes.push_back({begin, activity, 1});
    changes.push_back({end, activity, -1});
  };
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].state == SpanState::kNotBegun) continue;
    exchanges += spans[i].exchange;
    add(kIdle, spans[i].ready, spans[i].begin);
    add(ActivityOf(plan.instructions[i]), spans[i].begin, spans[i].end);
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.nanos < b.nanos; });
  std::array<int64_t, kNumActivities> nanos = {};
  std::array<int, kNumActivities> running = {};
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    running[changes[i].activity] += changes[i].by;
    int now = 0;
    while (now < kIdle && running[static_cast<size_t>(now)] <= 0) ++now;
    nanos[static_cast<size_t>(now)] += changes[i + 1].nanos - changes[i].nanos;
  }
  return {.compute = nanos[kCompute] - exchanges,
          .tensor_parallel = exchanges,
          .optimizer = nanos[kOptimizer],
          .pipeline = nanos[kReceive] + nanos[kSend],
          .data_parallel = nanos[kCollective],
          .data_wait = nanos[kLoad],
          .bubble = nanos[kIdle]};
}

}  // namespace megascale::timeline
