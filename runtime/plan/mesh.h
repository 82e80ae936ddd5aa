// The mesh of data, pipeline and tensor parallelism: the place of each rank, and the groups of
// ranks that communicate.
//
// Ranks are numbered with tensor fastest, then data, then pipeline, so that tensor-parallel peers
// are neighbours and data-parallel peers are nearer than pipeline peers. Source: DESIGN section 5;
// MegaScale (Jiang et al., 2024). Plans refer to groups by kind, not by name: the same plan then
// serves every rank of a stage, and `Mesh` resolves the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::plan {

struct MeshSizes {
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  bool operator==(const MeshSizes&) const = default;
};

struct Coordinate {
  int data = 0;
  int pipeline = 0;
  int tensor = 0;
  bool operator==(const Coordinate&) const = default;
};

// Ranks that communicate with each other; a rank's index in `ranks` is its group-relative rank.
struct Group {
  std::string name;
  std::vector<int> ranks;  // world ranks, ascending
};

// The kinds of groups that a rank belongs to.
enum class GroupKind : uint8_t {
  kNone,      // no communication
  kWorld,     // "world": all ranks
  kData,      // "dp<pipeline>.t<tensor>": a stage's replicas, indexed by data coordinate
  kPipeline,  // "pp<data>.t<tensor>": a replica's stages, indexed by pipeline coordinate
  // Only in meshes with more than one tensor rank:
  kTensor,  // "tp<pipeline>.d<data>": tensor ranks of one replica's stage, by tensor coordinate
  kStage,   // "stage<pipeline>": all ranks of a stage, tensor fastest, then data
};

// "world", "data", "pipeline", "tensor", "stage", or "" for kNone.
absl::string_view Name(GroupKind kind);

class Mesh {
 public:
  // A mesh of one rank.
  Mesh() = default;
  // Errors: InvalidArgument - a size below 1, or more than 2^20 ranks.
  static absl::StatusOr<Mesh> Create(MeshSizes sizes);

  int data_size() const { return sizes_.data; }
  int pipeline_size() const { return sizes_.pipeline; }
  int tensor_size() const { return sizes_.tensor; }
  int world_size() const { return sizes_.data * sizes_.pipeline * sizes_.tensor; }
  bool operator==(const Mesh&) const = default;
  bool Contains(int rank) const { return rank >= 0 && rank < world_size(); }

  // Requires: the rank, or the coordinate, is in the mesh.
  Coordinate CoordinateOf(int rank) const;
  int RankOf(Coordinate coordinate) const;

  // Returns the kinds of groups that this mesh has, ascending.
  std::vector<GroupKind> Kinds() const;
  bool Has(GroupKind kind) const;

  // Returns every group, in the same order on every rank: the world, then the data groups by their
  // first rank, then the groups of each other kind by theirs.
  std::vector<Group> Groups() const;

  // Returns the group of this kind that `rank` is in. Requires: kind is not kNone. Cost: GroupOf
  // lists the group's ranks.
  Group GroupOf(GroupKind kind, int rank) const;
  std::string GroupName(GroupKind kind, int rank) const;
  int GroupSize(GroupKind kind) const;
  // IndexInGroup returns the group-relative rank of `rank`. RankInGroup returns the world rank of
  // member `index` of the group of `rank`.
  int IndexInGroup(GroupKind kind, int rank) const;
  int RankInGroup(GroupKind kind, int rank, int index) const;

 private:
  explicit Mesh(MeshSizes sizes) : sizes_(sizes) {}

  MeshSizes sizes_;
};

}  // namespace megascale::plan
