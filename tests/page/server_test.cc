// What the web server refuses and survives.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/http/http_server.h"
#include "controlplane/http/request_guard.h"
#include "runtime/base/fd.h"

namespace megascale::http {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// --- the guard --------------------------------------------------------------------------------

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

RequestGuard Guard() { return RequestGuard({"127.0.0.1", "localhost"}, 7078, false, kToken); }

RequestHead GoodHead() {
  return {.method = "GET",
          .host = "127.0.0.1:7078",
          .origin = "",
          .cookie = absl::StrCat("other=1; megascale_7078=", kToken),
          .authorization = "",
          .token = ""};
}

TEST(RequestGuardTest, ServesWhoHasTheTokenInACookieOrAsABearer) {
  EXPECT_EQ(Guard().Judge(GoodHead()), Verdict::kServe);
  RequestHead head = GoodHead();
  head.cookie = "";
  EXPECT_EQ(Guard().Judge(head), Verdict::kMissingToken);
  head.authorization = absl::StrCat("bearer ", kToken);
  EXPECT_EQ(Guard().Judge(head), Verdict::kServe);
  head.authorization = "Bearer 0123456789abcdef0123456789abcdee";
  EXPECT_EQ(Guard().Judge(head), Verdict::kMissingToken);
}

TEST(RequestGuardTest, ATokenInTheQueryBecomesACookieThatOtherSitesDoNotSend) {
  RequestHead head = GoodHead();
  head.token = kToken;
  EXPECT_EQ(Guard().Judge(head), Verdict::kSetCookie);
  EXPECT_THAT(Guard().SetCookie(), HasSubstr("HttpOnly; SameSite=Strict"));
  head.token = "wrong";
  EXPECT_EQ(Guard().Judge(head), Verdict::kMissingToken);
}

TEST(RequestGuardTest, RefusesOtherHostsOriginsAndMethods) {
  RequestHead head = GoodHead();
  for (const char* host :
       {"evil.example:7078", "127.0.0.1", "127.0.0.1:80", "", "localhost.evil"}) {
    head.host = host;
    EXPECT_EQ(Guard().Judge(head), Verdict::kWrongHost) << host;
  }
  head.host = "LOCALHOST:7078";
  EXPECT_EQ(Guard().Judge(head), Verdict::kServe);
  for (const char* origin :
       {"http://evil.example", "null", "https://localhost:7078", "http://localhost"}) {
    head.origin = origin;
    EXPECT_EQ(Guard().Judge(head), Verdict::kWrongOrigin) << origin;
  }
  head.origin = "http://localhost:7078";
  EXPECT_EQ(Guard().Judge(head), Verdict::kServe);
  head.method = "POST";
  EXPECT_EQ(Guard().Judge(head), Verdict::kBadMethod);
}

TEST(RequestGuardTest, AnAddressOfIpV6StandsInBrackets) {
  const RequestGuard guard({"::1"}, 443, true, kToken);
  RequestHead head = GoodHead();
  head.cookie = absl::StrCat("megascale_443=", kToken);
  head.host = "[::1]";
  EXPECT_EQ(guard.Judge(head), Verdict::kServe) << "browsers leave out the port of https";
  EXPECT_THAT(guard.SetCookie(), HasSubstr("Secure"));
}

// --- the server -------------------------------------------------------------------------------

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(int connections_max = 64) {
    HttpOptions options;
    options.address = "127.0.0.1:0";
    options.token = kToken;
    options.connections_max = connections_max;
    options.event_interval = absl::Milliseconds(1);
    options.answer = [](const http::Request& request) {
      Response response;
      response.body = absl::StrCat("path ", request.path, " a ",
                                   request.query.count("a") ? request.query.at("a") : "none");
      if (request.path == "/size") response.body.assign(std::stoul(request.query.at("bytes")), 'x');
      return response;
    };
    options.events = [](const http::Request& request) -> std::unique_ptr<EventSource> {
      class Counter : public EventSource {
        std::string Next() override { return absl::StrCat("data: ", ++count_, "\n\n"); }
        int count_ = 0;
      };
      if (request.path != "/events") return nullptr;
      return std::make_unique<Counter>();
    };
    auto server = HttpServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  base::UniqueFd Connect() {
    base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit = {.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static void Send(const base::UniqueFd& fd, const std::string& text) {
    EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Reads until the end, or until `end` occurs.
  static std::string Read(const base::UniqueFd& fd, const std::string& end = "") {
    std::string text;
    char block[4096];
    for (;;) {
      const ssize_t got = ::recv(fd.get(), block, sizeof(block), 0);
      if (got <= 0) return text;
      text.append(block, static_cast<size_t>(got));
      if (!end.empty() && absl::StrContains(text, end)) return text;
    }
  }
  std::string Request(const std::string& line, const std::string& headers) {
    const base::UniqueFd fd = Connect();
    Send(fd, absl::StrCat(line, " HTTP/1.1\r\nHost: 127.0.0.1:", server_->port(),
                          "\r\nConnection: close\r\n", headers, "\r\n"));
    return Read(fd);
  }
  std::string Bearer() const { return absl::StrCat("Authorization: Bearer ", kToken, "\r\n"); }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWithHeadersThatForbidForeignScripts) {
  Start();
  const std::string answer = Request("GET /x%20y?a=%3Cb%3E", Bearer());
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("path /x y a <b>"));
  EXPECT_THAT(answer, HasSubstr("Content-Security-Policy: default-src 'none'"));
  EXPECT_THAT(answer, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff"));
}

TEST_F(HttpServerTest, WithoutTheTokenItSaysOnlyWhereToFindIt) {
  Start();
  EXPECT_THAT(Request("GET /", ""), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Request("GET /events", ""), StartsWith("HTTP/1.1 401"));
  const std::string redirect = Request(absl::StrCat("GET /?token=", kToken), "");
  EXPECT_THAT(redirect, StartsWith("HTTP/1.1 303"));
  EXPECT_THAT(redirect, HasSubstr(absl::StrCat("Set-Cookie: megascale_", server_->port())));
  EXPECT_THAT(redirect, HasSubstr("Location: /\r\n"));
}

TEST_F(HttpServerTest, RequestsOfOtherSitesAndForOtherHostsAreRefused) {
  Start();
  EXPECT_THAT(Request("GET /", absl::StrCat("Origin: http://evil\r\n", Bearer())),
              StartsWith("HTTP/1.1 403"));
  const std::string own =
      absl::StrCat("Origin: http://127.0.0.1:", server_->port(), "\r\n", Bearer());
  EXPECT_THAT(Request("GET /", own), StartsWith("HTTP/1.1 200"));
  const base::UniqueFd fd = Connect();
  Send(fd, absl::StrCat("GET / HTTP/1.1\r\nHost: evil:", server_->port(),
                        "\r\nConnection: close\r\n", Bearer(), "\r\n"));
  EXPECT_THAT(Read(fd), AllOf(StartsWith("HTTP/1.1 421"), Not(HasSubstr("path /"))));
}

TEST_F(HttpServerTest, AnAnswerThatIsTooLongIsNotSent) {
  Start();
  EXPECT_THAT(Request(absl::StrCat("GET /size?bytes=", kAnswerBytesMax), Bearer()),
              StartsWith("HTTP/1.1 200"));
  const std::string answer =
      Request(absl::StrCat("GET /size?bytes=", kAnswerBytesMax + 1), Bearer());
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr("the answer would have 1048577 bytes"));
}

TEST_F(HttpServerTest, ABodyOrAnotherMethodIsNotTaken) {
  Start();
  EXPECT_THAT(Request("DELETE /", Bearer()), StartsWith("HTTP/1.1 405"));
  const std::string body = absl::StrCat("Content-Length: 5\r\n", Bearer());
  EXPECT_THAT(Request("POST /", body), StartsWith("HTTP/1.1 405"));
}

TEST_F(HttpServerTest, AHeadThatIsTooLongEndsTheConnection) {
  Start();
  const std::string answer =
      Request("GET /", absl::StrCat("X-Long: ", std::string(100'000, 'x'), "\r\n", Bearer()));
  EXPECT_THAT(answer, Not(HasSubstr("path /")));
  EXPECT_THAT(Request("GET /", Bearer()), HasSubstr("path /"));
}

TEST_F(HttpServerTest, ClientsThatHoldAllConnectionsKeepOthersOutOnlyUntilTheyGo) {
  Start(/*connections_max=*/3);
  std::vector<base::UniqueFd> idle;
  for (int i = 0; i < 3; ++i) {
    idle.push_back(Connect());
    Send(idle.back(), "GET / HT");
  }
  // The fourth one is closed, or answered if it came before the server counted the others.
  const base::UniqueFd fourth = Connect();
  idle.clear();
  std::string answer;
  for (int tries = 0; tries < 1000 && !absl::StrContains(answer, "path /"); ++tries) {
    answer = Request("GET /", Bearer());
  }
  EXPECT_THAT(answer, HasSubstr("path /"));
}

TEST_F(HttpServerTest, EventsComeOneAfterTheOtherUntilTheServerEnds) {
  Start();
  const base::UniqueFd fd = Connect();
  Send(fd, absl::StrCat("GET /events HTTP/1.1\r\nHost: 127.0.0.1:", server_->port(), "\r\n",
                        Bearer(), "\r\n"));
  const std::string text = Read(fd, "data: 3\n");
  EXPECT_THAT(text, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(text, HasSubstr("data: 1\n"));
  server_.reset();
  Read(fd);  // ends
}

TEST_F(HttpServerTest, OffThisMachineItNeedsTls) {
  HttpOptions options;
  options.address = "0.0.0.0:0";
  options.token = kToken;
  const auto plain = HttpServer::Start(options);
  EXPECT_EQ(plain.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(plain.status().message(), HasSubstr("off this machine it needs TLS"));
  options.address = "unix:/tmp/x";
  EXPECT_EQ(HttpServer::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megascale::http
