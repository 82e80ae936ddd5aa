#include "runtime/comm/communicator.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace megascale::comm {
namespace {

constexpr char kBlamedUrl[] = "megascale.comm/blamed-ranks";
constexpr char kOfLinksUrl[] = "megascale.comm/of-links";

}  // namespace

absl::string_view Name(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all-reduce";
    case Operation::kReduceScatter:
      return "reduce-scatter";
    case Operation::kAllGather:
      return "all-gather";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kReduce:
      return "reduce";
    case Operation::kAllToAll:
      return "all-to-all";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kSend:
      return "send";
    case Operation::kRecv:
      return "receive";
  }
  return "unknown operation";
}

std::vector<int> BlamedRanks(const absl::Status& status) {
  std::vector<int> ranks;
  const auto payload = status.GetPayload(kBlamedUrl);
  if (!payload) return ranks;
  const std::string text(*payload);
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int rank = 0;
    if (absl::SimpleAtoi(part, &rank)) ranks.push_back(rank);
  }
  return ranks;
}

absl::Status Blame(absl::Status status, const std::vector<int>& world_ranks) {
  status.SetPayload(kBlamedUrl, absl::Cord(absl::StrJoin(world_ranks, ",")));
  return status;
}

absl::Status BlameLinks(absl::Status status, const std::vector<int>& world_ranks) {
  status.SetPayload(kOfLinksUrl, absl::Cord());
  return Blame(std::move(status), world_ranks);
}

std::vector<int> UnreachedRanks(const absl::Status& status) {
  const bool is_of_links = status.GetPayload(kOfLinksUrl).has_value();
  return is_of_links ? BlamedRanks(status) : std::vector<int>();
}

}  // namespace megascale::comm
