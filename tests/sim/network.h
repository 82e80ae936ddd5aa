// The connections between agents and the driver, in virtual time. While the storm lasts, messages
// are late, overtake each other or arrive twice, and reports are lost. Losing a message to an agent
// breaks the connection, as with a stream. Partitions cut a node off in both directions.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "tests/sim/driver_node.h"
#include "tests/sim/world.h"

namespace megascale::sim {

// Callbacks of an agent about its connection.
struct ConnectionEvents {
  std::function<void(const agent::DesiredState&)> on_desired;
  std::function<void(const agent::StoreReply&)> on_store;
  std::function<void(const absl::Status& why)> on_closed;  // called once; the connection is dead
};

class Network {
 public:
  class Connection;

  Network(World* world, DriverNode* driver);

  // Opens a connection; null: the driver cannot be reached.
  // `peer`: who is at the agent's end, as the driver sees it.
  std::shared_ptr<Connection> Connect(const agent::Hello& hello, ConnectionEvents events,
                                      driver::AgentPeer peer);
  void Send(const std::shared_ptr<Connection>& connection, const agent::ActualState& report);
  void SendStore(const std::shared_ptr<Connection>& connection, const agent::StoreRequest& request);
  // Call when the agent's process has ended: no callback runs any more.
  void Abandon(const std::shared_ptr<Connection>& connection);

  void SetPartitioned(const std::string& node_id, bool partitioned);
  bool IsPartitioned(const std::string& node_id) const;
  // Breaks the connections of a node.
  void Break(const std::string& node_id);

 private:
  friend class Connection;
  absl::Duration Delay();
  bool Passes(const Connection& connection) const;
  void BreakSoon(const std::shared_ptr<Connection>& connection, absl::Duration within);
  void Close(Connection* connection, const absl::Status& why);
  // Returns the connections of a node that are not broken.
  const std::vector<std::shared_ptr<Connection>>& OpenOf(const std::string& node_id);

  World& world_;
  DriverNode& driver_;
  std::map<std::string, bool> partitioned_;
  std::map<std::string, std::vector<std::shared_ptr<Connection>>> open_;  // by node
};

class Network::Connection : public driver::AgentLink,
                            public std::enable_shared_from_this<Network::Connection> {
 public:
  Connection(Network* network, std::string node_id, ConnectionEvents events, driver::AgentPeer peer)
      : network_(*network),
        node_id_(std::move(node_id)),
        events_(std::move(events)),
        peer_(std::move(peer)) {}

  driver::AgentPeer peer() const override { return peer_; }
  void SendDesired(const agent::DesiredState& desired) override;
  void Close(const absl::Status& why) override;

 private:
  friend class Network;
  void Leave();
  void Reply(const agent::StoreReply& reply);

  Network& network_;
  const std::string node_id_;
  ConnectionEvents events_;
  const driver::AgentPeer peer_;
  bool broken_ = false;
  absl::Duration hello_at_;                     // when Hello reaches the driver
  std::optional<agent::DesiredState> waiting_;  // not sent yet
};

}  // namespace megascale::sim
