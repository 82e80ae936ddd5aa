#include "runtime/plan/mesh.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"

namespace megascale::plan {
namespace {

constexpr int64_t kMaxWorldSize = int64_t{1} << 20;

// Returns the field of an axis, of MeshSizes or Coordinate.
template <typename Fields>
auto& FieldOf(Fields& fields, Axis axis) {
  switch (axis) {
    case Axis::kTensor:
      return fields.tensor;
    case Axis::kData:
      return fields.data;
    case Axis::kPipeline:
      return fields.pipeline;
    case Axis::kFurther:
      break;
  }
  const size_t number = static_cast<size_t>(axis) - static_cast<size_t>(Axis::kFurther);
  MEGASCALE_CHECK(number < fields.further.size());
  return fields.further[number];
}

}  // namespace

const MeshTable& JobMeshTable() {
  static const auto* const kTable = new MeshTable{
      .axes = {{Axis::kTensor, "tensor", "t", /*is_always_named=*/true},
               {Axis::kData, "data", "d", /*is_always_named=*/true},
               {Axis::kPipeline, "pipeline", "p", /*is_always_named=*/true}},
      .groups = {{.kind = GroupKind::kData, .name = "data", .prefix = "dp", .along = {Axis::kData}},
                 {.kind = GroupKind::kPipeline,
                  .name = "pipeline",
                  .prefix = "pp",
                  .along = {Axis::kPipeline}},
                 {.kind = GroupKind::kTensor,
                  .name = "tensor",
                  .prefix = "tp",
                  .along = {Axis::kTensor},
                  .only_with = {Axis::kTensor}}}};
  return *kTable;
}

int At(const MeshSizes& sizes, Axis axis) { return FieldOf(sizes, axis); }
int At(const Coordinate& coordinate, Axis axis) { return FieldOf(coordinate, axis); }
int& At(Coordinate& coordinate, Axis axis) { return FieldOf(coordinate, axis); }

absl::StatusOr<Mesh> Mesh::Create(const MeshSizes& sizes, const MeshTable& table) {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh of ", Mesh(sizes, &table, 1).SizesText(), ": ", why...));
  };
  int64_t world_size = 1;
  for (const AxisRow& row : table.axes) {
    if (At(sizes, row.axis) < 1) return refuse("each size must be at least 1");
  }
  for (const AxisRow& row : table.axes) {
    world_size *= At(sizes, row.axis);
    if (world_size > kMaxWorldSize) {
      return refuse("more than the limit of ", kMaxWorldSize, " ranks");
    }
  }
  return Mesh(sizes, &table, static_cast<int>(world_size));
}

std::vector<AxisRow> Mesh::AxesForPeople() const {
  std::vector<AxisRow> rows = table_->axes;
  std::sort(rows.begin(), rows.end(),
            [](const AxisRow& a, const AxisRow& b) { return a.axis < b.axis; });
  return rows;
}

std::string Mesh::SizesText() const {
  return absl::StrJoin(AxesForPeople(), " x ", [this](std::string* text, const AxisRow& row) {
    absl::StrAppend(text, row.name, " ", At(sizes_, row.axis));
  });
}

Coordinate Mesh::CoordinateOf(int rank) const {
  MEGASCALE_CHECK(Contains(rank));
  Coordinate coordinate;
  for (const AxisRow& row : table_->axes) {
    const int size = At(sizes_, row.axis);
    At(coordinate, row.axis) = rank % size;
    rank /= size;
  }
  return coordinate;
}

int Mesh::RankOf(const Coordinate& coordinate) const {
  int rank = 0;
  int stride = 1;
  for (const AxisRow& row : table_->axes) {
    const int size = At(sizes_, row.axis);
    const int at = At(coordinate, row.axis);
    MEGASCALE_CHECK(at >= 0 && at < size);
    rank += at * stride;
    stride *= size;
  }
  return rank;
}

const GroupRow* Mesh::FindRow(GroupKind kind) const {
  const auto row = std::find_if(table_->groups.begin(), table_->groups.end(),
                                [&](const GroupRow& one) { return one.kind == kind; });
  return row == table_->groups.end() ? nullptr : &*row;
}

const GroupRow& Mesh::RowOf(GroupKind kind) const {
  const GroupRow* const row = FindRow(kind);
  MEGASCALE_CHECK_MSG(row != nullptr, "no group of this mesh's table");
  return *row;
}

bool Mesh::Has(GroupKind kind) const {
  const GroupRow* const row = FindRow(kind);
  if (row == nullptr || row->only_with.IsEmpty()) return row != nullptr;
  return std::any_of(table_->axes.begin(), table_->axes.end(), [&](const AxisRow& axis) {
    return row->only_with.Has(axis.axis) && At(sizes_, axis.axis) > 1;
  });
}

std::vector<GroupKind> Mesh::Kinds() const {
  std::vector<GroupKind> kinds;
  for (const GroupRow& row : table_->groups) {
    if (Has(row.kind)) kinds.push_back(row.kind);
  }
  return kinds;
}

absl::string_view Mesh::Name(GroupKind kind) const {
  const GroupRow* const row = FindRow(kind);
  return row == nullptr ? "" : row->name;
}

std::optional<Axis> Mesh::OnlyAxisOf(GroupKind kind) const {
  std::optional<Axis> only;
  for (const AxisRow& row : table_->axes) {
    if (!IsAlong(kind, row.axis)) continue;
    if (only.has_value()) return std::nullopt;
    only = row.axis;
  }
  return only;
}

std::vector<Group> Mesh::Groups() const {
  std::vector<Group> groups;
  for (const GroupKind kind : Kinds()) {
    for (int rank = 0; rank < world_size(); ++rank) {
      if (IndexInGroup(kind, rank) == 0) groups.push_back(GroupOf(kind, rank));
    }
  }
  return groups;
}

Group Mesh::GroupOf(GroupKind kind, int rank) const {
  Group group{.name = GroupName(kind, rank), .ranks = std::vector<int>(GroupSize(kind))};
  for (int i = 0; i < GroupSize(kind); ++i) group.ranks[i] = RankInGroup(kind, rank, i);
  return group;
}

std::string Mesh::GroupName(GroupKind kind, int rank) const {
  const GroupRow& group = RowOf(kind);
  const Coordinate at = CoordinateOf(rank);
  std::string name(group.prefix);
  bool is_first = true;
  for (auto row = table_->axes.rbegin(); row != table_->axes.rend(); ++row) {
    if (group.along.Has(row->axis)) continue;
    if (!row->is_always_named && At(sizes_, row->axis) == 1) continue;
    if (!is_first) absl::StrAppend(&name, ".", row->letter);
    absl::StrAppend(&name, At(at, row->axis));
    is_first = false;
  }
  return name;
}

int Mesh::GroupSize(GroupKind kind) const {
  const GroupRow& group = RowOf(kind);
  int size = 1;
  for (const AxisRow& row : table_->axes) {
    if (group.along.Has(row.axis)) size *= At(sizes_, row.axis);
  }
  return size;
}

int Mesh::IndexInGroup(GroupKind kind, int rank) const {
  const GroupRow& group = RowOf(kind);
  const Coordinate at = CoordinateOf(rank);
  int index = 0;
  int stride = 1;
  for (const AxisRow& row : table_->axes) {
    if (!group.along.Has(row.axis)) continue;
    index += At(at, row.axis) * stride;
    stride *= At(sizes_, row.axis);
  }
  return index;
}

int Mesh::RankInGroup(GroupKind kind, int rank, int index) const {
  MEGASCALE_CHECK(index >= 0 && index < GroupSize(kind));
  const GroupRow& group = RowOf(kind);
  Coordinate at = CoordinateOf(rank);
  for (const AxisRow& row : table_->axes) {
    if (!group.along.Has(row.axis)) continue;
    const int size = At(sizes_, row.axis);
    At(at, row.axis) = index % size;
    index /= size;
  }
  return RankOf(at);
}

}  // namespace megascale::plan
