#include "controlplane/page/mesh_json.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/text/printable.h"

namespace megascale::page {
namespace {

using nlohmann::json;

struct AxisWords {
  std::string position;
  std::string plural;
  std::string members;
  std::string flow;
};

AxisWords WordsOf(const plan::AxisRow& axis) {
  switch (axis.axis) {
    case plan::Axis::kPipeline:
      return {"stage", "pipeline stages", "the stages of a replica",
              "sends activations to the next, gradients to the previous"};
    case plan::Axis::kData:
      return {"data", "replicas", "the replicas of a stage", "reduces gradients together"};
    case plan::Axis::kTensor:
      return {"tensor", "tensor-parallel ranks", "the ranks that share a layer",
              "shares each layer"};
    default:
      break;
  }
  return {std::string(axis.name), absl::StrCat(axis.name, "-parallel ranks"),
          absl::StrCat("the ranks along ", axis.name), ""};
}

}  // namespace

json MeshJson(const plan::Mesh& mesh) {
  std::vector<json> axes;
  int stride = 1;
  for (const plan::AxisRow& row : mesh.axes()) {
    const AxisWords words = WordsOf(row);
    axes.push_back({{"name", std::string(row.name)},
                    {"size", mesh.size(row.axis)},
                    {"stride", stride},
                    {"position", words.position},
                    {"plural", words.plural},
                    {"members", words.members},
                    {"flow", words.flow}});
    stride *= mesh.size(row.axis);
  }
  std::reverse(axes.begin(), axes.end());
  return {{"axes", std::move(axes)}};
}

absl::StatusOr<plan::Axis> AxisFromWord(const plan::Mesh& mesh, const std::string& word) {
  for (const plan::AxisRow& row : mesh.axes()) {
    if (word == row.name) return row.axis;
  }
  const auto name = [](std::string* text, const plan::AxisRow& row) {
    absl::StrAppend(text, row.name);
  };
  return absl::InvalidArgumentError(absl::StrCat("axis '", base::Printable(word, 40),
                                                 "': expected one of ",
                                                 absl::StrJoin(mesh.AxesForPeople(), ", ", name)));
}

std::vector<int> RanksAlong(const plan::Mesh& mesh, plan::Axis axis, int rank) {
  plan::Coordinate at = mesh.CoordinateOf(rank);
  std::vector<int> ranks;
  for (int position = 0; position < mesh.size(axis); ++position) {
    plan::At(at, axis) = position;
    ranks.push_back(mesh.RankOf(at));
  }
  return ranks;
}

}  // namespace megascale::page
