#include "controlplane/driver/core/placement.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/recovery.h"
#include "controlplane/driver/core/restore_order.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/job/job_spec.h"

namespace megascale::driver {
namespace {

// Free slots by node, in the order of node ids.
using Slots = std::map<std::string, int>;
struct FreeSlots {
  Slots active;
  Slots spare;  // used when the active nodes have no room

  bool empty() const { return active.empty() && spare.empty(); }
  size_t size() const { return active.size() + spare.size(); }
  bool Has(const std::string& node_id) const {
    const auto has = [&](const Slots& slots) {
      const auto it = slots.find(node_id);
      return it != slots.end() && it->second > 0;
    };
    return has(active) || has(spare);
  }
  void Erase(const std::string& node_id) {
    active.erase(node_id);
    spare.erase(node_id);
  }
  void Take(const std::string& node_id) {
    for (Slots* slots : {&active, &spare}) {
      if (const auto it = slots->find(node_id); it != slots->end()) --it->second;
    }
  }
};

int TensorSize(const JobRecord& job) { return job::TensorSize(job.submitted().spec()); }

// What FreeSlotsFor leaves out.
struct Exceptions {
  std::set<std::string> givers = {};   // jobs whose slots are free
  std::set<std::string> in_test = {};  // nodes without free slots
  bool all_give = false;               // the slots of all jobs are free
};

// What the machines of an attempt have in common, because the bits of a step depend on it.
struct Kind {
  std::string instruction_set;
  std::string numerics;  // Hello.numerics_version; empty: of agents that do not tell
  int num_before = 0;    // machines of this kind that the job ran on

  bool Has(const NodeRecord& node) const {
    const std::string& version = node.hello().numerics_version();
    return node.hello().instruction_set() == instruction_set &&
           (numerics.empty() || version.empty() || version == numerics);
  }
};

// Returns the kinds of machines that may run the job: first those with most of the machines it ran
// on, then in the order of their first machines. An agent that does not tell its numerics version
// is of each kind with its instruction set.
std::vector<Kind> KindsFor(const DriverState& state, const JobRecord& job) {
  std::vector<Kind> kinds;
  for (const NodeRecord& node : state.nodes()) {
    if (!TakesRanks(node)) continue;
    Kind kind = {node.hello().instruction_set(), node.hello().numerics_version()};
    if (!job.instruction_set().empty() && kind.instruction_set != job.instruction_set()) continue;
    if (state.rules() < 9) kind.numerics.clear();
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& known) {
      return known.instruction_set == kind.instruction_set &&
             (known.numerics.empty() || kind.numerics.empty() || known.numerics == kind.numerics);
    });
    if (same == kinds.end()) {
      kinds.push_back(std::move(kind));
    } else if (same->numerics.empty()) {
      same->numerics = std::move(kind.numerics);
    }
  }
  if (state.rules() < 9 || kinds.size() < 2) return kinds;
  for (const std::string& node_id : NodesOf(job)) {
    const NodeRecord* node = FindNode(state, node_id);
    if (node == nullptr) continue;
    for (Kind& kind : kinds) kind.num_before += kind.Has(*node) ? 1 : 0;
  }
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const Kind& a, const Kind& b) { return a.num_before > b.num_before; });
  return kinds;
}

FreeSlots FreeSlotsFor(const DriverState& state, const JobRecord& job, const Kind& kind,
                       const Exceptions& exceptions) {
  FreeSlots free;
  const std::set<std::string> refusing = RefusingNodesOf(state, job);
  const std::vector<std::string> before = NodesOf(job);
  for (const NodeRecord& node : state.nodes()) {
    if (!TakesRanks(node) || !kind.Has(node)) continue;
    const std::string& node_id = node.hello().node_id();
    if (refusing.count(node_id) > 0 || exceptions.in_test.count(node_id) > 0) continue;
    const bool is_spare =
        node.spare() && !std::binary_search(before.begin(), before.end(), node_id);
    // Spares are for jobs that lost a machine.
    if (is_spare && job.stage() == v1::STAGE_QUEUED) continue;
    (is_spare ? free.spare : free.active)[node_id] = node.hello().num_slots();
  }
  if (exceptions.all_give) return free;
  for (const JobRecord& other : state.jobs()) {
    if (JobId(other) == JobId(job) || !HoldsSlots(other) ||
        exceptions.givers.count(JobId(other)) > 0)
      continue;
    for (const auto& placement : other.placements()) {
      free.Take(placement.node_id());
    }
  }
  return free;
}

// Gives each group of tensor-parallel peers that has no node yet the next one with room.
void FillGroups(int tensor_size, Slots free, std::vector<std::string>* nodes) {
  auto next = free.begin();
  for (std::string& node : *nodes) {
    if (!node.empty()) continue;
    while (next != free.end() && next->second < tensor_size) ++next;
    if (next == free.end()) return;
    next->second -= tensor_size;
    node = next->first;
  }
}

// Returns the node of each group of tensor-parallel peers; empty: not all groups have room.
std::vector<std::string> PlaceGroups(const JobRecord& job, FreeSlots free) {
  const int tensor_size = TensorSize(job);
  std::vector<std::string> nodes(static_cast<size_t>(WorldSize(job) / tensor_size));
  for (size_t group = 0; group < nodes.size(); ++group) {
    const std::string before = NodeOfRank(job, static_cast<int>(group) * tensor_size);
    const auto it = free.active.find(before);
    if (it == free.active.end() || it->second < tensor_size) continue;
    it->second -= tensor_size;
    nodes[group] = before;
  }
  FillGroups(tensor_size, free.active, &nodes);
  FillGroups(tensor_size, free.spare, &nodes);
  const bool placed = std::none_of(nodes.begin(), nodes.end(),
                                   [](const std::string& node) { return node.empty(); });
  return placed ? nodes : std::vector<std::string>();
}

FreeSlots Without(FreeSlots free, const std::set<std::string>& avoided) {
  for (const std::string& node : avoided) free.Erase(node);
  return free;
}

// Places a job so that no two of its nodes are the ends of a failed link: all ranks of a job
// exchange bytes with each other.
class PlacerAroundLinks {
 public:
  PlacerAroundLinks(const JobRecord& job, const NodePairs& failed) : job_(job), failed_(failed) {
    for (const auto& [one, other] : failed_) {
      apart_[one].insert(other);
      apart_[other].insert(one);
    }
  }

  bool has_links() const { return !failed_.empty(); }

  // As PlaceGroups. Looks at each way to leave out one end of each link that is in the way. If
  // there are more than kTriesMax ways, keeps as many nodes as a greedy choice finds, from each of
  // kFirstsMax nodes on.
  std::vector<std::string> Place(const FreeSlots& free) {
    num_tries_ = 0;
    std::vector<std::string> nodes = Try(free);
    if (!nodes.empty() || num_tries_ <= kTriesMax) return nodes;
    int num_firsts = 0;
    for (const auto& [first, others] : apart_) {
      if (!free.Has(first)) continue;
      if (++num_firsts > kFirstsMax) break;
      nodes = PlaceGroups(job_, Without(free, LeftOut(first, free)));
      if (!nodes.empty()) return nodes;
    }
    return {};
  }

 private:
  static constexpr int kTriesMax = 256;
  static constexpr int kFirstsMax = 64;

  // Chooses `first`, then again and again the node with the fewest failed links to nodes that may
  // still be chosen. Returns the nodes at failed links that are not chosen.
  std::set<std::string> LeftOut(const std::string& first, const FreeSlots& free) const {
    std::set<std::string> left_out;
    std::map<std::string, size_t> open;  // with the number of their links to open ones
    for (const auto& [node_id, others] : apart_) {
      if (!free.Has(node_id)) continue;
      open[node_id] = static_cast<size_t>(std::count_if(
          others.begin(), others.end(), [&](const std::string& other) { return free.Has(other); }));
    }
    std::string chosen = first;
    while (!open.empty()) {
      open.erase(chosen);
      for (const std::string& other : apart_.at(chosen)) {
        if (open.erase(other) == 0) continue;
        left_out.insert(other);
        for (const std::string& next : apart_.at(other)) {
          if (const auto it = open.find(next); it != open.end()) --it->second;
        }
      }
      const auto least =
          std::min_element(open.begin(), open.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      if (least != open.end()) chosen = least->first;
    }
    return left_out;
  }

  std::vector<std::string> Try(const FreeSlots& free) {
    if (++num_tries_ > kTriesMax) return {};
    std::vector<std::string> nodes = PlaceGroups(job_, free);
    if (failed_.empty()) return nodes;
    const std::set<std::string> used(nodes.begin(), nodes.end());
    const auto in_the_way = std::find_if(failed_.begin(), failed_.end(), [&](const auto& link) {
      return used.count(link.first) > 0 && used.count(link.second) > 0;
    });
    if (in_the_way == failed_.end()) return nodes;
    auto [left_out, kept] = *in_the_way;
    if (Priority(left_out) < Priority(kept)) std::swap(left_out, kept);
    for (const std::string& end : {left_out, kept}) {
      nodes = Try(Without(free, {end}));
      if (!nodes.empty()) return nodes;
    }
    return {};
  }

  // The end with more failed links is left out first, then the one with fewer ranks of the job.
  std::tuple<int64_t, int64_t, std::string> Priority(const std::string& node_id) const {
    const auto num_links = std::count_if(failed_.begin(), failed_.end(), [&](const auto& link) {
      return link.first == node_id || link.second == node_id;
    });
    const auto& placements = job_.placements();
    const auto num_ranks =
        std::count_if(placements.begin(), placements.end(),
                      [&](const auto& placement) { return placement.node_id() == node_id; });
    return {num_links, -num_ranks, node_id};
  }

  const JobRecord& job_;
  const NodePairs& failed_;
  std::map<std::string, std::set<std::string>> apart_;  // the failed links of each node
  int num_tries_ = 0;
};

// Returns "; n1 is evicted, n2 drains": nodes whose slots the job may not use.
std::string Withheld(const DriverState& state, const JobRecord& job) {
  const std::set<std::string> refusing = RefusingNodesOf(state, job);
  const std::set<std::string> in_test = NodesInTest(state);
  std::vector<std::string> nodes;
  for (const NodeRecord& node : state.nodes()) {
    const std::string& node_id = node.hello().node_id();
    if (!node.alive()) continue;
    if (!TakesRanks(node)) {
      nodes.push_back(absl::StrCat(node_id, node.has_quarantine() ? " is quarantined"
                                            : node.evicted()      ? " is evicted"
                                            : node.draining()     ? " drains"
                                            : node.unnamed()      ? " waits to be named"
                                                                  : " has a test that hangs"));
    } else if (in_test.count(node_id) > 0) {
      nodes.push_back(absl::StrCat(node_id, " is being tested"));
    } else if (refusing.count(node_id) > 0) {
      nodes.push_back(absl::StrCat(node_id, " refuses the job"));
    } else if (node.spare() && job.stage() == v1::STAGE_QUEUED) {
      nodes.push_back(absl::StrCat(node_id, " is a spare"));
    }
  }
  return nodes.empty() ? "" : absl::StrCat("; ", base::Shortlist(nodes));
}

std::string Offer(const JobRecord& job, const FreeSlots& free) {
  const std::string needs = NeededSlots(job);
  if (free.empty()) {
    const std::string kind =
        job.instruction_set().empty() ? "" : absl::StrCat(" with ", job.instruction_set());
    return absl::StrCat(needs, "; no node", kind, " is connected");
  }
  int64_t sum = 0;
  std::vector<std::string> offers;
  for (const Slots* part : {&free.active, &free.spare}) {
    for (const auto& [node, slots] : *part) {
      sum += std::max(0, slots);
      offers.push_back(absl::StrCat(node, " ", std::max(0, slots)));
    }
  }
  return absl::StrCat(needs, "; ", free.size(), free.size() == 1 ? " node" : " nodes",
                      free.size() == 1 ? " offers " : " offer ", sum, " (", base::Shortlist(offers),
                      ")");
}

// Returns "; machines of the numerics versions 3 and 4 do not share a job: …" if the job had room
// on machines of several versions together.
std::string Apart(const DriverState& state, const JobRecord& job, const std::vector<Kind>& kinds,
                  const Exceptions& exceptions) {
  std::set<std::string> versions;
  for (const Kind& kind : kinds) versions.insert(kind.numerics);
  if (versions.size() < 2) return "";
  const bool have_room = std::any_of(kinds.begin(), kinds.end(), [&](const Kind& kind) {
    const Kind of_all_versions = {kind.instruction_set, ""};
    return !PlaceGroups(job, FreeSlotsFor(state, job, of_all_versions, exceptions)).empty();
  });
  if (!have_room) return "";
  return absl::StrCat("; machines of the numerics versions ",
                      base::Shortlist({versions.begin(), versions.end()}),
                      " do not share a job: give enough machines one version");
}

}  // namespace

std::set<std::string> NodesInTest(const DriverState& state) {
  std::set<std::string> nodes;
  std::set<std::string> again;
  for (const NodeRecord& node : state.nodes()) {
    if (IsTestDue(node)) (node.test().again() ? again : nodes).insert(node.hello().node_id());
    if (IsExchanging(node)) nodes.insert(node.hello().node_id());
  }
  if (again.empty()) return nodes;
  const std::set<std::string> busy = BusyNodes(state);
  std::set_difference(again.begin(), again.end(), busy.begin(), busy.end(),
                      std::inserter(nodes, nodes.end()));
  return nodes;
}

std::set<std::string> TestsToWaitFor(const DriverState& state, const JobRecord& job) {
  std::set<std::string> nodes;
  std::vector<const NodeRecord*> due;
  for (const std::string& node_id : NodesOf(job)) {
    const NodeRecord* node = FindNode(state, node_id);
    if (node == nullptr) continue;
    if (IsExchanging(*node)) nodes.insert(node_id);
    if (IsTestDue(*node) && TakesRanks(*node)) due.push_back(node);
  }
  if (due.empty()) return nodes;
  const std::set<std::string> busy = BusyNodes(state);
  for (const NodeRecord* node : due) {
    const std::string& node_id = node->hello().node_id();
    if (busy.count(node_id) > 0) continue;
    const bool has_memory =
        std::any_of(job.fenced().begin(), job.fenced().end(), [&](const auto& fenced) {
          return fenced.node_id() == node_id && fenced.snapshots_size() > 0;
        });
    if (node->test().again() || has_memory) nodes.insert(node_id);
  }
  return nodes;
}

std::string NeededSlots(const JobRecord& job) {
  const int tensor_size = TensorSize(job);
  return absl::StrCat(
      job::NeededSlots(job.submitted().spec()),
      tensor_size > 1 ? absl::StrCat(" in groups of ", tensor_size, " on one node") : "");
}

bool HasRoomWithout(const DriverState& state, const JobRecord& job,
                    const std::set<std::string>& nodes) {
  const std::vector<Kind> kinds = KindsFor(state, job);
  return std::any_of(kinds.begin(), kinds.end(), [&](const Kind& kind) {
    // What is tested now will most likely pass.
    FreeSlots free = FreeSlotsFor(state, job, kind, {});
    return !PlaceGroups(job, Without(std::move(free), nodes)).empty();
  });
}

std::vector<std::string> NodesIfAlone(const DriverState& state, const JobRecord& job) {
  Exceptions exceptions;
  exceptions.all_give = true;
  for (const Kind& kind : KindsFor(state, job)) {
    const std::vector<std::string> of_groups =
        PlaceGroups(job, FreeSlotsFor(state, job, kind, exceptions));
    if (of_groups.empty()) continue;
    std::vector<std::string> of_ranks;
    for (const std::string& node : of_groups) {
      of_ranks.insert(of_ranks.end(), static_cast<size_t>(TensorSize(job)), node);
    }
    return of_ranks;
  }
  return {};
}

bool NeedsMoreThanThereIs(const DriverState& state, const JobRecord& job) {
  return NodesIfAlone(state, job).empty();
}

PlacementResult PlaceJob(const DriverState& state, const JobRecord& job, const NodePairs& failed,
                         const std::set<std::string>& givers) {
  std::set<std::string> avoided = NodesThatCannotRead(state, job);
  avoided.merge(NodesThatFailedOften(job));
  const Exceptions exceptions = {givers, NodesInTest(state)};
  const std::vector<Kind> kinds = KindsFor(state, job);
  PlacementResult result;
  FreeSlots best;
  PlacerAroundLinks around_links(job, failed);
  // Over a failed link an attempt fails for certain, so these are used last.
  for (const auto& [avoids, avoids_links] : {std::pair(true, true), std::pair(false, true),
                                             std::pair(true, false), std::pair(false, false)}) {
    if ((!avoids && avoided.empty()) || (!avoids_links && !around_links.has_links())) continue;
    for (const Kind& kind : kinds) {
      FreeSlots free = FreeSlotsFor(state, job, kind, exceptions);
      const FreeSlots usable = avoids ? Without(free, avoided) : free;
      std::vector<std::string> nodes =
          avoids_links ? around_links.Place(usable) : PlaceGroups(job, usable);
      // Older rules used nodes that are avoided before those of another kind.
      if (state.rules() < 9 && nodes.empty() && !avoided.empty()) nodes = PlaceGroups(job, free);
      if (free.size() > best.size()) best = std::move(free);
      if (nodes.empty()) continue;
      result.instruction_set = kind.instruction_set;
      for (int rank = 0; rank < WorldSize(job); ++rank) {
        megascale::agent::v1::Placement placement;
        placement.set_rank(rank);
        placement.set_node_id(nodes[static_cast<size_t>(rank / TensorSize(job))]);
        result.placements.push_back(std::move(placement));
      }
      return result;
    }
  }
  result.message =
      absl::StrCat(Offer(job, best), Apart(state, job, kinds, exceptions), Withheld(state, job));
  return result;
}

}  // namespace megascale::driver
