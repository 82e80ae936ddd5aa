// Machines that want to exchange bytes with others, for tests.
#pragma once

#include <string>

#include "proto/driver_log.pb.h"

namespace megascale::driver {

// Adds a machine that is alive and wants exchanges, since its agent started.
inline v1::NodeRecord* AddMachine(const std::string& node_id, v1::DriverState* state) {
  v1::NodeRecord* node = state->add_nodes();
  node->mutable_hello()->set_node_id(node_id);
  node->mutable_hello()->set_machine_id("machine of " + node_id);
  node->mutable_hello()->set_tests_exchange(true);
  node->set_alive(true);
  node->mutable_exchanges()->set_why("its agent started");
  return node;
}

}  // namespace megascale::driver
