// RecoveryHasACause: a job recovers only after a fault of one of its machines, of the network to
// it, or of what the machine reads; and the culprit that the driver names is the machine, and the
// process, that was at fault. docs/invariants.md says why.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "tests/sim/world.h"

namespace megascale::sim {

class CauseChecker : public Observer {
 public:
  // A fault counts as a cause for this long, which is longer than any timeout that it can trigger.
  static constexpr absl::Duration kConsequencesMax = absl::Seconds(60);
  // A process hangs until a driver notices it, and drivers may be away again and again.
  static constexpr absl::Duration kHangMax = absl::Minutes(3);
  // Processes that hang when they are killed are given up after minutes.
  static constexpr absl::Duration kSlowKillsMax = absl::Minutes(10);

  explicit CauseChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnFault(const Fault& fault) override;

 private:
  using Place = std::tuple<std::string, Harm, std::string, int>;  // node, harm, job, rank

  void CheckRecovery(const JobRecord& job, const JobRecord& old, const DriverState& state);
  void CheckCulprit(const JobRecord& job, const JobRecord& old);
  // Returns true if a fault that can explain this has just happened.
  bool Explains(const JobRecord& job, const control::Culprit& culprit) const;
  // `node`: after the job left it; null: it is forgotten.
  bool ExplainsLeave(const driver::NodeRecord* node, const std::string& node_id) const;
  // The two could not connect, a moment ago.
  bool WasCut(const std::string& one, const std::string& other) const;
  bool WasCutOnNodesOf(const JobRecord& job) const;
  bool AnyOn(const std::string& node_id) const;
  bool AnyOnNodesOf(const JobRecord& job) const;
  bool Happened(const std::string& node_id, Harm harm) const;
  bool HappenedTo(const std::string& node_id, const std::string& job_id, int rank,
                  absl::Duration limit = kConsequencesMax) const;
  bool IsRecent(const Place& place, absl::Duration limit = kConsequencesMax) const;

  World& world_;
  std::map<Place, absl::Duration> faults_;  // time of the last one
};

}  // namespace megascale::sim
