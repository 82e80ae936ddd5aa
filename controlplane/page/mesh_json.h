// The mesh of a job as JSON: its axes, with the words that the page uses for them. The page's
// scripts know no axis by name, so a new axis needs words only here. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/plan/mesh.h"

namespace megascale::page {

// Returns {"axes": [...]}, first the axis with the greatest "stride". Each axis has its "name" and
// "size"; "stride", the difference between the ranks of two neighbours; and words: "position"
// ("stage", as in "stage 3"), "plural" ("pipeline stages"), "members" ("the stages of a replica"),
// and "flow", what neighbours on the axis do for each other, perhaps empty.
nlohmann::json MeshJson(const plan::Mesh& mesh);

// Returns the axis of this name. Errors: InvalidArgument - the mesh has no such axis.
absl::StatusOr<plan::Axis> AxisFromWord(const plan::Mesh& mesh, const std::string& word);

// Returns the rank and those that differ from it in this axis alone, ascending.
std::vector<int> RanksAlong(const plan::Mesh& mesh, plan::Axis axis, int rank);

}  // namespace megascale::page
