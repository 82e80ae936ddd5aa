#include "runtime/diagnose/what_if_json.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace megascale::diagnose {
namespace {

using nlohmann::json;

json BySteps(const WhatIf& result, const std::vector<double>& values) {
  json object = json::object();
  for (size_t s = 0; s < values.size(); ++s) object[absl::StrCat(result.steps[s])] = values[s];
  return object;
}

std::vector<double> Ratios(const std::vector<double>& times, const std::vector<double>& ideal) {
  std::vector<double> ratios;
  for (size_t i = 0; i < times.size(); ++i) {
    ratios.push_back(ideal[i] > 0 ? times[i] / ideal[i] : 1);
  }
  return ratios;
}

json ByParts(const Decomposition& parts, const std::vector<double>& values) {
  json object = json::object();
  for (size_t i = 0; i < values.size(); ++i) object[parts.names[i]] = values[i];
  return object;
}

void Add(const WhatIf& result, const Decomposition& parts, const std::string& name, json* object) {
  (*object)[name] = ByParts(parts, parts.all);
  json& steps = (*object)[name + "_per_step"] = json::object();
  for (size_t s = 0; s < parts.per_step.size(); ++s) {
    steps[absl::StrCat(result.steps[s])] = ByParts(parts, parts.per_step[s]);
  }
}

}  // namespace

json WhatIfJson(const OperationGraph& graph, const WhatIf& result) {
  json object = json::object();
  object["step_t_base"] = BySteps(result, result.measured_seconds);
  object["step_t_nodelay"] = BySteps(result, result.actual_seconds);
  object["step_t_noblk"] = BySteps(result, result.ideal_seconds);
  object["launch_slowdown"] = result.launch_slowdown;
  object["blocking_slowdown"] = result.slowdown;
  object["blocking_step_slowdown"] =
      BySteps(result, Ratios(result.actual_seconds, result.ideal_seconds));
  object["launch_step_slowdown"] =
      BySteps(result, Ratios(result.measured_seconds, result.actual_seconds));
  Add(result, result.by_replica, "blocking_decompose_by_dp_rank", &object);
  Add(result, result.by_stage, "blocking_decompose_by_stage", &object);
  Add(result, result.by_kind, "blocking_decompose_by_optype", &object);
  Add(result, result.by_worker, "decompose_by_rank", &object);
  json& slowest = object["slowest_ranks"] = json::array();
  for (const int worker : result.slowest_workers) {
    slowest.push_back(graph.workers()[static_cast<size_t>(worker)].rank);
  }
  object["M_W"] = result.fix_slowest_workers.share;
  object["M_S"] = result.fix_last_stage.share;
  object["M_W_per_step"] = BySteps(result, result.fix_slowest_workers.share_per_step);
  object["M_S_per_step"] = BySteps(result, result.fix_last_stage.share_per_step);
  return object;
}

}  // namespace megascale::diagnose
