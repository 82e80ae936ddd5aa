#include "cli/diagnosis/diagnosis_picture.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/diagnose/heat_map.h"
#include "runtime/plan/mesh.h"

namespace megascale::cli {

std::string SlownessPicture(const diagnose::OperationGraph& graph, const diagnose::WhatIf& result,
                            const std::string& title, absl::Span<const trace::RankName> names) {
  std::vector<diagnose::HeatMapCell> cells;
  std::vector<std::vector<int>> columns;  // by stage: workers
  for (size_t w = 0; w < graph.workers().size(); ++w) {
    const diagnose::Worker& worker = graph.workers()[w];
    columns.resize(std::max(columns.size(), static_cast<size_t>(worker.stage) + 1));
    std::vector<int>& row = columns[static_cast<size_t>(worker.stage)];
    const double slowdown = result.by_worker.all[w];
    cells.push_back({.row = worker.stage,
                     .column = static_cast<int>(row.size()),
                     .label = absl::StrCat("rank ", worker.rank),
                     .value = absl::StrFormat("%.2f", slowdown),
                     .note = names[w].Text(),
                     .heat = slowdown - 1});
    row.push_back(static_cast<int>(w));
  }
  return diagnose::HeatMapSvg(title, cells);
}

std::string StallPicture(const diagnose::StallVerdict& verdict, const trace::JobSpans& spans,
                         const std::string& title) {
  std::vector<diagnose::HeatMapCell> cells;
  for (const plan::RankPlan& plan : spans.plans()) {
    const plan::Coordinate at = plan.mesh.CoordinateOf(plan.rank);
    const bool is_cause = plan.rank == verdict.root.rank;
    const auto waiting = std::find_if(verdict.waiting.begin(), verdict.waiting.end(),
                                      [&](const auto& rank) { return rank.rank == plan.rank; });
    cells.push_back({.row = at.pipeline,
                     .column = at.data * plan.mesh.tensor_size() + at.tensor,
                     .label = absl::StrCat("rank ", plan.rank),
                     .value = is_cause ? verdict.root.instruction.ToString()
                              : waiting != verdict.waiting.end() ? waiting->instruction.ToString()
                                                                 : "",
                     .note = spans.names()[static_cast<size_t>(plan.rank)].Text(),
                     .heat = is_cause                           ? 1.0
                             : waiting != verdict.waiting.end() ? 0.2
                                                                : 0.0});
  }
  return diagnose::HeatMapSvg(title, cells);
}

}  // namespace megascale::cli
