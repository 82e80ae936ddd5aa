#include "runtime/comm/store/redis/address.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/comm/store/redis/password_file.h"

namespace megascale::comm {
namespace {

std::string TextOf(const std::string& text) {
  const auto address = ParseRedisAddress(text);
  return address.ok() ? ToText(*address) : std::string(address.status().message());
}

TEST(RedisAddressTest, EveryFormIsReadAndShownInOneWay) {
  EXPECT_EQ(TextOf("redis://host"), "redis://host:6379");
  EXPECT_EQ(TextOf("redis://host/"), "redis://host:6379");
  EXPECT_EQ(TextOf("redis://10.0.0.5:7000/3"), "redis://10.0.0.5:7000/3");
  EXPECT_EQ(TextOf("rediss://trainer@cache.example.org"),
            "rediss://trainer@cache.example.org:6379");
  EXPECT_EQ(TextOf("redis://[::1]"), "redis://[::1]:6379");
  EXPECT_EQ(TextOf("redis://[fe80::1%eth0]:7000"), "redis://[fe80::1%eth0]:7000");
  EXPECT_EQ(TextOf("unix:/run/redis.sock"), "redis+unix:///run/redis.sock");
  EXPECT_EQ(TextOf("unix:///run/redis.sock"), "redis+unix:///run/redis.sock");
  EXPECT_EQ(TextOf("redis+unix:///run/redis.sock"), "redis+unix:///run/redis.sock");
  EXPECT_EQ(ParseRedisAddress(TextOf("rediss://a@[::1]:1/2")).value(),
            ParseRedisAddress("rediss://a@[::1]:1/2").value());
}

constexpr char kForms[] =
    "; expected redis://[USER@]HOST[:PORT][/DATABASE], the same with rediss:// for TLS, or "
    "unix:/PATH";

TEST(RedisAddressTest, AMistakeIsNamedWithWhatWasExpected) {
  const auto refusal = [](const std::string& text, const std::string& why) {
    EXPECT_EQ(ParseRedisAddress(text).status(),
              absl::InvalidArgumentError(absl::StrCat("'", text, "' ", why, kForms)));
  };
  refusal("", "is no address of a store");
  refusal("localhost:6379", "is no address of a store");
  refusal("http://host", "is no address of a store");
  refusal("redis://", "has no host");
  refusal("redis://:7000", "has no host");
  refusal("redis://host:", "has no port from 1 to 65535");
  refusal("redis://host:0", "has no port from 1 to 65535");
  refusal("redis://host:65536", "has no port from 1 to 65535");
  refusal("redis://host:+1", "has no port from 1 to 65535");
  refusal("redis://host/x", "has no database number from 0 to 9999");
  refusal("redis://host/-1", "has no database number from 0 to 9999");
  refusal("redis://host?db=1", "has no host name in it");
  refusal("redis://[::1", "has a [ without its ]");
  refusal("redis://[::1]x", "has something behind its ]");
  refusal("unix:redis.sock", "has no absolute path of a Unix socket");
  refusal("unix:/a b", "has a character that no path here has");
}

TEST(RedisAddressTest, APasswordIsRefusedAndNotRepeated) {
  for (const std::string text :
       {"redis://:s3cret@host", "redis://user:s3cret@host:7000/1", "rediss://:s3cret@host",
        "redis://:s3@cret@host", "reds://:s3cret@host", "redis://s3cret!@host",
        "redis:///s3cret:x@host"}) {
    const auto address = ParseRedisAddress(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_FALSE(absl::StrContains(address.status().message(), "cret")) << address.status();
  }
  EXPECT_EQ(TextOf("redis://:s3cret@host"),
            "holds a password, which status and every checkpoint would show; expected "
            "redis://[USER@]HOST[:PORT][/DATABASE]: put the password into a file and start agents "
            "with --store-passwords FILE");
}

class PasswordFileTest : public ::testing::Test {
 protected:
  PasswordFileTest() {
    char path[] = "/tmp/ms-passwords-XXXXXX";
    EXPECT_GE(base::UniqueFd(::mkstemp(path)).get(), 0);
    path_ = path;
  }
  ~PasswordFileTest() override { ::unlink(path_.c_str()); }

  void Write(const std::string& text) {
    EXPECT_EQ(base::WriteFileDurably(path_, text), absl::OkStatus());
    EXPECT_EQ(::chmod(path_.c_str(), 0600), 0);
  }
  absl::StatusOr<std::string> Find(const std::string& address) const {
    return FindPassword(path_, ParseRedisAddress(address).value());
  }

  std::string path_;
};

TEST_F(PasswordFileTest, APasswordIsForTheServerOfItsLineOnly) {
  Write(
      "# of the cluster\n\nredis://a:7000 one word\nredis://u@a:7000\ttwo \nrediss://a:7000 three\n"
      "unix:/run/r.sock four");
  EXPECT_EQ(Find("redis://a:7000/5").value(), "one word");
  EXPECT_EQ(Find("redis://u@a:7000").value(), "two");
  EXPECT_EQ(Find("rediss://a:7000").value(), "three");
  EXPECT_EQ(Find("redis+unix:///run/r.sock").value(), "four");
  EXPECT_EQ(Find("redis://evil:7000").value(), "");
  EXPECT_EQ(Find("redis://v@a:7000").value(), "");
}

TEST_F(PasswordFileTest, AFileThatIsNoneIsNamedWithoutWhatItHolds) {
  const std::string where = "--store-passwords " + path_;
  Write("redis://a:7000 one\ns3cret\n");
  EXPECT_EQ(
      Find("redis://b").status(),
      absl::FailedPreconditionError(where + ":2: expected an address, a space and a password, "
                                            "such as redis://10.0.0.5:6379 secret"));
  EXPECT_EQ(::chmod(path_.c_str(), 0604), 0);
  EXPECT_EQ(Find("redis://a:7000").status(),
            absl::FailedPreconditionError(
                where + ": every user may read it; make it private: chmod 600 " + path_));
  const std::string gone = path_ + "-gone";
  EXPECT_EQ(
      FindPassword(gone, {}).status(),
      absl::FailedPreconditionError("--store-passwords " + gone + ": No such file or directory"));
}

}  // namespace
}  // namespace megascale::comm
