// A mesh with an axis that no job has, experts, between tensor and data, and with groups of a whole
// stage. It is made of rows alone, to prove that a further axis takes nothing else.
#pragma once

#include "runtime/plan/mesh.h"

namespace megascale::plan {

inline constexpr Axis kExpertAxis = Axis::kFurther;
inline constexpr auto kExpertGroup =
    static_cast<GroupKind>(static_cast<int>(GroupKind::kTensor) + 1);
// "stage<pipeline>": all ranks of a stage, the nearest axis fastest.
inline constexpr auto kStageGroup = static_cast<GroupKind>(static_cast<int>(kExpertGroup) + 1);

inline const MeshTable& ExpertTable() {
  static const auto* const kTable = [] {
    auto* table = new MeshTable(JobMeshTable());
    table->axes.insert(table->axes.begin() + 1,
                       {.axis = kExpertAxis, .name = "expert", .letter = "e"});
    table->groups.push_back({.kind = kExpertGroup,
                             .name = "expert",
                             .prefix = "ep",
                             .along = {kExpertAxis},
                             .only_with = {kExpertAxis}});
    table->groups.push_back({.kind = kStageGroup,
                             .name = "stage",
                             .prefix = "stage",
                             .along = AxisSet::AllBut({Axis::kPipeline}),
                             .only_with = {kExpertAxis}});
    return table;
  }();
  return *kTable;
}

// Requires: sizes of at least 1, at most 2^20 ranks.
inline Mesh ExpertMesh(MeshSizes sizes, int experts) {
  sizes.further[0] = experts;
  return Mesh::Create(sizes, ExpertTable()).value();
}

}  // namespace megascale::plan
