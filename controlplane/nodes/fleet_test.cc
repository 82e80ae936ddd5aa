#include "controlplane/nodes/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megascale::nodes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

FleetOptions Options(int nodes, int spares, int max) {
  FleetOptions options;
  options.nodes = nodes;
  options.spares = spares;
  options.max = max;
  options.slots_per_machine = 2;
  options.request_prefix = "r";
  return options;
}

Machine FirstMachine(const std::string& name) {
  Machine machine;
  machine.node_id = name;
  machine.state = MachineState::kPresent;
  machine.returnable = false;
  return machine;
}

Machine Asked(const std::string& request, const std::string& name = "") {
  Machine machine;
  machine.request = request;
  machine.node_id = name;
  machine.state = name.empty() ? MachineState::kAsked : MachineState::kPresent;
  return machine;
}

control::v1::NodeView Node(const std::string& name, int used = 0) {
  control::v1::NodeView node;
  node.set_node_id(name);
  node.set_alive(true);
  node.set_num_slots(2);
  node.set_num_slots_used(used);
  node.set_pool(control::v1::POOL_ACTIVE);
  return node;
}

TEST(FleetTest, AQuarantinedMachineIsReplacedByAnotherOne) {
  Fleet fleet(Options(2, 0, 2));
  ClusterView cluster;
  cluster.nodes = {Node("n1", 2), Node("n2", 0)};
  cluster.needed_slots = 4;
  const std::vector<Machine> machines = {FirstMachine("n1"), FirstMachine("n2")};
  EXPECT_THAT(fleet.Decide(absl::Seconds(1), machines, cluster).ask, IsEmpty());
  cluster.nodes[1].set_pool(control::v1::POOL_QUARANTINED);
  const FleetActions actions = fleet.Decide(absl::Seconds(2), machines, cluster);
  ASSERT_THAT(actions.ask, SizeIs(1));
  EXPECT_THAT(actions.ask[0].exclude, ElementsAre("n1", "n2"));
  EXPECT_THAT(actions.give_back, IsEmpty()) << "the source cannot take it back alone";
  fleet.OnAsked(actions.ask[0].id, absl::Seconds(2));
  EXPECT_THAT(fleet.Decide(absl::Seconds(3), machines, cluster).ask, IsEmpty())
      << "it is not shown yet";
}

TEST(FleetTest, AMachineThatLeavesIsEvictedOnceAndReplaced) {
  Fleet fleet(Options(1, 0, 1));
  ClusterView cluster;
  cluster.nodes = {Node("n1", 2)};
  std::vector<Machine> machines = {FirstMachine("n1")};
  machines[0].state = MachineState::kLeaving;
  machines[0].why = "drained: bad fan";
  FleetActions actions = fleet.Decide(absl::Seconds(1), machines, cluster);
  ASSERT_THAT(actions.evict, SizeIs(1));
  EXPECT_EQ(actions.evict[0].reason, "its manager: drained: bad fan");
  EXPECT_THAT(actions.ask, SizeIs(1));
  cluster.nodes[0].set_evicted(true);
  cluster.nodes[0].set_evicted_why(actions.evict[0].reason);
  EXPECT_THAT(fleet.Decide(absl::Seconds(2), machines, cluster).evict, IsEmpty());
  // The manager takes the drain back.
  machines[0].state = MachineState::kPresent;
  EXPECT_THAT(fleet.Decide(absl::Seconds(3), machines, cluster).uncordon, ElementsAre("n1"));
  // What a person evicted stays evicted.
  cluster.nodes[0].set_evicted_why("memory errors");
  EXPECT_THAT(fleet.Decide(absl::Seconds(4), machines, cluster).uncordon, IsEmpty());
}

TEST(FleetTest, AMachineThatTheDriverLosesIsReplacedAtOnceButNotOneThatJoins) {
  Fleet fleet(Options(2, 0, 2));
  ClusterView cluster;
  cluster.nodes = {Node("n1", 2), Node("n2", 0)};
  // The driver knows it from the launch before, and its agent has not joined yet.
  cluster.nodes[1].set_alive(false);
  const std::vector<Machine> machines = {FirstMachine("n1"), FirstMachine("n2")};
  EXPECT_THAT(fleet.Decide(absl::Seconds(1), machines, cluster).ask, IsEmpty());
  cluster.nodes[1].set_alive(true);
  EXPECT_THAT(fleet.Decide(absl::Seconds(5), machines, cluster).ask, IsEmpty());
  cluster.nodes[1].set_alive(false);
  EXPECT_THAT(fleet.Decide(absl::Seconds(6), machines, cluster).ask, SizeIs(1));
}

TEST(FleetTest, ALostAnswerRepeatsTheSameRequest) {
  Fleet fleet(Options(1, 0, 1));
  FleetActions actions = fleet.Decide(absl::Seconds(1), {}, {});
  ASSERT_THAT(actions.ask, SizeIs(1));
  const std::string id = actions.ask[0].id;
  fleet.OnLost(id);
  actions = fleet.Decide(absl::Seconds(2), {}, {});
  ASSERT_THAT(actions.ask, SizeIs(1));
  EXPECT_EQ(actions.ask[0].id, id);
}

TEST(FleetTest, ARefusalWaitsLongerEachTime) {
  Fleet fleet(Options(1, 0, 1));
  int asked = 0;
  for (int second = 0; second < 3600; ++second) {
    const auto actions = fleet.Decide(absl::Seconds(second), {}, {});
    if (actions.ask.empty()) continue;
    ++asked;
    fleet.OnRefused(absl::Seconds(second));
  }
  EXPECT_EQ(asked, 17) << "after 5, 10, 20 … 160 s, then every 5 min";
}

TEST(FleetTest, AMachineThatIsGoneAtOnceCountsAsARefusal) {
  Fleet fleet(Options(1, 0, 1));
  int asked = 0;
  std::vector<Machine> machines;
  for (int second = 0; second < 600; ++second) {
    const auto actions = fleet.Decide(absl::Seconds(second), machines, {});
    machines.clear();  // it ends within a second
    for (const Request& request : actions.ask) {
      ++asked;
      fleet.OnAsked(request.id, absl::Seconds(second));
      machines.push_back(Asked(request.id, "n9"));
    }
  }
  EXPECT_LE(asked, 10);
  EXPECT_GE(asked, 5);
}

TEST(FleetTest, MachinesBeyondTheNeedGoBackOnceTheyAreIdle) {
  Fleet fleet(Options(1, 0, 3));
  ClusterView cluster;
  cluster.needed_slots = 6;
  EXPECT_EQ(fleet.Target(cluster), 3);
  const std::vector<Machine> machines = {FirstMachine("n1"), Asked("r-1", "n2"),
                                         Asked("r-2", "n3")};
  cluster.nodes = {Node("n1", 2), Node("n2", 2), Node("n3", 2)};
  EXPECT_THAT(fleet.Decide(absl::Seconds(1), machines, cluster).give_back, IsEmpty());
  cluster.needed_slots = 2;
  cluster.nodes[2].set_num_slots_used(0);
  cluster.nodes[1].set_num_slots_used(0);
  cluster.nodes[1].set_num_jobs(1);  // it holds a snapshot
  EXPECT_THAT(fleet.Decide(absl::Seconds(2), machines, cluster).give_back, IsEmpty());
  const auto actions = fleet.Decide(absl::Minutes(11), machines, cluster);
  ASSERT_THAT(actions.give_back, SizeIs(1));
  EXPECT_EQ(actions.give_back[0].node_id, "n3");
}

TEST(FleetTest, TheLastMachinesBecomeSpares) {
  Fleet fleet(Options(2, 1, 2));
  ClusterView cluster;
  cluster.nodes = {Node("n1"), Node("n2")};
  const std::vector<Machine> machines = {FirstMachine("n1"), FirstMachine("n2"),
                                         FirstMachine("n3")};
  EXPECT_THAT(fleet.Decide(absl::Seconds(1), machines, cluster).make_spare, IsEmpty());
  cluster.nodes.push_back(Node("n3"));
  EXPECT_THAT(fleet.Decide(absl::Seconds(2), machines, cluster).make_spare, ElementsAre("n3"));
  cluster.nodes[2].set_pool(control::v1::POOL_SPARE);
  EXPECT_THAT(fleet.Decide(absl::Seconds(3), machines, cluster).make_spare, IsEmpty());
}

// A manager that lies, lags, loses, repeats and takes machines away, by a seed.
class StormySource {
 public:
  explicit StormySource(uint64_t seed) : random_(seed) {
    for (const char* const name : {"n1", "n2", "n3"}) machines_.push_back(FirstMachine(name));
  }
  bool Chance(int percent) { return !calm && static_cast<int>(random_() % 100) < percent; }

  // Returns what is seen: the truth, or an older one.
  std::vector<Machine> Observe() {
    shown_.push_back(machines_);
    if (shown_.size() > 4) shown_.erase(shown_.begin());
    return Chance(30) ? shown_.front() : shown_.back();
  }
  // Returns false when the answer is lost, whether or not the request was taken.
  bool Ask(const Request& request) {
    EXPECT_EQ(requests_.count(request.id) != 0 && !lost_.count(request.id), false)
        << request.id << " is repeated though it was answered";
    if (requests_.insert(request.id).second && !Chance(20)) {
      machines_.push_back(Asked(request.id));
    } else if (lost_.count(request.id) != 0 && !Has(request.id)) {
      machines_.push_back(Asked(request.id));
    }
    if (!Chance(20)) return true;
    lost_.insert(request.id);
    return false;
  }
  void GiveBack(const Machine& machine, const std::map<std::string, int>& used) {
    EXPECT_TRUE(machine.returnable);
    for (const Machine& mine : machines_) {
      if (mine.request == machine.request && mine.state != machine.state) return;
    }
    const auto ranks = used.find(machine.node_id);
    EXPECT_TRUE(ranks == used.end() || ranks->second == 0) << machine.node_id << " has ranks";
    machines_.erase(std::remove_if(machines_.begin(), machines_.end(),
                                   [&](const Machine& m) { return m.request == machine.request; }),
                    machines_.end());
  }
  void Turn() {
    for (Machine& machine : machines_) {
      if (machine.state == MachineState::kAsked && Chance(30)) {
        machine.node_id = absl::StrCat("x", ++last_name_);
        machine.state = MachineState::kPresent;
      } else if (machine.state == MachineState::kPresent && Chance(2)) {
        machine.state = MachineState::kLeaving;
      }
    }
    if (!machines_.empty() && Chance(3)) machines_.pop_back();
  }
  const std::vector<Machine>& machines() const { return machines_; }
  bool calm = false;
  std::string Text() const {
    std::string text;
    for (const Machine& machine : machines_) {
      absl::StrAppend(&text, machine.node_id, " ", machine.request, " state ",
                      static_cast<int>(machine.state), "; ");
    }
    return text;
  }

 private:
  bool Has(const std::string& request) const {
    return std::any_of(machines_.begin(), machines_.end(),
                       [&](const Machine& m) { return m.request == request; });
  }
  std::mt19937_64 random_;
  std::vector<Machine> machines_;
  std::vector<std::vector<Machine>> shown_;
  std::set<std::string> requests_;
  std::set<std::string> lost_;
  int last_name_ = 0;
};

TEST(FleetTest, StormsKeepTheBoundsAndTheDemandIsMetOnceTheSourceCan) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    StormySource source(seed);
    Fleet fleet(Options(3, 1, 5));
    absl::Duration now;
    const auto turn = [&] {
      now += absl::Seconds(5);
      if (!source.calm) source.Turn();
      ClusterView cluster;
      cluster.needed_slots = 8;
      std::map<std::string, int> used;
      for (const Machine& machine : source.machines()) {
        if (machine.state != MachineState::kPresent) continue;
        cluster.nodes.push_back(Node(machine.node_id, machine.returnable ? 2 : 0));
        used[machine.node_id] = machine.returnable ? 2 : 0;
      }
      const FleetActions actions = fleet.Decide(now, source.Observe(), cluster);
      for (const Machine& machine : actions.give_back) source.GiveBack(machine, used);
      for (const Request& request : actions.ask) {
        if (!source.Ask(request)) {
          fleet.OnLost(request.id);
          break;
        }
        fleet.OnAsked(request.id, now);
      }
      int held = 0;
      for (const Machine& machine : source.machines()) {
        held += machine.state == MachineState::kAsked || machine.state == MachineState::kPresent;
      }
      return held;
    };
    for (int i = 0; i < 200; ++i) ASSERT_LE(turn(), 6) << "turn " << i;
    int held = 0;
    source.calm = true;
    for (int i = 0; i < 200; ++i) held = turn();
    EXPECT_EQ(held, 5) << source.Text();
  }
}

}  // namespace
}  // namespace megascale::nodes
