#include "runtime/base/tls/tls_tunnel.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>

#include "absl/strings/match.h"
#include "runtime/base/socket/without_sigpipe.h"
#include "runtime/base/tls/testing/test_certificates.h"

namespace megascale::base {
namespace {

constexpr int kWaitMilliseconds = 30'000;

// Reads until `size` bytes came, or the end.
std::string ReadFrom(int fd, size_t size) {
  std::string text;
  char buffer[1 << 16];
  while (text.size() < size) {
    pollfd entry = {fd, POLLIN, 0};
    if (::poll(&entry, 1, kWaitMilliseconds) != 1) break;
    const ssize_t count = ::read(fd, buffer, std::min(sizeof(buffer), size - text.size()));
    if (count == 0 || (count < 0 && errno != EAGAIN)) break;
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

void WriteTo(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    pollfd entry = {fd, POLLOUT, 0};
    ASSERT_EQ(::poll(&entry, 1, kWaitMilliseconds), 1);
    const ssize_t count =
        ::send(fd, text.data() + done, text.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) done += static_cast<size_t>(count);
  }
}

class TlsTunnelTest : public ::testing::Test {
 protected:
  TlsTunnelTest() {
    char directory[] = "/tmp/ms-tls-XXXXXX";
    EXPECT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    authority_ = std::make_unique<TestAuthority>(directory_, "ca");
  }
  ~TlsTunnelTest() override {
    if (server_.joinable()) server_.join();
    std::filesystem::remove_all(directory_);
  }

  // Starts a server with this certificate, which does `talk` once the handshake stands, and a
  // tunnel to it.
  absl::StatusOr<std::unique_ptr<TlsTunnel>> Connect(const TestCertificate& certificate,
                                                     const std::function<void(SSL*)>& talk,
                                                     bool wants_client_certificate = false) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    server_ = std::thread([=, this] {
      const WithoutSigpipe without_sigpipe;  // that of the tunnel's thread is tested
      SSL_CTX* context = SSL_CTX_new(TLS_server_method());
      SSL_CTX_use_certificate_chain_file(context, certificate.certificate_file.c_str());
      SSL_CTX_use_PrivateKey_file(context, certificate.key_file.c_str(), SSL_FILETYPE_PEM);
      if (wants_client_certificate) {
        SSL_CTX_load_verify_file(context, authority_->certificate_file().c_str());
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
      }
      SSL* ssl = SSL_new(context);
      SSL_set_fd(ssl, ends[0]);
      if (SSL_accept(ssl) == 1) talk(ssl);
      SSL_free(ssl);
      SSL_CTX_free(context);
      ::close(ends[0]);
    });
    return TlsTunnel::Start(UniqueFd(ends[1]), options_);
  }

  // Why a tunnel to a server with this certificate ends.
  absl::Status Refusal(const TestCertificate& certificate, bool wants_client_certificate = false) {
    auto tunnel = Connect(
        certificate, [](SSL*) {}, wants_client_certificate);
    EXPECT_EQ(tunnel.status(), absl::OkStatus());
    const UniqueFd plain = (*tunnel)->TakePlainEnd();
    EXPECT_EQ(ReadFrom(plain.get(), 1), "");
    return (*tunnel)->status();
  }

  std::string directory_;
  std::unique_ptr<TestAuthority> authority_;
  TlsTunnelOptions options_;
  std::thread server_;
};

TEST_F(TlsTunnelTest, BytesComeThroughInBothDirectionsWhateverTheirNumber) {
  options_.ca_file = authority_->certificate_file();
  options_.server_name = "store.example.org";
  const std::string large(3 << 20, 'x');
  auto tunnel = Connect(authority_->Issue("server", "DNS:store.example.org"), [&](SSL* ssl) {
    std::string received;
    char buffer[1 << 14];
    for (int count = 0; received.size() < large.size(); received.append(buffer, count)) {
      count = SSL_read(ssl, buffer, sizeof(buffer));
      if (count <= 0) return;
    }
    for (size_t done = 0; done < received.size();) {
      const int count =
          SSL_write(ssl, received.data() + done, static_cast<int>(received.size() - done));
      if (count <= 0) return;
      done += static_cast<size_t>(count);
    }
    SSL_read(ssl, buffer, sizeof(buffer));  // until the other side has gone
  });
  ASSERT_EQ(tunnel.status(), absl::OkStatus());
  const UniqueFd plain = (*tunnel)->TakePlainEnd();
  std::thread writer([&] { WriteTo(plain.get(), large); });
  EXPECT_TRUE(ReadFrom(plain.get(), large.size()) == large);
  writer.join();
  EXPECT_EQ((*tunnel)->status(), absl::OkStatus());
}

TEST_F(TlsTunnelTest, AnAddressIsANameToo) {
  options_.ca_file = authority_->certificate_file();
  options_.server_name = "127.0.0.1";
  auto tunnel = Connect(authority_->Issue("server", "IP:127.0.0.1"),
                        [](SSL* ssl) { SSL_write(ssl, "hello", 5); });
  ASSERT_EQ(tunnel.status(), absl::OkStatus());
  const UniqueFd plain = (*tunnel)->TakePlainEnd();
  EXPECT_EQ(ReadFrom(plain.get(), 5), "hello");
  EXPECT_EQ(ReadFrom(plain.get(), 1), "") << "the end of the session is the end of the stream";
  EXPECT_EQ((*tunnel)->status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTunnelTest, ACertificateForAnotherNameIsRefused) {
  options_.ca_file = authority_->certificate_file();
  options_.server_name = "store";
  EXPECT_EQ(
      Refusal(authority_->Issue("server", "DNS:other,IP:127.0.0.1")),
      absl::FailedPreconditionError("its certificate is not good for store: hostname mismatch"));
}

TEST_F(TlsTunnelTest, ACertificateOfAnotherAuthorityIsRefused) {
  TestAuthority other(directory_, "other");
  options_.ca_file = other.certificate_file();
  options_.server_name = "store";
  EXPECT_EQ(Refusal(authority_->Issue("server", "DNS:store")),
            absl::FailedPreconditionError("its certificate is not good for store: unable to get "
                                          "local issuer certificate"));
}

TEST_F(TlsTunnelTest, ACertificateThatHasEndedIsRefused) {
  options_.ca_file = authority_->certificate_file();
  options_.server_name = "store";
  EXPECT_EQ(Refusal(authority_->Issue("server", "DNS:store", -1)),
            absl::FailedPreconditionError(
                "its certificate is not good for store: certificate has expired"));
}

TEST_F(TlsTunnelTest, AServerThatWantsACertificateRefusesWhoHasNone) {
  options_.ca_file = authority_->certificate_file();
  options_.server_name = "store";
  const absl::Status refused = Refusal(authority_->Issue("server", "DNS:store"), true);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "certificate required")) << refused;
  server_.join();
  const TestCertificate client = authority_->Issue("client", "DNS:client");
  options_.certificate_file = client.certificate_file;
  options_.key_file = client.key_file;
  auto tunnel = Connect(
      authority_->Issue("server", "DNS:store"), [](SSL* ssl) { SSL_write(ssl, "hello", 5); }, true);
  ASSERT_EQ(tunnel.status(), absl::OkStatus());
  EXPECT_EQ(ReadFrom((*tunnel)->TakePlainEnd().get(), 5), "hello");
}

TEST_F(TlsTunnelTest, AServerThatSpeaksNoTlsIsRefusedAndOneThatIsSilentTimesOut) {
  options_.ca_file = authority_->certificate_file();
  options_.server_name = "store";
  options_.handshake_timeout = absl::Milliseconds(50);
  for (const std::string said : {"-ERR what is this?\r\n", ""}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd server(ends[0]);
    auto tunnel = TlsTunnel::Start(UniqueFd(ends[1]), options_);
    ASSERT_EQ(tunnel.status(), absl::OkStatus());
    WriteTo(server.get(), said);
    EXPECT_EQ(ReadFrom((*tunnel)->TakePlainEnd().get(), 1), "");
    EXPECT_EQ((*tunnel)->status(),
              said.empty() ? absl::DeadlineExceededError("no TLS handshake within 50ms")
                           : absl::FailedPreconditionError("TLS: wrong version number"));
  }
}

TEST_F(TlsTunnelTest, AFileThatIsNoneIsNamed) {
  const TestCertificate server = authority_->Issue("server", "DNS:store");
  options_.server_name = "store";
  options_.ca_file = directory_ + "/gone.pem";
  EXPECT_EQ(Connect(server, [](SSL*) {}).status(),
            absl::FailedPreconditionError(options_.ca_file +
                                          ": No such file or directory; expected a PEM file that "
                                          "this process can read"));
  server_.join();
  options_.ca_file = authority_->certificate_file();
  options_.certificate_file = server.certificate_file;
  options_.key_file = authority_->Issue("another", "DNS:another").key_file;
  EXPECT_EQ(Connect(server, [](SSL*) {}).status(),
            absl::FailedPreconditionError(options_.key_file +
                                          ": key values mismatch; expected a PEM file that this "
                                          "process can read"));
}

TEST_F(TlsTunnelTest, ItEndsAtOnceWhileTheServerIsSilent) {
  options_.ca_file = authority_->certificate_file();
  options_.server_name = "store";
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd server(ends[0]);
  auto tunnel = TlsTunnel::Start(UniqueFd(ends[1]), options_);
  ASSERT_EQ(tunnel.status(), absl::OkStatus());
  tunnel->reset();
}

}  // namespace
}  // namespace megascale::base
