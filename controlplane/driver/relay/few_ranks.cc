#include "controlplane/driver/relay/few_ranks.h"

#include <algorithm>
#include <map>
#include <utility>

#include "controlplane/driver/relay/suspect.h"
#include "runtime/base/status.h"

namespace megascale::driver {

namespace control = megascale::control::v1;

FewRanks::FewRanks(const control::Job* job, SpanStreamPorts ports, Options options,
                   trace::JobSpans spans)
    : job_(job),
      options_(std::move(options)),
      emit_(std::move(ports.emit)),
      stream_(std::move(ports)),
      spans_(std::move(spans)) {}

absl::StatusOr<FewRanks> FewRanks::Create(const control::Job& job, SpanStreamPorts ports,
                                          Options options) {
  ASSIGN_OR_RETURN(trace::JobSpans spans,
                   trace::JobSpans::Create(job.spec(), {}, trace::PlannedRanks::kRead));
  ports.job = [&job] { return job; };
  return FewRanks(&job, std::move(ports), std::move(options), std::move(spans));
}

absl::StatusOr<bool> FewRanks::Read(absl::Span<const int> ranks) {
  control::StreamSpansRequest request;
  request.set_job_id(job_->job_id());
  request.set_first_step(options_.first_step);
  for (const int rank : ranks) {
    if (static_cast<int>(asked_.size()) >= kSuspectRanksRead) break;
    if (asked_.insert(rank).second) request.add_ranks(rank);
  }
  if (request.ranks().empty()) return false;
  const auto add = [&](const control::StreamSpansResponse& response) {
    if (options_.keeps == nullptr) {
      spans_.Add(response);
    } else {
      control::StreamSpansResponse kept = response;
      kept.clear_spans();
      for (const auto& span : response.spans()) {
        if (options_.keeps(span.step())) *kept.add_spans() = span;
      }
      spans_.Add(kept);
    }
    return emit_ == nullptr || emit_(response);
  };
  RETURN_IF_ERROR(stream_.Read(request, add));
  return true;
}

FewRanks::Standing FewRanks::StandingOf(int rank) const {
  const plan::Coordinate at = spans_.plans()[static_cast<size_t>(rank)].mesh.CoordinateOf(rank);
  const auto& status = job_->ranks(rank).status();
  return {status.step(), status.instruction(), at.pipeline, at.tensor};
}

std::vector<int> FewRanks::RarestFirst(std::vector<int> ranks) const {
  std::map<Standing, int> count;
  for (const int rank : ranks) ++count[StandingOf(rank)];
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return count[StandingOf(a)] < count[StandingOf(b)]; });
  std::set<Standing> seen;
  std::stable_partition(ranks.begin(), ranks.end(),
                        [&](int rank) { return seen.insert(StandingOf(rank)).second; });
  return ranks;
}

std::vector<int> FewRanks::RanksOfGroups(int rank) const {
  std::vector<int> members;
  for (const plan::GroupKind kind :
       {plan::GroupKind::kData, plan::GroupKind::kPipeline, plan::GroupKind::kTensor}) {
    if (!mesh().Has(kind)) continue;
    const size_t count = members.size() + kMembersRead;
    for (const int member : mesh().GroupOf(kind, rank).ranks) {
      if (members.size() < count && !WasAsked(member)) members.push_back(member);
    }
  }
  return members;
}

std::vector<bool> FewRanks::Known() const {
  std::vector<bool> known;
  for (const timeline::RankSpans& rank : spans_.ranks()) known.push_back(rank.known);
  return known;
}

}  // namespace megascale::driver
