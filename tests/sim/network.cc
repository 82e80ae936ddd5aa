#include "tests/sim/network.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace megascale::sim {
namespace {

constexpr absl::Duration kDelayMin = absl::Microseconds(300);
constexpr absl::Duration kDelayMax = absl::Milliseconds(20);
constexpr absl::Duration kLateMax = absl::Seconds(3);

}  // namespace

Network::Network(World* world, DriverNode* driver) : world_(*world), driver_(*driver) {
  driver_.OnEnd([this] {
    for (const auto& [node_id, connections] : open_) {
      for (const auto& connection : connections) BreakSoon(connection, kDelayMax);
    }
  });
}

absl::Duration Network::Delay() {
  if (world_.storm && world_.rng.Chance(0.03)) return world_.rng.Between(kDelayMin, kLateMax);
  return world_.rng.Between(kDelayMin, kDelayMax);
}

bool Network::IsPartitioned(const std::string& node_id) const {
  const auto found = partitioned_.find(node_id);
  return found != partitioned_.end() && found->second;
}

bool Network::Passes(const Connection& connection) const {
  return !connection.broken_ && !IsPartitioned(connection.node_id_);
}

std::shared_ptr<Network::Connection> Network::Connect(const agent::Hello& hello,
                                                      ConnectionEvents events,
                                                      driver::AgentPeer peer) {
  if (!driver_.up() || IsPartitioned(hello.node_id())) return nullptr;
  auto connection =
      std::make_shared<Connection>(this, hello.node_id(), std::move(events), std::move(peer));
  connection->hello_at_ = world_.timeline.now() + Delay();
  OpenOf(hello.node_id());
  open_[hello.node_id()].push_back(connection);
  world_.timeline.At(connection->hello_at_, [this, hello, connection] {
    if (IsPartitioned(hello.node_id())) return BreakSoon(connection, kLateMax);
    // The driver may still read a connection that the agent has given up.
    driver_.OnHello(hello, connection);
  });
  return connection;
}

void Network::Send(const std::shared_ptr<Connection>& connection,
                   const agent::ActualState& report) {
  if (!Passes(*connection)) return;
  if (world_.storm && world_.rng.Chance(0.02)) return;
  agent::ActualState sent = report;
  if (world_.tampering.report) world_.tampering.report(&sent);
  world_.Tell(&Observer::OnReport, connection->node_id_, sent);
  const int copies = world_.storm && world_.rng.Chance(0.02) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    const absl::Duration when =
        std::max(connection->hello_at_ + absl::Microseconds(1), world_.timeline.now() + Delay());
    world_.timeline.At(when, [this, connection, sent] {
      if (!IsPartitioned(connection->node_id_)) driver_.OnReport(connection->node_id_, sent);
    });
  }
}

// A request is lost only with its connection.
void Network::SendStore(const std::shared_ptr<Connection>& connection,
                        const agent::StoreRequest& request) {
  const absl::Duration when =
      std::max(connection->hello_at_ + absl::Microseconds(1), world_.timeline.now() + Delay());
  world_.timeline.At(when, [this, connection, request] {
    if (!Passes(*connection)) return BreakSoon(connection, kLateMax);
    driver_.OnStore(connection->node_id_, request,
                    [connection](const agent::StoreReply& reply) { connection->Reply(reply); });
  });
}

void Network::Abandon(const std::shared_ptr<Connection>& connection) {
  connection->events_ = {};
  BreakSoon(connection, kDelayMax);
}

void Network::SetPartitioned(const std::string& node_id, bool partitioned) {
  if (IsPartitioned(node_id) == partitioned) return;
  world_.Break({node_id, Harm::kAway}, partitioned ? "is cut off" : "can be reached again");
  partitioned_[node_id] = partitioned;
  if (!partitioned) return;
  for (const auto& connection : OpenOf(node_id)) BreakSoon(connection, absl::Seconds(8));
}

void Network::Break(const std::string& node_id) {
  if (OpenOf(node_id).empty()) return;
  world_.Break({node_id, Harm::kAway}, "its connection breaks");
  for (const auto& connection : OpenOf(node_id)) BreakSoon(connection, absl::ZeroDuration());
}

const std::vector<std::shared_ptr<Network::Connection>>& Network::OpenOf(
    const std::string& node_id) {
  auto& connections = open_[node_id];
  std::erase_if(connections, [](const auto& connection) { return connection->broken_; });
  return connections;
}

void Network::BreakSoon(const std::shared_ptr<Connection>& connection, absl::Duration within) {
  world_.timeline.After(world_.rng.Between(absl::ZeroDuration(), within), [this, connection] {
    Close(connection.get(), absl::UnavailableError("the connection broke"));
  });
}

// Closes the connection; each side notices after its own delay.
void Network::Close(Connection* connection, const absl::Status& why) {
  if (connection->broken_) return;
  connection->broken_ = true;
  const std::shared_ptr<Connection> kept = connection->shared_from_this();
  world_.timeline.After(Delay(), [kept, why] {
    if (kept->events_.on_closed) kept->events_.on_closed(why);
  });
  world_.timeline.After(Delay(), [this, kept] { driver_.OnGone(kept->node_id_, kept.get()); });
}

// --- towards the agent ------------------------------------------------------------------------

void Network::Connection::SendDesired(const agent::DesiredState& desired) {
  if (!network_.driver_.MaySend()) return;
  const bool leaves_soon = waiting_.has_value();
  waiting_ = desired;
  if (network_.world_.old_driver) {
    for (auto& job : *waiting_->mutable_jobs()) job.clear_step_duty();
    waiting_->clear_store_many_keys();
  }
  if (leaves_soon) return;
  network_.world_.timeline.After(absl::Microseconds(100),
                                 [self = shared_from_this()] { self->Leave(); });
}

void Network::Connection::Leave() {
  agent::DesiredState desired = *std::move(waiting_);
  waiting_.reset();
  if (broken_) return;
  World& world = network_.world_;
  if (world.tampering.desired) world.tampering.desired(&desired);
  const bool lost = world.storm && world.rng.Chance(0.01);
  if (lost || !network_.Passes(*this)) {
    network_.BreakSoon(shared_from_this(), kLateMax);
    if (lost)
      world.Break({node_id_, Harm::kAway}, "a desired state is lost, its connection breaks");
    return;
  }
  const int copies = world.storm && world.rng.Chance(0.02) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    world.timeline.After(network_.Delay(), [self = shared_from_this(), desired] {
      if (!self->network_.Passes(*self)) {
        return self->network_.BreakSoon(self, kLateMax);
      }
      if (self->events_.on_desired) self->events_.on_desired(desired);
    });
  }
}

void Network::Connection::Reply(const agent::StoreReply& reply) {
  World& world = network_.world_;
  if (world.storm && world.rng.Chance(0.01)) {
    world.Break({node_id_, Harm::kAway}, "an answer of the store is lost, its connection breaks");
    return network_.BreakSoon(shared_from_this(), kLateMax);
  }
  const int copies = world.storm && world.rng.Chance(0.02) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    world.timeline.After(network_.Delay(), [self = shared_from_this(), reply] {
      if (!self->network_.Passes(*self)) return self->network_.BreakSoon(self, kLateMax);
      if (self->events_.on_store) self->events_.on_store(reply);
    });
  }
}

void Network::Connection::Close(const absl::Status& why) {
  if (network_.driver_.MaySend()) network_.Close(this, why);
}

}  // namespace megascale::sim
