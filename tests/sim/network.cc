#include "tests/sim/network.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace megascale::sim {
namespace {

constexpr absl::Duration kDelayMin = absl::Microseconds(300);
constexpr absl::Duration kDelayMax = absl::Milliseconds(20);
constexpr absl::Duration kLateMax = absl::Seconds(3);

}  // namespace

Network::Network(World* world, DriverNode* driver) : world_(*world), driver_(*driver) {
  driver_.OnEnd([this] {
    for (const auto& [node_id, connection] : newest_) BreakSoon(connection, kDelayMax);
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
                                                      ConnectionEvents events) {
  if (!driver_.up() || IsPartitioned(hello.node_id())) return nullptr;
  auto connection = std::make_shared<Connection>(this, hello.node_id(), std::move(events));
  connection->hello_at_ = world_.timeline.now() + Delay();
  newest_[hello.node_id()] = connection;
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

void Network::Abandon(const std::shared_ptr<Connection>& connection) {
  connection->events_ = {};
  BreakSoon(connection, kDelayMax);
}

void Network::SetPartitioned(const std::string& node_id, bool partitioned) {
  if (IsPartitioned(node_id) == partitioned) return;
  world_.Fault(node_id, partitioned ? "is cut off" : "can be reached again");
  partitioned_[node_id] = partitioned;
  const auto found = newest_.find(node_id);
  if (partitioned && found != newest_.end()) BreakSoon(found->second, absl::Seconds(8));
}

void Network::Break(const std::string& node_id) {
  const auto found = newest_.find(node_id);
  if (found == newest_.end() || found->second->broken_) return;
  world_.Fault(node_id, "its connection breaks");
  BreakSoon(found->second, absl::ZeroDuration());
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
    if (lost) world.Fault(node_id_, "a desired state is lost, its connection breaks");
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

void Network::Connection::Close(const absl::Status& why) {
  if (network_.driver_.MaySend()) network_.Close(this, why);
}

}  // namespace megascale::sim
