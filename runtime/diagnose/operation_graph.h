// The operations of one training step on all workers, and what each of them waits for. A replay
// says how long the step takes if its operations take other times than those measured.
//
// Rules of a replay: an operation starts when all that it depends on have ended, after its delay.
// One that computes ends after its duration. The members of a meeting (the two ends of a transfer,
// or a collective) move their data once all of them have started; each ends its own duration later.
// Source: Lin et al., OSDI '25, "Understanding Stragglers in Large Model Training Using What-if
// Analysis", section 3.
// Threads: plain data; one graph may be replayed by several threads.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace megascale::diagnose {

// How the ideal time of comparable operations follows from their measured times.
enum class Ideal { kMean, kMedian };

// What operations of a kind do.
enum class Role {
  kCompute,
  kTransfer,    // one end of a transfer between two workers
  kCollective,  // an exchange of several workers
  kLoad,        // waits for data to train on
  kOther,
};

// Operations of one kind are comparable: without stragglers they would take equal times.
struct OperationKind {
  std::string name;   // "forward-recv"
  std::string label;  // kinds of one label are reported together: "forward-pp-comm"
  Ideal ideal = Ideal::kMean;
  Role role = Role::kCompute;
};

// A process of the job, or several that were recorded as one.
struct Worker {
  int rank = 0;     // as the trace or the job numbers it
  int replica = 0;  // data-parallel coordinate
  int stage = 0;    // pipeline coordinate
  // What the plan gives it to compute in a step, in operations; 0: not known.
  double planned_work = 0;
};

inline constexpr int kNoMeeting = -1;

struct Operation {
  int kind = 0;                      // index
  int worker = 0;                    // index
  std::vector<int> depends_on = {};  // indices of operations, usually of the same worker
  int meeting = kNoMeeting;          // operations with the same number meet
  bool ends_step = true;             // the step is over once all such operations have ended
};

// The times of one step's operations in seconds, indexed like the operations.
struct OperationTimes {
  std::vector<double> delay;  // from when it could start to when it did; usually 0
  // From its start to its end, or for a member of a meeting, from the last member's start.
  std::vector<double> duration;
};

class OperationGraph {
 public:
  OperationGraph() = default;
  // Requires: indices are valid. Errors: InvalidArgument - operations that wait for each other.
  static absl::StatusOr<OperationGraph> Create(std::vector<OperationKind> kinds,
                                               std::vector<Worker> workers,
                                               std::vector<Operation> operations);

  const std::vector<OperationKind>& kinds() const { return kinds_; }
  const std::vector<Worker>& workers() const { return workers_; }
  const std::vector<Operation>& operations() const { return operations_; }
  size_t size() const { return operations_.size(); }

  // Returns how long the step takes. Requires: `times` has an element for each operation. Cost:
  // O(operations + dependencies); allocates once.
  double Replay(const OperationTimes& times) const;

  // Returns by operation how long after its last dependency it started. `start` and `end` are
  // measured times, by operation; negative delays count as 0.
  std::vector<double> DelaysOf(absl::Span<const double> start, absl::Span<const double> end) const;

 private:
  // Operations that wait for each other's start: a meeting, or one operation. Groups are in an
  // order in which each comes after all operations that its members depend on.
  struct Group {
    int begin = 0;  // of members_
    int end = 0;
  };

  std::vector<OperationKind> kinds_;
  std::vector<Worker> workers_;
  std::vector<Operation> operations_;
  std::vector<Group> groups_;
  std::vector<int> members_;
};

}  // namespace megascale::diagnose
