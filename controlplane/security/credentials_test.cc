// A real server behind mutual TLS on the loopback interface, with clients that may and may not call
// it.
#include "controlplane/security/credentials.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controlplane/security/authority.h"
#include "controlplane/security/probe.h"
#include "proto/agent.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/fd.h"

namespace megascale::security {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kProbe = absl::Seconds(10);

// The status of a call that is allowed: no service has a body here, so gRPC says that it has none.
constexpr auto kLetThrough = static_cast<grpc::StatusCode>(12);

class CredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/ms-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    MakeAuthorityIn("ours");
    MakeAuthorityIn("foreign");
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
    std::filesystem::remove_all(directory_);
  }

  void MakeAuthorityIn(const std::string& name) {
    const absl::Time later = absl::Now() + absl::Hours(48);
    const absl::Time past = absl::Now() - absl::Hours(72);
    ASSERT_TRUE(MakeAuthority(absl::StrCat(directory_, "/", name), absl::Hours(480),
                              {{Role::kDriver, "driver", {"127.0.0.1"}, later},
                               {Role::kDriver, "elsewhere", {"driver.cluster"}, later},
                               {Role::kAgent, "agent", {}, later},
                               {Role::kUser, "user", {}, later},
                               {Role::kUser, "old", {}, past}})
                    .ok());
  }
  TlsFiles FilesOf(const std::string& authority, const std::string& name) const {
    const std::string folder = absl::StrCat(directory_, "/", authority, "/");
    return {folder + "ca.pem", folder + name + ".pem", folder + name + ".key"};
  }
  void Serve(const TlsFiles& files, bool insecure = false) {
    const auto credentials =
        MakeServerCredentials(*client::ParseAddress("127.0.0.1:0"), files, insecure);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", *credentials, &port);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&agents_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = *client::ParseAddress(absl::StrCat("127.0.0.1:", port));
  }
  std::shared_ptr<grpc::Channel> Channel(const std::shared_ptr<grpc::ChannelCredentials>& how) {
    return grpc::CreateChannel(address_.text, how);
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const TlsFiles& files, Role role) {
    const auto credentials = MakeChannelCredentials(address_, files, false, role);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return Channel(*credentials);
  }
  static grpc::Status CallJobs(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    control::v1::GetJobResponse response;
    return control::v1::JobService::NewStub(channel)->GetJob(&context, {}, &response);
  }
  static grpc::Status CallAgents(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto stub = agent::v1::AgentService::NewStub(channel);
    const auto stream = stub->Connect(&context);
    agent::v1::AgentDown down;
    while (stream->Read(&down)) {
    }
    return stream->Finish();
  }
  std::string Refusal(const TlsFiles& files) {
    const absl::Status status = ProbeDriver(address_, files, Role::kUser, kProbe);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    return std::string(status.message());
  }
  std::string TheDriver() const { return absl::StrCat("the driver at ", address_.text, ": "); }

  std::string directory_;
  client::Address address_;
  control::v1::JobService::Service jobs_;
  agent::v1::AgentService::Service agents_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(CredentialsTest, EachRoleCallsItsOwnServiceOnly) {
  Serve(FilesOf("ours", "driver"));
  const auto user = ChannelOf(FilesOf("ours", "user"), Role::kUser);
  const auto agent = ChannelOf(FilesOf("ours", "agent"), Role::kAgent);
  EXPECT_EQ(CallJobs(user).error_code(), kLetThrough);
  EXPECT_EQ(CallAgents(agent).error_code(), kLetThrough);
  const grpc::Status job_by_agent = CallJobs(agent);
  EXPECT_EQ(job_by_agent.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(job_by_agent.error_message(),
            "the certificate of 'agent' has the role agent; "
            "/megascale.control.v1.JobService/GetJob is for role user");
  const grpc::Status stream_by_user = CallAgents(user);
  EXPECT_EQ(stream_by_user.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(stream_by_user.error_message(),
            "the certificate of 'user' has the role user; "
            "/megascale.agent.v1.AgentService/Connect is for role agent");
  EXPECT_EQ(ProbeDriver(address_, FilesOf("ours", "user"), Role::kUser, kProbe), absl::OkStatus());
}

TEST_F(CredentialsTest, TheHandshakeRefusesWhoeverOurAuthorityDidNotSign) {
  Serve(FilesOf("ours", "driver"));
  TlsFiles foreign = FilesOf("foreign", "user");
  foreign.ca = FilesOf("ours", "user").ca;
  EXPECT_EQ(CallJobs(ChannelOf(foreign, Role::kUser)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(Refusal(foreign),
              HasSubstr(TheDriver() + "it refuses --tls-cert " + foreign.certificate +
                        ", signed by 'megascale authority"));
}

TEST_F(CredentialsTest, TheServerItselfRefusesExpiredAndMissingCertificates) {
  Serve(FilesOf("ours", "driver"));
  const auto read = [](const std::string& path) { return base::ReadFile(path, 1 << 20).value(); };
  const TlsFiles old = FilesOf("ours", "old");
  grpc::SslCredentialsOptions expired;  // around the check that our own programs make
  expired.pem_root_certs = read(old.ca);
  expired.pem_cert_chain = read(old.certificate);
  expired.pem_private_key = read(old.key);
  EXPECT_EQ(CallJobs(Channel(grpc::SslCredentials(expired))).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  grpc::SslCredentialsOptions none;
  none.pem_root_certs = expired.pem_root_certs;
  EXPECT_EQ(CallJobs(Channel(grpc::SslCredentials(none))).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CallJobs(Channel(grpc::InsecureChannelCredentials())).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CredentialsTest, AForeignDriverIsRefusedByItsClient) {
  Serve(FilesOf("foreign", "driver"));
  const TlsFiles ours = FilesOf("ours", "user");
  EXPECT_EQ(CallJobs(ChannelOf(ours, Role::kUser)).error_code(), grpc::StatusCode::UNAVAILABLE);
  const std::string why = Refusal(ours);
  EXPECT_THAT(
      why, HasSubstr(TheDriver() + "its certificate ('driver') is signed by 'megascale authority"));
  EXPECT_THAT(why, HasSubstr("which --tls-ca " + ours.ca + " does not hold"));
}

TEST_F(CredentialsTest, ADriverOfAnotherNameIsRefusedByItsClient) {
  Serve(FilesOf("ours", "elsewhere"));
  const TlsFiles ours = FilesOf("ours", "user");
  EXPECT_EQ(CallJobs(ChannelOf(ours, Role::kUser)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Refusal(ours),
            TheDriver() +
                "its certificate ('elsewhere') is for driver.cluster, not for 127.0.0.1; "
                "use one of these names, or issue one with --host 127.0.0.1");
}

TEST_F(CredentialsTest, PlaintextAndTlsThatMeetAreToldApart) {
  Serve(FilesOf("ours", "driver"));
  EXPECT_EQ(Refusal({}), TheDriver() +
                             "it speaks TLS, and this program plaintext; give --tls-ca, --tls-cert "
                             "and --tls-key instead of --insecure");
  server_->Shutdown();
  server_->Wait();
  Serve({}, /*insecure=*/true);
  EXPECT_EQ(ProbeDriver(address_, {}, Role::kUser, kProbe), absl::OkStatus());
  EXPECT_EQ(Refusal(FilesOf("ours", "user")),
            TheDriver() +
                "it speaks plaintext, and this program TLS; start the driver with --tls-ca, "
                "--tls-cert and --tls-key, or use --insecure on this machine");
}

TEST_F(CredentialsTest, NobodyThereIsNoRefusal) {
  Serve(FilesOf("ours", "driver"));
  server_->Shutdown();
  server_->Wait();
  const absl::Status status = ProbeDriver(address_, FilesOf("ours", "user"), Role::kUser, kProbe);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()),
            "no driver can be reached at " + address_.text + ": Connection refused");
}

TEST_F(CredentialsTest, NothingGoesInTheClearBeyondThisMachine) {
  const auto refused = [&](const char* address, const TlsFiles& files, bool insecure) {
    const auto parsed = *client::ParseAddress(address);
    const auto server = MakeServerCredentials(parsed, files, insecure);
    const auto channel = MakeChannelCredentials(parsed, files, insecure, Role::kUser);
    EXPECT_EQ(server.status(), channel.status());
    return std::string(channel.status().message());
  };
  EXPECT_EQ(
      refused("node:7077", {}, true),
      "node:7077 is a TCP address: it needs --tls-ca, --tls-cert and --tls-key; --insecure is "
      "for loopback addresses (127.0.0.1, [::1], localhost)");
  EXPECT_EQ(refused("0.0.0.0:7077", {}, true).find("0.0.0.0:7077 is a TCP address"), 0u);
  EXPECT_EQ(refused("localhost:7077", {}, false),
            "localhost:7077 is a TCP address: it needs --tls-ca, --tls-cert and --tls-key, or "
            "--insecure");
  EXPECT_EQ(refused("localhost:7077", FilesOf("ours", "user"), true),
            "--insecure and --tls-* exclude each other; leave --insecure out");
}

}  // namespace
}  // namespace megascale::security
