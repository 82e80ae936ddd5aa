// A driver behind its real socket, with a real log in a folder that goes with the test.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "controlplane/driver/service/driver_server.h"
#include "proto/control.grpc.pb.h"

namespace megascale::driver {

// A job that is right, of one rank, and so small that no test waits for it.
job::v1::JobSpec SmallSpec();

class ServerTestBase : public ::testing::Test {
 protected:
  // Makes the folder, and options of a driver in it. Nothing is started.
  void SetUp() override;
  void TearDown() override;

  // Starts the driver, after the one before it has stopped, and connects to it.
  void Restart();

  std::string directory_;
  DriverOptions options_;
  std::unique_ptr<DriverServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<control::v1::JobService::Stub> jobs_;
};

}  // namespace megascale::driver
