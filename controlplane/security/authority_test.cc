#include "controlplane/security/authority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/time/clock.h"
#include "runtime/base/fd.h"

namespace megascale::security {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AuthorityTest : public ::testing::Test {
 protected:
  AuthorityTest() {
    char directory[] = "/tmp/ms-XXXXXX";
    EXPECT_NE(::mkdtemp(directory), nullptr);
    root_ = directory;
    directory_ = root_ + "/certs";
  }
  ~AuthorityTest() override { std::filesystem::remove_all(root_); }

  static CertificateRequest RequestOf(Role role, const std::string& name) {
    CertificateRequest request;
    request.role = role;
    request.name = name;
    if (role == Role::kDriver) request.hosts = {"driver.cluster", "10.0.0.1", "::1"};
    request.not_after = absl::Now() + absl::Hours(24 * 30);
    return request;
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777;
  }
  void Make() { ASSERT_TRUE(MakeAuthority(directory_, absl::Hours(24 * 100), {}).ok()); }

  std::string root_;
  std::string directory_;
};

TEST_F(AuthorityTest, MakesWhatWasAskedForWithModesThatNoUmaskOpens) {
  const mode_t before = ::umask(0);
  const auto made =
      MakeAuthority(directory_, absl::Hours(24 * 100),
                    {RequestOf(Role::kDriver, "driver"), RequestOf(Role::kUser, "alice")});
  ::umask(before);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->size(), 2u);
  EXPECT_EQ(ModeOf(directory_), 0700u);
  for (const char* name : {"ca", "driver", "alice"}) {
    EXPECT_EQ(ModeOf(directory_ + "/" + name + ".key"), 0600u);
    EXPECT_EQ(ModeOf(directory_ + "/" + name + ".pem"), 0644u);
  }
  const Certificate& driver = made->front().certificate;
  EXPECT_EQ(driver.name, "driver");
  EXPECT_EQ(driver.role, Role::kDriver);
  EXPECT_FALSE(driver.is_authority);
  EXPECT_THAT(driver.hosts, ElementsAre("driver.cluster", "10.0.0.1", "::1"));
  EXPECT_LT(driver.not_before, absl::Now());
  EXPECT_EQ(made->back().certificate.role, Role::kUser);
  EXPECT_THAT(made->back().certificate.hosts, IsEmpty());
  const auto authority =
      DescribeCertificate(base::ReadFile(directory_ + "/ca.pem", 1 << 20).value());
  ASSERT_TRUE(authority.ok());
  EXPECT_TRUE(authority->is_authority);
  EXPECT_EQ(authority->role, Role::kNone);
  EXPECT_EQ(driver.issuer, authority->name);
}

TEST_F(AuthorityTest, SerialsAreRandomAndLong) {
  Make();
  std::set<std::string> serials;
  for (int i = 0; i < 8; ++i) {
    const auto made =
        IssueCertificate(directory_, RequestOf(Role::kAgent, "n" + std::to_string(i)));
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->certificate.serial.size(), 32u);
    serials.insert(made->certificate.serial);
  }
  EXPECT_EQ(serials.size(), 8u);
}

TEST_F(AuthorityTest, NothingIsOverwritten) {
  Make();
  const std::string before = base::ReadFile(directory_ + "/ca.key", 1 << 20).value();
  const auto again = MakeAuthority(directory_, absl::Hours(1), {});
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(std::string(again.status().message()),
            directory_ +
                "/ca.key: exists and is not overwritten; remove it, or choose another name or "
                "directory");
  EXPECT_EQ(base::ReadFile(directory_ + "/ca.key", 1 << 20).value(), before);
  ASSERT_TRUE(IssueCertificate(directory_, RequestOf(Role::kUser, "u")).ok());
  EXPECT_EQ(IssueCertificate(directory_, RequestOf(Role::kUser, "u")).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(AuthorityTest, AFileInTheWayLeavesNoHalfAuthority) {
  ASSERT_TRUE(base::MakeDirectories(directory_).ok());
  ASSERT_TRUE(base::WriteFileDurably(directory_ + "/driver.pem", "mine").ok());
  const auto made = MakeAuthority(directory_, absl::Hours(1), {RequestOf(Role::kDriver, "driver")});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/ca.key"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/driver.key"));
}

// As on a full disk: no file may have more bytes than `limit`.
TEST_F(AuthorityTest, WhatAFailedWriteLeftIsRemovedSoThatItCanBeTriedAgain) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto request = RequestOf(Role::kDriver, "driver");
  // The key of the authority has 241 bytes, its certificate has about 600, the driver's 700.
  for (const rlim_t limit : {rlim_t{100}, rlim_t{300}, rlim_t{650}}) {
    const rlimit small = {limit, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto made = MakeAuthority(directory_, absl::Hours(1), {request});
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition) << limit;
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(directory_ + "/")) << limit;
    EXPECT_TRUE(std::filesystem::is_empty(directory_)) << limit;
  }
  EXPECT_TRUE(MakeAuthority(directory_, absl::Hours(1), {request}).ok());
}

TEST_F(AuthorityTest, AFolderThatOthersMayWriteToIsRefused) {
  ASSERT_TRUE(base::MakeDirectories(directory_).ok());
  ASSERT_EQ(::chmod(directory_.c_str(), 0777), 0);
  const auto made = MakeAuthority(directory_, absl::Hours(1), {});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("chmod 700 " + directory_));
}

TEST_F(AuthorityTest, BadRequestsAreRefusedByName) {
  Make();
  const auto error = [&](const CertificateRequest& request) {
    const auto made = IssueCertificate(directory_, request);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  };
  EXPECT_THAT(error(RequestOf(Role::kUser, "../alice")), HasSubstr("name '../alice'"));
  EXPECT_THAT(error(RequestOf(Role::kUser, "ca")), HasSubstr("not 'ca'"));
  EXPECT_THAT(error(RequestOf(Role::kUser, "")), HasSubstr("name ''"));
  EXPECT_THAT(error(RequestOf(Role::kNone, "x")), HasSubstr("role"));
  CertificateRequest driver = RequestOf(Role::kDriver, "d");
  driver.hosts = {"good,DNS:evil.example"};
  EXPECT_THAT(error(driver), HasSubstr("host 'good,DNS:evil.example'"));
  driver.hosts.clear();
  EXPECT_THAT(error(driver), HasSubstr("give --host"));
}

TEST_F(AuthorityTest, ACertificateEndsWithItsAuthority) {
  ASSERT_TRUE(MakeAuthority(directory_, absl::Hours(2), {}).ok());
  const auto made = IssueCertificate(directory_, RequestOf(Role::kUser, "u"));
  ASSERT_TRUE(made.ok());
  EXPECT_LE(made->certificate.not_after, absl::Now() + absl::Hours(2));
}

TEST_F(AuthorityTest, AnExpiredOrMixedUpAuthoritySignsNothing) {
  const auto missing = IssueCertificate(directory_, RequestOf(Role::kUser, "u"));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("megascale certs init"));
  ASSERT_TRUE(MakeAuthority(directory_, -absl::Minutes(5), {}).ok());
  const auto expired = IssueCertificate(directory_, RequestOf(Role::kUser, "u"));
  EXPECT_EQ(expired.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(expired.status().message()), HasSubstr("expired 0 hours ago"));
  const std::string other = root_ + "/other";
  ASSERT_TRUE(MakeAuthority(other, absl::Hours(2), {}).ok());
  std::filesystem::copy_file(directory_ + "/ca.key", other + "/ca.key",
                             std::filesystem::copy_options::overwrite_existing);
  const auto mixed = IssueCertificate(other, RequestOf(Role::kUser, "u"));
  EXPECT_EQ(std::string(mixed.status().message()),
            other + "/ca.key: is not the key of " + other + "/ca.pem");
}

TEST(CertificateTest, ValidityIsSaidInWords) {
  Certificate certificate;
  certificate.not_before = absl::FromUnixSeconds(0);
  certificate.not_after = absl::FromUnixSeconds(0) + absl::Hours(24 * 10);
  const auto at = [&](absl::Duration since) {
    return DescribeValidity(certificate, absl::FromUnixSeconds(0) + since);
  };
  EXPECT_EQ(at(absl::Hours(24)), "expires in 9 days (1970-01-11)");
  EXPECT_EQ(at(absl::Hours(24 * 10 - 1)), "expires in 1 hour (1970-01-11)");
  EXPECT_EQ(at(absl::Hours(24 * 13)), "expired 3 days ago (1970-01-11)");
  EXPECT_EQ(at(-absl::Hours(1)), "is valid only from 1970-01-01 00:00 UTC on");
}

TEST(CertificateTest, TextThatIsNoCertificateIsRefused) {
  for (const char* text :
       {"", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}) {
    EXPECT_EQ(DescribeCertificate(text).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace megascale::security
