// What other programs rely on when they use the driver's API: health, reflection, and that it
// checks what they send.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/service/testing/fake_agent_stream.h"
#include "controlplane/driver/service/testing/server_test_base.h"
#include "proto/control.grpc.pb.h"
#include "proto/reflection.grpc.pb.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class PublicApiTest : public ServerTestBase {
 protected:
  void SetUp() override {
    ServerTestBase::SetUp();
    Restart();
  }
};

// Sends one request and returns its first answer, both as bytes, because this program does not have
// the service's messages.
std::string CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                    const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  grpc::CompletionQueue queue;
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  const grpc::Slice slice(request);
  grpc::ByteBuffer answer;
  std::vector<grpc::Slice> slices;
  if (!wait()) return "no call";
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  if (!wait()) return "no write";
  call->Read(&answer, nullptr);
  if (!wait() || !answer.Dump(&slices).ok()) return "no answer";
  context.TryCancel();
  std::string bytes;
  for (const grpc::Slice& part : slices) {
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return bytes;
}

TEST_F(PublicApiTest, HealthSaysServingAndReflectionListsTheServices) {
  // HealthCheckResponse { status: SERVING }.
  EXPECT_EQ(CallRaw(channel_, "/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
  // HealthCheckRequest { service: … }.
  for (const std::string name :
       {"megascale.control.v1.JobService", "megascale.agent.v1.AgentService"}) {
    EXPECT_EQ(CallRaw(channel_, "/grpc.health.v1.Health/Check",
                      absl::StrCat("\x0a", std::string(1, static_cast<char>(name.size())), name)),
              std::string("\x08\x01"))
        << name;
  }
  EXPECT_EQ(CallRaw(channel_, "/grpc.health.v1.Health/Check", "\x0a\x04none"), "no answer");
  // ServerReflectionRequest { list_services: "" }.
  const std::string services =
      CallRaw(channel_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              std::string("\x3a\x00", 2));
  EXPECT_THAT(services, HasSubstr("megascale.control.v1.JobService"));
  EXPECT_THAT(services, HasSubstr("megascale.agent.v1.AgentService"));
}

TEST_F(PublicApiTest, ReflectionOfTheFirstVersionGivesTheWholeSchema) {
  namespace reflection = grpc::reflection::v1;
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto stub = reflection::ServerReflection::NewStub(channel_);
  const auto stream = stub->ServerReflectionInfo(&context);
  reflection::ServerReflectionRequest request;
  reflection::ServerReflectionResponse response;
  const auto ask = [&] { return stream->Write(request) && stream->Read(&response); };
  request.set_list_services("*");
  ASSERT_TRUE(ask());
  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names,
              IsSupersetOf({"megascale.control.v1.JobService", "megascale.agent.v1.AgentService",
                            "grpc.reflection.v1.ServerReflection"}));
  // Imported files come first, so that a client can build the schema in this order.
  request.set_file_containing_symbol("megascale.control.v1.JobService.SubmitJob");
  ASSERT_TRUE(ask());
  google::protobuf::DescriptorPool pool;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(bytes));
    ASSERT_NE(pool.BuildFile(file), nullptr) << file.name();
  }
  EXPECT_NE(pool.FindMethodByName("megascale.control.v1.JobService.SubmitJob"), nullptr);
  EXPECT_NE(pool.FindMessageTypeByName("megascale.job.v1.JobSpec"), nullptr);
  request.set_file_by_filename("proto/job.proto");
  ASSERT_TRUE(ask());
  EXPECT_GE(response.file_descriptor_response().file_descriptor_proto_size(), 1);
  request.set_all_extension_numbers_of_type("megascale.job.v1.JobSpec");
  ASSERT_TRUE(ask());
  EXPECT_EQ(response.all_extension_numbers_response().base_type_name(), "megascale.job.v1.JobSpec");
  request.set_file_containing_symbol("megascale.Nothing");
  ASSERT_TRUE(ask());
  EXPECT_EQ(response.error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(response.error_response().error_message(), "megascale.Nothing: not found");
  request.clear_message_request();
  ASSERT_TRUE(ask());
  EXPECT_EQ(response.error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(PublicApiTest, WhatIsNeverTakenIsRefusedWhoeverSubmitsIt) {
  const auto refusal = [this](const std::function<void(control::SubmitJobRequest*)>& spoil) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    control::SubmitJobRequest request;
    request.set_job_id("j");
    *request.mutable_spec() = SmallSpec();
    spoil(&request);
    control::SubmitJobResponse response;
    const grpc::Status status = jobs_->SubmitJob(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return status.error_message();
  };
  EXPECT_EQ(refusal([](auto* request) {
              request->set_from_checkpoint("/c");
              request->add_allow_changed("layuot");
            }),
            "allow_changed: unknown area 'layuot'; did you mean 'layout'?");
  constexpr char kWhy[] =
      " 's3://b/x' begins with s3://, which is not supported; expected a path in a mounted file "
      "system";
  EXPECT_EQ(refusal([](auto* request) { request->set_from_checkpoint("s3://b/x"); }),
            absl::StrCat("from_checkpoint:", kWhy));
  EXPECT_EQ(refusal([](auto* request) {
              request->mutable_spec()->mutable_checkpoint()->set_directory("s3://b/x");
            }),
            absl::StrCat("checkpoint.directory:", kWhy));
  EXPECT_EQ(refusal([](auto* request) {
              request->mutable_spec()->mutable_model()->set_from("s3://b/x");
            }),
            absl::StrCat("model.from:", kWhy));
  EXPECT_EQ(refusal([](auto* request) {
              request->mutable_spec()->mutable_data()->add_files("s3://b/x");
            }),
            absl::StrCat("data.files:", kWhy));
  EXPECT_EQ(refusal([](auto* request) {
              request->mutable_spec()->mutable_data()->set_tokenizer("s3://b/x");
            }),
            absl::StrCat("data.tokenizer:", kWhy));
  EXPECT_EQ(refusal([](auto* request) {
              request->mutable_spec()->mutable_data()->set_token_cache("s3://b/x");
            }),
            absl::StrCat("data.token_cache:", kWhy));
}

}  // namespace
}  // namespace megascale::driver
