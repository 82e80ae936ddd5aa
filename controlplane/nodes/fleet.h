// Decides which machines a launch asks for, gives back, evicts and keeps as spares. Pure: time,
// what the source shows and what the driver shows go in, actions come out. Level-triggered: an
// action that was lost is decided again from the next observation.
//
// Rules:
//   - As many usable machines as the jobs need, within `nodes` and `max`, and `spares` beside them.
//     A machine is usable unless the source takes it away, or the driver has it in quarantine or
//     has lost it.
//   - A request excludes machines that are unusable, and those that the launch has.
//   - Never more than `max` + `spares` machines, apart from unusable ones that the source cannot
//     take back one by one.
//   - A machine with ranks, or with the snapshot of a job, is never given back.
//   - A source that does not answer changes nothing.
//   - After a refusal, or a machine that was gone within a minute, the next request waits: 5 s,
//     twice as long each time, at most 5 min.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/nodes/node_source.h"
#include "proto/control.pb.h"

namespace megascale::nodes {

struct FleetOptions {
  int nodes = 1;              // the least number of usable machines, without spares
  int spares = 0;             // machines that only recovering jobs get
  int max = 1;                // the greatest number, without spares; >= nodes
  int slots_per_machine = 1;  // of a machine that has not joined yet
  // An idle machine above the need is given back after this time.
  absl::Duration idle_max = absl::Minutes(10);
  // Begins the ids of requests; another one for each start of the process.
  std::string request_prefix;
};

// What the driver shows.
struct ClusterView {
  std::vector<control::v1::NodeView> nodes;
  int64_t needed_slots = 0;  // of all jobs that have not ended
};

struct Eviction {
  std::string node_id;
  std::string reason;
};

struct FleetActions {
  std::vector<Request> ask;
  std::vector<Machine> give_back;
  std::vector<Eviction> evict;
  std::vector<std::string> uncordon;    // the source has ended what it evicted them for
  std::vector<std::string> make_spare;  // JobService.SetSpare
};

class Fleet {
 public:
  explicit Fleet(FleetOptions options) : options_(std::move(options)) {}

  // `now`: monotonic. Requires: both views are known; without one of them nothing is decided.
  FleetActions Decide(absl::Duration now, const std::vector<Machine>& machines,
                      const ClusterView& cluster);

  // How the source answered a request: it took it, it refused it, or its answer was lost; then the
  // next request has the same id.
  void OnAsked(const std::string& request_id, absl::Duration now);
  void OnRefused(absl::Duration now);
  void OnLost(const std::string& request_id) { open_request_ = request_id; }

  // Returns the number of usable machines that there should be, spares included.
  int Target(const ClusterView& cluster) const;

 private:
  struct Counted;
  void NoteRequests(absl::Duration now, const std::vector<Machine>& machines);
  void AskFor(int missing, absl::Duration now, const Counted& counted, FleetActions* actions);
  void ReturnSurplus(int surplus, absl::Duration now, const Counted& counted,
                     FleetActions* actions);
  bool IsUsable(absl::Duration now, const Machine& machine, const control::v1::NodeView* node);
  void MakeSpares(const Counted& counted, FleetActions* actions) const;

  const FleetOptions options_;
  std::map<std::string, absl::Duration> idle_since_;  // by node id
  // Nodes that the driver does not hear, and since when; those that it has heard in this process.
  // At the start it still waits for machines that join.
  std::map<std::string, absl::Duration> silent_since_;
  std::set<std::string> heard_;
  struct Taken {
    absl::Duration taken;
    absl::Duration seen;  // when the source showed it last, or took it
  };
  std::map<std::string, Taken> taken_;  // requests that the source took
  int num_unseen_ = 0;                  // of these, that it does not show now
  std::set<std::string> returned_;      // requests that were given back
  std::string open_request_;            // its answer was lost
  int64_t last_request_ = 0;
  absl::Duration ask_at_ = absl::ZeroDuration();
  absl::Duration backoff_ = absl::ZeroDuration();
};

}  // namespace megascale::nodes
