#include "runtime/diagnose/sampling/slow_path.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/median.h"
#include "runtime/plan/operation.h"

namespace megascale::diagnose {
namespace {

using plan::Instruction;
using plan::RankPlan;
using timeline::SpanTime;
using timeline::TimedStep;

// Waits count if they have grown by this share of the growth of a step.
constexpr double kShareMin = 0.1;

double MedianStep(absl::Span<const TimedStep> steps) {
  // A step of `steps` begins where its first instruction does.
  std::vector<double> seconds;
  for (const TimedStep& step : steps) {
    int64_t begin = step.time.end;
    for (const auto& rank : step.time.ranks) {
      for (const SpanTime& span : rank) begin = std::min(begin, span.ready);
    }
    seconds.push_back(static_cast<double>(step.time.end - begin));
  }
  return base::UpperMedian(std::move(seconds));
}

// A pass waits within itself for its tensor-parallel ranks; other communication waits as a whole.
double MedianWait(absl::Span<const TimedStep> steps, size_t rank, size_t index, bool is_pass) {
  std::vector<double> waits;
  for (const TimedStep& step : steps) {
    const SpanTime& span = step.time.ranks[rank][index];
    waits.push_back(static_cast<double>(is_pass ? span.exchange : span.end - span.ready));
  }
  return base::UpperMedian(std::move(waits));
}

// The other end of a transfer, or the group of a collective, as a rank waits for it.
using Wait = std::tuple<int, plan::GroupKind, int>;  // rank, group, peer's world rank or -1

Wait WaitOf(const RankPlan& plan, const Instruction& instruction) {
  const bool is_transfer = plan::IsTransfer(instruction.kind());
  return {plan.rank, instruction.group,
          is_transfer ? plan.mesh.RankInGroup(instruction.group, plan.rank, instruction.peer) : -1};
}

std::vector<int> MembersOf(const plan::Mesh& mesh, const Wait& wait) {
  const auto& [rank, group, peer] = wait;
  return peer >= 0 ? std::vector<int>{peer} : mesh.GroupOf(group, rank).ranks;
}

// Returns the name of the group, the same for all of its members; or that of a transfer.
std::string NameOf(const plan::Mesh& mesh, const Wait& wait) {
  const auto& [rank, group, peer] = wait;
  return peer >= 0 ? absl::StrCat(rank, " for ", peer) : mesh.GroupName(group, rank);
}

// What a rank computes, without its waits.
double MedianWork(absl::Span<const TimedStep> steps, const RankPlan& plan) {
  std::vector<double> work;
  for (const TimedStep& step : steps) {
    const std::vector<SpanTime>& spans = step.time.ranks[static_cast<size_t>(plan.rank)];
    double sum = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
      const bool is_pass = plan::IsPass(plan.instructions[i].kind());
      if (!is_pass && plan.instructions[i].group != plan::GroupKind::kNone) continue;
      sum += static_cast<double>(spans[i].end - spans[i].begin - spans[i].exchange);
    }
    work.push_back(sum);
  }
  return base::UpperMedian(std::move(work));
}

}  // namespace

int RankThatComputesLonger(absl::Span<const RankPlan> plans, const std::vector<bool>& known,
                           const ComparedSteps& steps) {
  MEGASCALE_CHECK(plans.size() == known.size());
  double largest = (MedianStep(steps.now) - MedianStep(steps.before)) / 2;
  if (largest <= 0) return -1;
  int found = -1;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    if (!known[rank]) continue;
    const double growth =
        MedianWork(steps.now, plans[rank]) - MedianWork(steps.before, plans[rank]);
    if (growth < largest) continue;
    largest = growth;
    found = static_cast<int>(rank);
  }
  return found;
}

std::vector<int> RanksAwaited(absl::Span<const RankPlan> plans, const std::vector<bool>& known,
                              const ComparedSteps& steps, std::set<std::string>* passed) {
  MEGASCALE_CHECK(plans.size() == known.size());
  MEGASCALE_CHECK(!steps.before.empty() && !steps.now.empty());
  const double growth_min = kShareMin * (MedianStep(steps.now) - MedianStep(steps.before));
  std::map<Wait, double> growth;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    if (!known[rank]) continue;
    const std::vector<Instruction>& instructions = plans[rank].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (instructions[i].group == plan::GroupKind::kNone) continue;
      const bool is_pass = plan::IsPass(instructions[i].kind());
      growth[WaitOf(plans[rank], instructions[i])] +=
          MedianWait(steps.now, rank, i, is_pass) - MedianWait(steps.before, rank, i, is_pass);
    }
  }
  std::vector<int> awaited;
  std::string name;
  double largest = std::max(0.0, growth_min);
  for (const auto& [wait, seconds] : growth) {
    if (seconds <= largest) continue;
    const plan::Mesh& mesh = plans[static_cast<size_t>(std::get<0>(wait))].mesh;
    if (passed->count(NameOf(mesh, wait)) > 0) continue;
    std::vector<int> unknown;
    for (const int rank : MembersOf(mesh, wait)) {
      if (!known[static_cast<size_t>(rank)]) unknown.push_back(rank);
    }
    if (unknown.empty()) continue;
    largest = seconds;
    name = NameOf(mesh, wait);
    awaited = std::move(unknown);
  }
  if (!awaited.empty()) passed->insert(name);
  std::sort(awaited.begin(), awaited.end());
  return awaited;
}

}  // namespace megascale::diagnose
