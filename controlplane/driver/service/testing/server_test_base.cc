#include "controlplane/driver/service/testing/server_test_base.h"

#include <stdlib.h>

#include <filesystem>
#include <utility>

namespace megascale::driver {

job::v1::JobSpec SmallSpec() {
  job::v1::JobSpec spec;
  spec.set_name("small");
  spec.mutable_model()->set_hidden_size(32);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_num_attention_heads(2);
  spec.mutable_data()->add_files("/usr/share/common-licenses/GPL-3");
  spec.mutable_train()->set_steps(3);
  spec.mutable_train()->set_seq_length(16);
  spec.mutable_train()->set_global_batch_size(2);
  spec.mutable_train()->set_micro_batch_size(1);
  return spec;
}

void ServerTestBase::SetUp() {
  char name[] = "/tmp/ms-XXXXXX";  // short: a socket is made in it
  ASSERT_NE(::mkdtemp(name), nullptr);
  directory_ = name;
  options_.listen_address = "unix:" + directory_ + "/run/driver.sock";
  options_.state_directory = directory_ + "/state";
}

void ServerTestBase::TearDown() {
  server_.reset();
  std::filesystem::remove_all(directory_);
}

void ServerTestBase::Restart() {
  server_.reset();
  auto server = DriverServer::Start(options_);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  channel_ = grpc::CreateChannel(options_.listen_address, grpc::InsecureChannelCredentials());
  jobs_ = control::v1::JobService::NewStub(channel_);
}

}  // namespace megascale::driver
