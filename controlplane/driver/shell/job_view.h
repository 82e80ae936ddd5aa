// A job and a node as people see them: the state machine's record, joined with the agents' newest
// reports. Functions of what they are given, for any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/storage/recent_steps.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Returns the node's record; null: there is no such node.
using NodeLookup = std::function<const NodeRecord*(const std::string& node_id)>;
// Returns the newest report of a node about the job that is viewed; null: there is none.
using ReportLookup =
    std::function<const megascale::agent::v1::ActualJob*(const std::string& node_id)>;

// What a view of a job needs beside its record.
struct JobSources {
  absl::Time now;                      // of the log (log_clock.h)
  absl::Duration clock_ahead;          // LogClock::Ahead
  const RecentSteps* steps = nullptr;  // null: the loss log cannot be read
  // Steps that the job's time account does not know yet; null: there are none.
  const megascale::driver::v1::StepsTaken* new_steps = nullptr;
  int64_t queue_position = 0;
  // Leaves out the fields that ListJobsResponse names. Then the cost does not depend on the job's
  // ranks.
  bool is_summary = false;
  absl::Duration storage_fails_for;
  NodeLookup node;
  ReportLookup report;
};

// Returns the job as people see it, without its evidence.
megascale::control::v1::Job ViewJob(const JobRecord& job, const JobSources& sources);

// Returns what a rank of the job's attempt said last. Requires: `index` is one of a placement.
megascale::control::v1::RankView ViewRank(const JobRecord& job, int index,
                                          const ReportLookup& report);
// Returns what each rank of the job's attempt said last, in rank order.
std::vector<megascale::control::v1::RankView> ViewRanks(const JobRecord& job,
                                                        const ReportLookup& report);

// The nodes of each warning, sorted.
using NodesOfWarnings = std::map<std::string, std::set<std::string>>;
// Returns a line for each warning: "nodes n0, n1: 4 threads share 2 cores".
std::vector<std::string> WarningLines(const NodesOfWarnings& nodes_of);

// Keeps `ranks_max` of the job's ranks, as telemetry::ChooseShownRanks chooses them.
void ShortenRanks(int ranks_max, megascale::control::v1::Job* job);

// Returns the job without the ages in it, which change even if nothing else does.
megascale::control::v1::Job WithoutAges(megascale::control::v1::Job job);

// Slots and jobs on a node.
struct NodeUse {
  int slots = 0;
  int jobs = 0;
};
// Returns the use of each node that has ranks.
std::map<std::string, NodeUse> UseOfNodes(const std::vector<const JobRecord*>& jobs,
                                          const NodeLookup& node);

// `silence`: the time since the agent was heard.
megascale::control::v1::NodeView ViewNode(const NodeRecord& node, const NodeUse& use,
                                          absl::Duration silence);

}  // namespace megascale::driver
