#include "controlplane/page/rank_json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "controlplane/page/mesh_json.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/layout/groups.h"
#include "runtime/plan/instruction.h"

namespace megascale::page {
namespace {

using nlohmann::json;
using plan::InstructionId;

constexpr size_t kRankTextBytesMax = 500;
// How many ranks the list of waits shows for one rank; the details of the rank show more.
constexpr size_t kWaitsOfRankMax = 4;
constexpr size_t kMembersMax = 64;

std::string PhaseWord(telemetry::v1::Phase phase) {
  return absl::AsciiStrToLower(absl::StripPrefix(telemetry::v1::Phase_Name(phase), "PHASE_"));
}

const telemetry::v1::RankStatus& StatusOf(const control::v1::Job& job, int rank) {
  return job.ranks(rank).status();
}

// Returns the other ranks with which `rank` runs the instruction.
std::vector<int> PeersIn(const plan::Mesh& mesh, int rank, InstructionId id) {
  if (plan::IsExchangeOfPass(id)) {
    if (!mesh.Has(plan::GroupKind::kTensor)) return {};
    return mesh.GroupOf(plan::GroupKind::kTensor, rank).ranks;
  }
  if (plan::IsTransfer(id.operation())) {
    plan::Coordinate at = mesh.CoordinateOf(rank);
    at.pipeline = plan::OtherStage(id, mesh.pipeline_size());
    if (at.pipeline < 0) return {};
    return {mesh.RankOf(at)};
  }
  const plan::Meeting meeting = plan::MeetingIn(mesh, id.operation());
  if (meeting.group == plan::GroupKind::kNone || !mesh.Has(meeting.group)) return {};
  return mesh.GroupOf(meeting.group, rank).ranks;
}

// Returns for whom a rank waits: the peers of its instruction that are not in it. Empty: it does
// not wait, or nothing is known.
std::vector<int> WaitsFor(const control::v1::Job& job, const plan::Mesh& mesh, int rank) {
  const telemetry::v1::RankStatus& status = StatusOf(job, rank);
  const auto id = InstructionId::FromPacked(status.instruction());
  if (status.activity() != telemetry::v1::ACTIVITY_INSTRUCTION || !plan::NeedsPeers(id)) return {};
  std::vector<int> missing;
  for (const int peer : PeersIn(mesh, rank, id)) {
    if (peer == rank || peer >= job.ranks_size()) continue;
    const auto other = InstructionId::FromPacked(StatusOf(job, peer).instruction());
    const bool is_there =
        other.MessageId() == id.MessageId() && StatusOf(job, peer).step() == status.step();
    if (!is_there) missing.push_back(peer);
  }
  return missing;
}

// Numbers the texts that occur, so that thousands of ranks name the same few.
class Dictionary {
 public:
  int IndexOf(const std::string& text) {
    const auto [found, is_new] = index_.try_emplace(text, static_cast<int>(texts_.size()));
    if (is_new) texts_.push_back(base::Printable(text, kRankTextBytesMax));
    return found->second;
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::map<std::string, int> index_;
  std::vector<std::string> texts_;
};

// The next rank on an axis, cyclic; on an axis of one rank there is none.
json NeighboursJson(const plan::Mesh& mesh, int rank) {
  json neighbours = json::array();
  for (const plan::AxisRow& axis : mesh.AxesForPeople()) {
    const int size = mesh.size(axis.axis);
    if (size < 2) continue;
    const auto neighbour = [&](int by) {
      plan::Coordinate at = mesh.CoordinateOf(rank);
      int& position = plan::At(at, axis.axis);
      position = (position + by + size) % size;
      return mesh.RankOf(at);
    };
    neighbours.push_back(
        {{"axis", std::string(axis.name)}, {"previous", neighbour(-1)}, {"next", neighbour(1)}});
  }
  return neighbours;
}

json Shortened(const std::vector<int>& ranks) {
  const size_t count = std::min(ranks.size(), kMembersMax);
  return {{"total", ranks.size()},
          {"ranks", std::vector<int>(ranks.begin(), ranks.begin() + static_cast<int64_t>(count))}};
}

// Returns "attempt 2: …": of the rank's newest failure; empty: it had none.
std::string LastErrorOf(int rank, absl::Span<const ObservedFailure> failures) {
  for (auto failure = failures.rbegin(); failure != failures.rend(); ++failure) {
    if (failure->culprit.rank() != rank) continue;
    return absl::StrCat("attempt ", failure->culprit.attempt(), ": ",
                        base::Printable(failure->culprit.evidence(), kRankTextBytesMax));
  }
  return "";
}

double Rounded(double seconds) {
  return std::isfinite(seconds) ? std::round(seconds * 10) / 10 : 0;
}

}  // namespace

absl::StatusOr<json> RanksJson(const control::v1::Job& job) {
  ASSIGN_OR_RETURN(const plan::Mesh mesh, layout::MeshOf(job.spec()));
  Dictionary nodes;
  Dictionary phases;
  Dictionary doing;
  json ranks = {{"node", json::array()},
                {"phase", json::array()},
                {"doing", json::array()},
                {"step", json::array()},
                {"progress_seconds", json::array()}};
  json waits = json::array();
  for (int rank = 0; rank < job.ranks_size(); ++rank) {
    const telemetry::v1::RankStatus& status = StatusOf(job, rank);
    ranks["node"].push_back(nodes.IndexOf(job.ranks(rank).node_id()));
    ranks["phase"].push_back(phases.IndexOf(PhaseWord(status.phase())));
    // Without the instruction, whose micro-batch differs from rank to rank.
    const auto id = InstructionId::FromPacked(status.instruction());
    std::string words(absl::StripSuffix(status.doing(), id.ToString()));
    ranks["doing"].push_back(doing.IndexOf(std::string(absl::StripAsciiWhitespace(words))));
    ranks["step"].push_back(status.step());
    ranks["progress_seconds"].push_back(Rounded(status.progress_age_seconds()));
    if (rank >= mesh.world_size() || waits.size() >= kWaitsMax) continue;
    std::vector<int> waits_for = WaitsFor(job, mesh, rank);
    waits_for.resize(std::min(waits_for.size(), kWaitsOfRankMax));
    for (const int peer : waits_for) waits.push_back({rank, peer});
  }
  return json{{"mesh", MeshJson(mesh)},  {"nodes", nodes.texts()},    {"phases", phases.texts()},
              {"doings", doing.texts()}, {"ranks", std::move(ranks)}, {"waits", std::move(waits)}};
}

absl::StatusOr<json> RankJson(const control::v1::Job& job, int rank,
                              absl::Span<const ObservedFailure> failures) {
  ASSIGN_OR_RETURN(const plan::Mesh mesh, layout::MeshOf(job.spec()));
  if (rank < 0 || rank >= std::min(job.ranks_size(), mesh.world_size())) {
    return absl::NotFoundError(absl::StrCat("job ", job.job_id(), ": has no rank ", rank, "; ",
                                            job.ranks_size(), " ranks are placed"));
  }
  const telemetry::v1::RankStatus& status = StatusOf(job, rank);
  const auto id = InstructionId::FromPacked(status.instruction());
  json details = {{"rank", rank},
                  {"node", base::Printable(job.ranks(rank).node_id(), kRankTextBytesMax)},
                  {"mesh", MeshJson(mesh)},
                  {"neighbours", NeighboursJson(mesh, rank)},
                  {"phase", PhaseWord(status.phase())},
                  {"step", status.step()},
                  {"pid", status.pid()},
                  {"doing", base::Printable(status.doing(), kRankTextBytesMax)},
                  {"recent", base::Printable(status.recent(), kRankTextBytesMax)},
                  {"instruction", id == InstructionId() ? "" : id.ToString()},
                  {"alive_seconds", Rounded(status.alive_age_seconds())},
                  {"progress_seconds", Rounded(status.progress_age_seconds())},
                  {"device", base::Printable(status.device().name(), kRankTextBytesMax)},
                  {"device_used_bytes", status.device().used_bytes()},
                  {"with", Shortened({})},
                  {"waits_for", Shortened(WaitsFor(job, mesh, rank))},
                  {"last_error", LastErrorOf(rank, failures)}};
  if (id != InstructionId() && plan::NeedsPeers(id)) {
    details["with"] = Shortened(PeersIn(mesh, rank, id));
  }
  return details;
}

}  // namespace megascale::page
