#include "controlplane/address/address.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace megascale::client {
namespace {

std::string ErrorOf(const std::string& text) {
  const auto address = ParseAddress(text);
  if (address.ok()) return "no error";
  EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(address.status().message());
}

TEST(AddressTest, NormalisesUnixSockets) {
  for (const char* text : {"unix:/run/d.sock", "unix:///run/d.sock", "/run/d.sock"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->text, "unix:/run/d.sock");
    EXPECT_EQ(address->unix_path, "/run/d.sock");
    EXPECT_TRUE(address->is_unix());
    EXPECT_FALSE(address->loopback);
  }
}

TEST(AddressTest, SplitsHostAndPort) {
  const auto address = ParseAddress("node-1.cluster:7077");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->host, "node-1.cluster");
  EXPECT_EQ(address->port, 7077);
  EXPECT_EQ(address->text, "node-1.cluster:7077");
  EXPECT_FALSE(address->is_unix());
  EXPECT_FALSE(address->loopback);
}

TEST(AddressTest, KnowsLoopback) {
  for (const char* text : {"localhost:1", "127.0.0.1:1", "127.9.9.9:0", "[::1]:65535"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_TRUE(address->loopback) << text;
    EXPECT_EQ(address->text, text);
  }
  EXPECT_FALSE(ParseAddress("[::]:1")->loopback);
  EXPECT_FALSE(ParseAddress("0.0.0.0:1")->loopback);
}

TEST(AddressTest, SaysWhatIsWrong) {
  EXPECT_EQ(ErrorOf(""), "address '' is empty; expected unix:/absolute/path or host:port");
  EXPECT_EQ(ErrorOf("host"),
            "address 'host' has no port; expected unix:/absolute/path or host:port");
  EXPECT_EQ(ErrorOf(":80"), "address ':80' has no host; expected unix:/absolute/path or host:port");
  EXPECT_EQ(ErrorOf("http://h:80"),
            "address 'http://h:80' has no host; expected unix:/absolute/path or host:port");
  EXPECT_EQ(ErrorOf("::1:80"),
            "address '::1:80' has several colons; write an IPv6 address as [::1]:port");
  EXPECT_EQ(ErrorOf("h:99999"), "address 'h:99999' has the port '99999'; expected 0 to 65535");
  EXPECT_EQ(ErrorOf("h:x"), "address 'h:x' has the port 'x'; expected 0 to 65535");
  EXPECT_EQ(
      ErrorOf("unix:run/d.sock"),
      "address 'unix:run/d.sock' has no absolute path; expected unix:/absolute/path or host:port");
  const std::string path = "/" + std::string(107, 'a');
  EXPECT_EQ(ErrorOf(path),
            "address '" + path +
                "' has a path of 108 bytes; a socket's path has at most 107, choose a "
                "shorter directory");
}

TEST(AddressTest, ChoosesOptionThenEnvironmentThenDefault) {
  setenv("MEGASCALE_ADDRESS", "localhost:5", 1);
  EXPECT_EQ(ChooseAddress("localhost:6")->text, "localhost:6");
  EXPECT_EQ(ChooseAddress("")->text, "localhost:5");
  setenv("MEGASCALE_ADDRESS", "nonsense", 1);
  EXPECT_EQ(std::string(ChooseAddress("").status().message()),
            "MEGASCALE_ADDRESS: address 'nonsense' has no port; expected unix:/absolute/path or "
            "host:port");
  unsetenv("MEGASCALE_ADDRESS");
  EXPECT_EQ(ChooseAddress("")->text, DefaultAddress());
}

TEST(AddressTest, DefaultIsInTheRuntimeDirectoryOrTmp) {
  setenv("XDG_RUNTIME_DIR", "/tmp", 1);
  EXPECT_EQ(DefaultAddress(), "unix:/tmp/megascale/driver.sock");
  setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
  EXPECT_EQ(DefaultAddress(), "unix:/tmp/megascale-" + std::to_string(getuid()) + "/driver.sock");
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(DefaultAddress(), "unix:/tmp/megascale-" + std::to_string(getuid()) + "/driver.sock");
}

}  // namespace
}  // namespace megascale::client
