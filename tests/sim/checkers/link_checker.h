// Invariants about links between machines that swallow packets while both machines reach the
// driver. docs/invariants.md says why each must hold.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "tests/sim/world.h"

namespace megascale::sim {

// LinksAreAvoided: once an attempt has ended because of a link, no attempt of a job begins with
// ranks at both of its ends, if the machines that are at the end of no such link have room for the
// job.
class LinkAvoidedChecker : public Observer {
 public:
  explicit LinkAvoidedChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  bool IsKnown(const std::string& one, const std::string& other) const {
    return links_.count(std::minmax(one, other)) > 0;
  }
  bool HasRoom(const DriverState& before, const DriverState& after, const JobRecord& job) const;

  World& world_;
  using Link = std::pair<std::string, std::string>;  // the lesser end first

  std::set<Link> links_;
};

// LinksEndNoJob: in a run whose only fault is a link, each job that fits on the machines without
// one of its ends succeeds, or is cancelled; its failures name the two ends of the link; and no
// machine is quarantined.
class LinkOnlyChecker : public Observer {
 public:
  explicit LinkOnlyChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  void CheckCulprit(const JobRecord& job) const;
  bool FitsWithoutAnEnd(const DriverState& state, const JobRecord& job) const;

  World& world_;
};

}  // namespace megascale::sim
