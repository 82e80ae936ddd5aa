#include "controlplane/security/grpc_log.h"

#include <gtest/gtest.h>

namespace megascale::security {
namespace {

std::string ReasonOf(const std::string& openssl) {
  return RefusalReason(
      "Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL "
      "routines::" +
      openssl + ".");
}

TEST(GrpcLogTest, HandshakesThatFailedSayWhyInPlainWords) {
  EXPECT_EQ(ReasonOf("peer did not return a certificate"), "it showed no certificate");
  EXPECT_EQ(ReasonOf("certificate verify failed"),
            "its certificate has expired, or --tls-ca does not hold its authority, or it is no "
            "client's");
  EXPECT_EQ(ReasonOf("wrong version number"), "it spoke no TLS");
  EXPECT_EQ(ReasonOf("tlsv1 alert unknown ca"), "it refuses this driver's certificate");
  EXPECT_EQ(ReasonOf("no shared cipher"), "the TLS handshake failed: no shared cipher.");
}

TEST(GrpcLogTest, OtherLinesAreNoRefusals) {
  EXPECT_EQ(RefusalReason("No match found for server name: 127.0.0.1."), "");
  EXPECT_EQ(RefusalReason(""), "");
}

TEST(LineLimiterTest, OneLineAMinuteForEachTextAndTheRestIsCounted) {
  LineLimiter limiter;
  EXPECT_EQ(limiter.Admit("a", absl::Seconds(0)), "a");
  EXPECT_EQ(limiter.Admit("a", absl::Seconds(1)), "");
  EXPECT_EQ(limiter.Admit("b", absl::Seconds(1)), "b");
  EXPECT_EQ(limiter.Admit("a", absl::Seconds(59)), "");
  EXPECT_EQ(limiter.Admit("a", absl::Seconds(60)), "a (and 2 more like it)");
  EXPECT_EQ(limiter.Admit("a", absl::Seconds(120)), "a");
}

TEST(LineLimiterTest, EndlesslyManyTextsTakeBoundedMemory) {
  LineLimiter limiter;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(limiter.Admit(std::to_string(i), absl::ZeroDuration()), std::to_string(i));
  }
  EXPECT_EQ(limiter.Admit("999", absl::Seconds(1)), "");
  EXPECT_EQ(limiter.Admit("0", absl::Seconds(1)), "0") << "forgotten long ago";
}

}  // namespace
}  // namespace megascale::security
