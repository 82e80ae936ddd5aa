#include "cli/diagnosis/diagnosis_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "cli/view/terminal.h"
#include "runtime/base/text/printable.h"
#include "runtime/plan/operation.h"

namespace megascale::cli {
namespace {

using diagnose::SlowCause;
using diagnose::SlowVerdict;
using diagnose::StallCause;
using diagnose::StallRoot;
using diagnose::StallVerdict;
using diagnose::Suspect;

constexpr size_t kPartsShown = 3;
constexpr size_t kWaitingShown = 8;
constexpr size_t kWaitingRanksShown = 12;

// Shares of a loss of almost nothing may be anything.
std::string Percent(double share) {
  constexpr double kPercentShown = 200;
  const double percent = std::round(share * 100);
  if (percent > kPercentShown) return absl::StrFormat("over %.0f %%", kPercentShown);
  return absl::StrFormat("%.0f %%", percent == 0 ? 0.0 : percent);  // no "-0"
}
std::string Times(double times) { return absl::StrFormat("%.2f times", times); }
std::string SecondsText(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.1f ms", seconds * 1000)
                     : absl::StrFormat("%.2f s", seconds);
}

// "backward-compute 1.58, forward-compute 1.37": the parts that cost most.
std::string LargestParts(const diagnose::Decomposition& parts, const std::string& prefix) {
  std::vector<size_t> order(parts.all.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return parts.all[a] > parts.all[b]; });
  order.resize(std::min(order.size(), kPartsShown));
  return absl::StrJoin(order, ", ", [&](std::string* text, size_t part) {
    absl::StrAppendFormat(text, "%s%s %.3f", prefix, parts.names[part], parts.all[part]);
  });
}

class Names {
 public:
  explicit Names(absl::Span<const trace::RankName> names) : names_(names) {}
  std::string Of(int index) const {
    return Has(index) ? names_[static_cast<size_t>(index)].InSentence() : "an unknown rank";
  }
  std::string MachineOf(int index) const {
    return Has(index) ? names_[static_cast<size_t>(index)].Machine() : "an unknown node";
  }

 private:
  bool Has(int index) const { return index >= 0 && index < static_cast<int>(names_.size()); }

  absl::Span<const trace::RankName> names_;
};

// Says why the layers of a stage are not what makes it slow.
std::string NotItsLayers(const Suspect& cause) {
  if (cause.times_before > 0) {
    return absl::StrCat("it computed ", Times(cause.times_before), " as long before");
  }
  if (cause.times_planned > 0) {
    return absl::StrCat("by the plan it has ", Times(cause.times_planned), " their work");
  }
  return absl::StrCat("steps take ", Times(cause.times_usual), " as long as they did, with the ",
                      "same layers");
}

std::string VerdictLine(const SlowVerdict& verdict, const Names& names) {
  const Suspect& cause = verdict.cause;
  switch (cause.cause) {
    case SlowCause::kNone:
      return absl::StrCat("healthy: no rank, stage or link holds the others up");
    case SlowCause::kOneWorker:
      return absl::StrCat(
          "slow worker: ", names.Of(cause.worker),
          cause.times_slower > 1
              ? absl::StrCat(
                    "; it takes ", Times(cause.times_slower), " as long to compute as ",
                    cause.step_times > 0 ? "before; the others do not" : "ranks with like work")
              : "; it stands out from all others in most steps, in computing and in exchanges");
    case SlowCause::kUnequalStages:
      return absl::StrCat("unequal stages: stage ", cause.stage, " computes ",
                          Times(cause.times_slower), " as long as the other stages",
                          cause.worker < 0 ? ""
                                           : absl::StrCat("; ", names.Of(cause.worker),
                                                          " is its only rank, so that may as well "
                                                          "be slow"));
    case SlowCause::kSlowerStage:
      return absl::StrCat(
          "slower stage: ",
          cause.worker < 0 ? absl::StrCat("stage ", cause.stage) : names.Of(cause.worker),
          " computes ", Times(cause.times_slower),
          " as long as the other stages, and not for its layers: ", NotItsLayers(cause));
    case SlowCause::kSlowLink:
      return absl::StrCat(
          "slow link: between ", names.Of(cause.worker), " and ", names.Of(cause.peer),
          "; its transfers take ", Times(cause.times_slower),
          cause.step_times > 0 ? " as long as before" : " as long as those of other links");
    case SlowCause::kSlowCollective:
      return absl::StrCat("slow collective: ", cause.label,
                          " takes longer in some steps or on some ranks than in others");
    case SlowCause::kSlowMachine:
      return absl::StrCat("slow machine: ", cause.num_workers, " ranks of ",
                          names.MachineOf(cause.worker), " compute ", Times(cause.times_slower),
                          " as long as before; those of other machines do not");
    case SlowCause::kSlowMachineLink:
      return absl::StrCat("slow link: of ", names.MachineOf(cause.worker),
                          "; its exchanges with other machines take ", Times(cause.times_slower),
                          " as long as before");
    case SlowCause::kLateWorker:
      return absl::StrCat("late in exchanges: ", names.Of(cause.worker),
                          "; the exchanges that it takes part in take ", Times(cause.times_slower),
                          " as long as before, and no others do");
    case SlowCause::kDataWait:
      return absl::StrCat("waiting for data: ",
                          cause.worker < 0 ? "the ranks load their batches for "
                          : cause.is_machine
                              ? absl::StrCat("the ranks of ", names.MachineOf(cause.worker),
                                             " load their batches for ")
                              : absl::StrCat(names.Of(cause.worker), " loads its batches for "),
                          Percent(cause.share), " of a step");
    case SlowCause::kJitter:
      return absl::StrCat(verdict.grows ? "jitter that grows" : "jitter",
                          ": operations take different times from step to step, and no rank is "
                          "slow in all of them");
    case SlowCause::kUnknown:
      break;
  }
  return "I do not know: the steps lose time, and nothing explains half of it";
}

std::string SuspectText(const Suspect& suspect, const Names& names) {
  switch (suspect.cause) {
    case SlowCause::kOneWorker:
      return absl::StrCat("one slow worker: ", names.Of(suspect.worker), " explains ",
                          Percent(suspect.share), " and computes ", Times(suspect.times_slower),
                          " as long as its like");
    case SlowCause::kUnequalStages:
      if (suspect.stage < 0) return "unequal stages: there is one stage";
      return absl::StrCat("unequal stages: stage ", suspect.stage, " explains ",
                          Percent(suspect.share), " and computes ", Times(suspect.times_slower),
                          " as long as the others");
    case SlowCause::kSlowLink:
      if (suspect.worker < 0) return "a slow link: there are not two links to compare";
      return absl::StrCat("a slow link: the slowest, ", names.Of(suspect.worker), " to ",
                          names.Of(suspect.peer), ", explains ", Percent(suspect.share));
    case SlowCause::kSlowCollective:
      return absl::StrCat("slow collectives: ", suspect.label.empty() ? "none" : suspect.label,
                          " explains ", Percent(suspect.share));
    case SlowCause::kDataWait:
      return absl::StrCat("waiting for data: ", Percent(suspect.share), " of a step");
    case SlowCause::kJitter:
      return suspect.times_slower > 1
                 ? absl::StrCat("jitter of computing: explains ", Percent(suspect.share))
                 : "jitter: the same rank is the slowest in most steps";
    default:
      return "";
  }
}

std::vector<std::string> AdviceFor(const SlowVerdict& verdict) {
  const Suspect& cause = verdict.cause;
  switch (cause.cause) {
    case SlowCause::kOneWorker:
      return {"look for other load, throttling or heat on its machine"};
    case SlowCause::kUnequalStages:
      return {absl::StrCat("give stage ", cause.stage,
                           " fewer layers; the last stage also computes the loss"),
              "compare layouts without a run: `megascale plan FILE`"};
    case SlowCause::kSlowerStage:
      return {"look for other load, throttling or heat on the machines of its ranks"};
    case SlowCause::kSlowLink:
      return {"test the link between the two machines, and look for other traffic on it"};
    case SlowCause::kSlowMachine:
      return {"look for other load, throttling or heat on the machine"};
    case SlowCause::kSlowMachineLink:
      return {"test the machine's network interface, and look for other traffic on it"};
    case SlowCause::kLateWorker:
      return {"look at the rank's process and its part of the network: `megascale logs`"};
    case SlowCause::kSlowCollective:
      return {"look for other traffic between the machines of the group"};
    case SlowCause::kDataWait:
      return {"look at the storage that holds the data, and at the host process: `megascale logs`"};
    case SlowCause::kJitter:
      if (verdict.step_times > 1)
        return {"look for other load on the machines: `megascale status`"};
      return {"look for other load on the machines: `megascale status`",
              "sequences of unequal length have the same effect"};
    case SlowCause::kUnknown:
      return {"look at the trace: `megascale trace`"};
    case SlowCause::kNone:
      break;
  }
  return {};
}

std::string InstructionText(plan::InstructionId id) {
  return absl::StrCat(plan::OperationOf(id.operation()).name, " ", id.ToString());
}

// "forward pass F.c0.m1 of step 9".
std::string PlaceText(const StallRoot& root) {
  return absl::StrCat(InstructionText(root.instruction), " of ",
                      diagnose::StepText(root.instruction, root.step));
}

std::string RootText(const StallRoot& root, const Names& names) {
  switch (root.cause) {
    case StallCause::kRuns:
      return absl::StrCat(names.Of(root.rank), "; it runs ", PlaceText(root),
                          " and does not end it");
    case StallCause::kNotBegun:
      return absl::StrCat(names.Of(root.rank), "; it does not begin ", PlaceText(root),
                          ", though nothing that it needs is missing");
    case StallCause::kNoTrace:
      return absl::StrCat(names.Of(root.rank),
                          "; nothing is known about what it does, and "
                          "others wait for it in step ",
                          root.step);
    case StallCause::kExchange:
      if (root.rank >= 0) {
        return absl::StrCat(names.Of(root.rank), "; it does not do its part of ", PlaceText(root));
      }
      return absl::StrCat("the exchange ", PlaceText(root), " between ranks ",
                          absl::StrJoin(root.members, ", "), ", which all of them have begun");
    case StallCause::kUnknown:
      break;
  }
  return "unknown";
}

// "ranks 0, 1 wait in all-gather of norms N for rank 6": a line for all that wait alike.
std::vector<std::string> WaitingLines(const std::vector<diagnose::WaitingRank>& waiting) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const diagnose::WaitingRank& rank : waiting) {
    std::string what = absl::StrCat(" in ", InstructionText(rank.instruction), " for ",
                                    rank.waits_for.size() == 1 ? "rank " : "ranks ",
                                    absl::StrJoin(rank.waits_for, ", "));
    const auto found = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& group) { return group.first == what; });
    if (found != groups.end()) {
      found->second.push_back(rank.rank);
    } else {
      groups.emplace_back(std::move(what), std::vector<int>{rank.rank});
    }
  }
  std::vector<std::string> lines;
  for (auto& [what, ranks] : groups) {
    const size_t num_more =
        ranks.size() > kWaitingRanksShown ? ranks.size() - kWaitingRanksShown : 0;
    ranks.resize(ranks.size() - num_more);
    lines.push_back(absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
                                 num_more > 0 ? absl::StrCat(" and ", num_more, " more") : "",
                                 ranks.size() == 1 ? " waits" : " wait", what));
  }
  return lines;
}

}  // namespace

std::string CauseWord(SlowCause cause) {
  switch (cause) {
    case SlowCause::kNone:
      return "healthy";
    case SlowCause::kOneWorker:
      return "slow_worker";
    case SlowCause::kUnequalStages:
      return "unequal_stages";
    case SlowCause::kSlowerStage:
      return "slower_stage";
    case SlowCause::kSlowLink:
      return "slow_link";
    case SlowCause::kSlowMachine:
      return "slow_machine";
    case SlowCause::kSlowMachineLink:
      return "slow_machine_link";
    case SlowCause::kLateWorker:
      return "late_rank";
    case SlowCause::kSlowCollective:
      return "slow_collective";
    case SlowCause::kDataWait:
      return "data_wait";
    case SlowCause::kJitter:
      return "jitter";
    case SlowCause::kUnknown:
      break;
  }
  return "unknown";
}

std::string CauseWord(StallCause cause) {
  switch (cause) {
    case StallCause::kRuns:
      return "stuck_in_instruction";
    case StallCause::kNotBegun:
      return "stopped_rank";
    case StallCause::kNoTrace:
      return "no_trace";
    case StallCause::kExchange:
      return "stuck_exchange";
    case StallCause::kUnknown:
      break;
  }
  return "unknown";
}

Findings DescribeSlowness(const diagnose::OperationGraph& graph, const diagnose::WhatIf& result,
                          const SlowVerdict& verdict,
                          absl::Span<const trace::RankName> name_of_worker) {
  const Names names(name_of_worker);
  Findings findings;
  findings.cause = CauseWord(verdict.cause.cause);
  findings.verdict = VerdictLine(verdict, names);
  const auto [first, last] = std::minmax_element(result.steps.begin(), result.steps.end());
  findings.evidence.push_back(absl::StrFormat(
      "%d steps of %d to %d, %d ranks: a step takes %.3f times what it would without stragglers "
      "(S)",
      static_cast<int>(result.steps.size()), *first, *last,
      static_cast<int>(graph.workers().size()), result.slowdown));
  findings.evidence.push_back(
      absl::StrCat("by operation (S_t): ", LargestParts(result.by_kind, "")));
  findings.evidence.push_back(
      absl::StrCat("by rank (S_w): ", LargestParts(result.by_worker, "rank ")));
  findings.evidence.push_back(absl::StrCat("by stage: ", LargestParts(result.by_stage, "stage ")));
  if (verdict.cause.cause != SlowCause::kNone) {  // else there is next to nothing to recover
    findings.evidence.push_back(absl::StrFormat(
        "fixing the slowest 3 %% of ranks would recover %s of the lost time (M_W), the last stage "
        "%s (M_S)",
        Percent(result.fix_slowest_workers.share), Percent(result.fix_last_stage.share)));
  }
  if (verdict.step_times > 1) {
    findings.evidence.push_back(absl::StrFormat(
        "the newest steps take %.2f times as long as older ones", verdict.step_times));
  }
  if (verdict.grows) {
    findings.evidence.push_back("the newest steps take 10 % longer than the oldest, or more");
  }
  if (verdict.cause.cause != SlowCause::kNone) {
    findings.cost.push_back(absl::StrCat(
        SecondsText(verdict.lost_seconds), " of each step of ", SecondsText(verdict.step_seconds),
        verdict.slowdown > 0
            ? absl::StrCat(", ", Percent(1 - 1 / verdict.slowdown), " of the job's time")
            : ""));
    findings.done.push_back("nothing: slowness alone makes the driver do nothing");
  }
  findings.advice = AdviceFor(verdict);
  for (const Suspect& suspect : verdict.excluded) {
    findings.excluded.push_back(SuspectText(suspect, names));
  }
  return findings;
}

Findings DescribeStall(const StallVerdict& verdict, double seconds,
                       absl::Span<const trace::RankName> name_of_rank) {
  const Names names(name_of_rank);
  const StallRoot& root = verdict.root;
  Findings findings;
  findings.cause = CauseWord(root.cause);
  if (root.cause == StallCause::kUnknown) {
    findings.verdict = "I do not know: the job stands still, and several ranks may be the cause";
  } else if (root.cause == StallCause::kExchange && root.rank < 0) {
    findings.verdict = absl::StrCat("stuck: ", RootText(root, names),
                                    "; I do not know which rank or link is the cause");
  } else {
    findings.verdict = absl::StrCat("stuck: ", RootText(root, names));
  }
  findings.evidence.push_back(
      absl::StrFormat("no rank has begun or ended an instruction for %s", SecondsText(seconds)));
  if (verdict.is_silent) {
    findings.evidence.push_back(absl::StrCat(
        "rank ", root.rank, ": its process shows no life, so it is stopped, or its machine is"));
  }
  if (root.cause != StallCause::kUnknown) {
    findings.evidence.push_back(absl::StrCat(root.num_waiting,
                                             root.num_waiting == 1 ? " rank waits" : " ranks wait",
                                             " for it, directly or through others"));
  }
  const std::vector<std::string> waiting = WaitingLines(verdict.waiting);
  const size_t num_shown = std::min(waiting.size(), kWaitingShown);
  findings.evidence.insert(findings.evidence.end(), waiting.begin(),
                           waiting.begin() + static_cast<int64_t>(num_shown));
  if (waiting.size() > num_shown) {
    findings.evidence.push_back(
        absl::StrCat("and ", waiting.size() - num_shown, " more groups of ranks wait"));
  }
  for (const StallRoot& other : verdict.other_roots) {
    findings.excluded.push_back(
        absl::StrCat(root.cause == StallCause::kUnknown ? "not excluded: " : "",
                     RootText(other, names), "; ", other.num_waiting, " wait for it"));
  }
  findings.cost.push_back(absl::StrCat(SecondsText(seconds), " of all ranks so far"));
  return findings;
}

void AddLastStall(const diagnose::StallVerdict& verdict, int rank,
                  const std::optional<plan::InstructionId>& own, Findings* findings) {
  std::vector<std::string>& evidence = findings->evidence;
  if (own.has_value()) {
    evidence.push_back(absl::StrCat("rank ", rank, " stood in ", InstructionText(*own),
                                    " when the attempt ended"));
  } else if (verdict.root.rank >= 0) {
    evidence.push_back(absl::StrCat(
        "when the attempt ended, ", verdict.root.num_waiting, " ranks waited for rank ",
        verdict.root.rank, ", which stood in ", InstructionText(verdict.root.instruction)));
  }
  std::vector<std::string> waiting = WaitingLines(verdict.waiting);
  waiting.resize(std::min(waiting.size(), kWaitingShown));
  for (const std::string& line : waiting) evidence.push_back(absl::StrCat("then ", line));
}

namespace {

// Characters of a line; the heading of a group takes the first ones.
constexpr int kHeadingColumns = 10;
// The verdict may take two lines.
constexpr size_t kVerdictLines = 2;

// Cuts a line that is too long after a word.
std::string Fit(const std::string& line, int columns) {
  if (DisplayWidth(line) <= columns) return line;
  std::string kept = CutToWidth(line, columns - 2);
  const size_t space = kept.rfind(' ');
  if (space != std::string::npos && space > kept.size() / 2) kept.resize(space);
  return absl::StrCat(kept, " …");
}

// Breaks the verdict between words.
std::vector<std::string> VerdictLines(std::string verdict) {
  std::vector<std::string> lines;
  while (lines.size() + 1 < kVerdictLines && DisplayWidth(verdict) > kScreenColumns) {
    const size_t space = CutToWidth(verdict, kScreenColumns + 1).rfind(' ');
    if (space == std::string::npos || space == 0) break;
    lines.push_back(verdict.substr(0, space));
    verdict.erase(0, space + 1);
  }
  lines.push_back(Fit(verdict, kScreenColumns));
  return lines;
}

struct Group {
  const char* heading;
  const std::vector<std::string>* lines;
  size_t num_shown = 0;  // lines of the screen, with the one that says how many are left out
};

// Divides the lines of the screen: two for each group, then as many as it has, the first first.
void Divide(size_t num_lines, absl::Span<Group> groups) {
  for (Group& group : groups) {
    group.num_shown = std::min<size_t>(group.lines->size(), 2);
    num_lines -= group.num_shown;
  }
  for (Group& group : groups) {
    const size_t more = std::min(num_lines, group.lines->size() - group.num_shown);
    group.num_shown += more;
    num_lines -= more;
  }
}

}  // namespace

std::string ToText(const Findings& findings,
                   const std::function<std::string(const std::string&)>& complete) {
  // Some of it comes from a file, or from machines: it stays one line for each sentence.
  std::vector<std::string> errors;
  if (!findings.first_error.empty()) errors.push_back(findings.first_error);
  std::array<Group, 7> groups = {{{"evidence", &findings.evidence},
                                  {"its error", &errors},
                                  {"stacks", &findings.stacks},
                                  {"cost", &findings.cost},
                                  {"done", &findings.done},
                                  {"you can", &findings.advice},
                                  {"excluded", &findings.excluded}}};
  static_assert(kVerdictLines + 2 * groups.size() <= kScreenLines);
  const std::vector<std::string> verdict = VerdictLines(base::Printable(findings.verdict));
  Divide(kScreenLines - verdict.size(), absl::MakeSpan(groups));
  std::string text = absl::StrCat(absl::StrJoin(verdict, "\n"), "\n");
  for (const Group& group : groups) {
    const size_t size = group.lines->size();
    const size_t whole = group.num_shown < size ? group.num_shown - 1 : size;
    for (size_t i = 0; i < group.num_shown; ++i) {
      const std::string line = i < whole ? base::Printable((*group.lines)[i])
                                         : absl::StrCat("and ", size - whole, " more: -o json");
      const std::string fitted = Fit(line, kScreenColumns - kHeadingColumns);
      const bool completes = complete && group.lines == &findings.advice;
      absl::StrAppendFormat(&text, "%-9s %s\n", i == 0 ? group.heading : "",
                            completes ? complete(fitted) : fitted);
    }
  }
  return text;
}

}  // namespace megascale::cli
