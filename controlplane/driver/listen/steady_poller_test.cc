#include "controlplane/driver/listen/steady_poller.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "runtime/base/fd.h"

namespace megascale::driver {
namespace {

constexpr int kWaitMilliseconds = 30'000;

// A server whose queue nobody waits for answers no handshake, unless the poller reads for it.
TEST(SteadyPollerTest, ReadsWhereNobodyElseDoes) {
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterAsyncGenericService(&service);
  const auto queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const base::UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  // HTTP/2's preface and a frame of settings that has none.
  const std::string hello =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9);
  ASSERT_EQ(::send(client.get(), hello.data(), hello.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(hello.size()));
  pollfd entry = {client.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 200), 0) << "somebody else reads, so this test shows nothing";
  {
    const SteadyPoller poller;
    EXPECT_EQ(::poll(&entry, 1, kWaitMilliseconds), 1);
  }
  std::array<char, 4> answer = {};
  EXPECT_EQ(::recv(client.get(), answer.data(), answer.size(), 0), 4);
  EXPECT_EQ(answer[3], 4) << "the server's settings";
  server->Shutdown(std::chrono::system_clock::now());
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
}

}  // namespace
}  // namespace megascale::driver
