// The mesh of data, pipeline and tensor parallelism: the place of each rank, and the groups of
// ranks that communicate.
//
// Ranks are numbered with tensor fastest, then data, then pipeline, so that tensor-parallel peers
// are neighbours and data-parallel peers are nearer than pipeline peers. Source:
// MegaScale (Jiang et al., 2024). Plans refer to groups by kind, not by name, so that the same plan
// is right for every rank that has the same role in the step; `Mesh` tells which group a kind means
// on each rank.
//
// Axes and kinds of groups are rows of a MeshTable, from which Mesh derives everything. So a
// further axis, such as experts, needs a row for the axis, and a row and a GroupKind for each of
// its kinds of groups (mesh.cc). The tests have a table with such an axis.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megascale::plan {

// The axes, in the order in which people list them. (Ranks are counted in the order of
// MeshTable::axes.) In MeshSizes and Coordinate, the axes from kFurther on are elements of
// `further` instead of separate fields.
enum class Axis : uint8_t { kData, kPipeline, kTensor, kFurther };
inline constexpr int kFurtherAxesMax = 4;
inline constexpr int kAxesMax = static_cast<int>(Axis::kFurther) + kFurtherAxesMax;

struct MeshSizes {
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  std::array<int, kFurtherAxesMax> further = {1, 1, 1, 1};
  bool operator==(const MeshSizes&) const = default;
};

struct Coordinate {
  int data = 0;
  int pipeline = 0;
  int tensor = 0;
  std::array<int, kFurtherAxesMax> further = {};
  bool operator==(const Coordinate&) const = default;
};

// Returns the size of, or the position on, one axis.
int At(const MeshSizes& sizes, Axis axis);
int At(const Coordinate& coordinate, Axis axis);
int& At(Coordinate& coordinate, Axis axis);

// Ranks that communicate with each other; a rank's index in `ranks` is its group-relative rank.
struct Group {
  std::string name;
  std::vector<int> ranks;  // world ranks, ascending
};

// The kinds of groups that a rank belongs to. None has all ranks: what a rank needs of memory,
// connections and time grows with the sizes of its groups alone. What all ranks have to agree on
// they gather in the tensor, then the data, then the pipeline group.
enum class GroupKind : uint8_t {
  kNone,      // no communication
  kData,      // "dp<pipeline>.t<tensor>": a stage's replicas, indexed by data coordinate
  kPipeline,  // "pp<data>.t<tensor>": a replica's stages, indexed by pipeline coordinate
  // "tp<pipeline>.d<data>": tensor ranks of one replica's stage, by tensor coordinate. Only in
  // meshes with more than one tensor rank.
  kTensor,
};

// A set of axes.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= Bit(axis);
  }
  static constexpr AxisSet All() { return AxisSet(~0u); }
  static constexpr AxisSet AllBut(AxisSet others) { return AxisSet(~others.bits_); }
  constexpr bool Has(Axis axis) const { return (bits_ & Bit(axis)) != 0; }
  constexpr bool IsEmpty() const { return bits_ == 0; }

 private:
  constexpr explicit AxisSet(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t Bit(Axis axis) { return 1u << static_cast<int>(axis); }
  uint32_t bits_ = 0;
};

// A row of the table of axes.
struct AxisRow {
  Axis axis = {};
  absl::string_view name = "";    // for people: "data"
  absl::string_view letter = "";  // in the names of groups: "d"
  // Whether the axis occurs in names of groups even if its size is 1.
  bool is_always_named = false;
};

// A row of the table of groups. Members of a group differ only in the axes of `along`; they are
// indexed with the nearest axis (the first in MeshTable::axes) fastest. A group's name is `prefix`,
// then the group's positions on the other axes, the farthest axis first. Each position but the
// first begins with "." and its axis's letter. Axes of size 1 are left out, unless is_always_named.
struct GroupRow {
  GroupKind kind = GroupKind::kNone;
  absl::string_view name = "";    // for people: "pipeline"
  absl::string_view prefix = "";  // "pp"
  AxisSet along = {};
  // The kind exists only in meshes in which one of these axes has more than one position; empty: in
  // every mesh.
  AxisSet only_with = {};
};

struct MeshTable {
  std::vector<AxisRow> axes;     // nearest first: neighbours on it have consecutive ranks
  std::vector<GroupRow> groups;  // ascending by kind
};

// Returns the table of the meshes that jobs have.
const MeshTable& JobMeshTable();

class Mesh {
 public:
  // A mesh of one rank.
  Mesh() = default;
  // Requires: `table` outlives the mesh and all its copies; axes that `table` lacks have size 1.
  // Errors: InvalidArgument - a size below 1, or more than 2^20 ranks.
  static absl::StatusOr<Mesh> Create(const MeshSizes& sizes,
                                     const MeshTable& table = JobMeshTable());

  int data_size() const { return sizes_.data; }
  int pipeline_size() const { return sizes_.pipeline; }
  int tensor_size() const { return sizes_.tensor; }
  int size(Axis axis) const { return At(sizes_, axis); }
  int world_size() const { return world_size_; }
  bool operator==(const Mesh&) const = default;
  bool Contains(int rank) const { return rank >= 0 && rank < world_size(); }
  // Returns the rows of the axes, the nearest axis first.
  absl::Span<const AxisRow> axes() const { return table_->axes; }
  // Returns the rows of the axes in the order of Axis, in which people list them.
  std::vector<AxisRow> AxesForPeople() const;
  // Returns "data 2 x pipeline 4 x tensor 1".
  std::string SizesText() const;

  // Requires: the rank, or the coordinate, is in the mesh.
  Coordinate CoordinateOf(int rank) const;
  int RankOf(const Coordinate& coordinate) const;

  // Returns the kinds of groups that this mesh has, ascending.
  std::vector<GroupKind> Kinds() const;
  bool Has(GroupKind kind) const;
  // Returns "data", "pipeline", "tensor", or "" for kNone.
  absl::string_view Name(GroupKind kind) const;
  // Returns the one axis along which members of a group differ; nullopt: they differ along several.
  // Requires: the table has the kind.
  std::optional<Axis> OnlyAxisOf(GroupKind kind) const;
  // True if members of a group differ along this axis. Requires: the table has the kind.
  bool IsAlong(GroupKind kind, Axis axis) const { return RowOf(kind).along.Has(axis); }

  // Returns every group, in the same order on every rank: by kind, and within a kind by first rank.
  std::vector<Group> Groups() const;

  // Returns the group of this kind that `rank` is in. Requires: the table has the kind. Cost:
  // GroupOf lists the group's ranks.
  Group GroupOf(GroupKind kind, int rank) const;
  std::string GroupName(GroupKind kind, int rank) const;
  int GroupSize(GroupKind kind) const;
  // IndexInGroup returns the group-relative rank of `rank`. RankInGroup returns the world rank of
  // member `index` of the group of `rank`.
  int IndexInGroup(GroupKind kind, int rank) const;
  int RankInGroup(GroupKind kind, int rank, int index) const;

 private:
  Mesh(const MeshSizes& sizes, const MeshTable* table, int world_size)
      : sizes_(sizes), table_(table), world_size_(world_size) {}
  const GroupRow* FindRow(GroupKind kind) const;
  const GroupRow& RowOf(GroupKind kind) const;

  MeshSizes sizes_;
  const MeshTable* table_ = &JobMeshTable();
  int world_size_ = 1;
};

}  // namespace megascale::plan
