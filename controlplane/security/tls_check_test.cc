// Every mistake in a program's own files gives one line: the option, the file, the mistake and what
// to do.
#include "controlplane/security/tls_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/time/clock.h"
#include "controlplane/security/authority.h"
#include "runtime/base/fd.h"

namespace megascale::security {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TlsCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/ms-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    const absl::Time later = absl::Now() + absl::Hours(24 * 90);
    ASSERT_TRUE(MakeAuthority(directory_, absl::Hours(24 * 100),
                              {{Role::kUser, "user", {}, later},
                               {Role::kAgent, "agent", {}, later},
                               {Role::kUser, "old", {}, absl::Now() - absl::Hours(72)}})
                    .ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  TlsFiles FilesOf(const std::string& name) const {
    return {directory_ + "/ca.pem", directory_ + "/" + name + ".pem",
            directory_ + "/" + name + ".key"};
  }
  static std::string Error(const TlsFiles& files, absl::StatusCode code) {
    const auto pems = LoadTlsFiles(files, Role::kUser);
    EXPECT_EQ(pems.status().code(), code) << pems.status();
    return std::string(pems.status().message());
  }
  static std::string Mistake(const TlsFiles& files) {
    return Error(files, absl::StatusCode::kInvalidArgument);
  }

  std::string directory_;
};

TEST_F(TlsCheckTest, GoodFilesAreRead) {
  const auto pems = LoadTlsFiles(FilesOf("user"), Role::kUser);
  ASSERT_TRUE(pems.ok()) << pems.status();
  EXPECT_THAT(pems->key, HasSubstr("PRIVATE KEY"));
  EXPECT_TRUE(LoadTlsFiles(FilesOf("agent"), Role::kAgent).ok());
}

TEST_F(TlsCheckTest, AMissingFileIsNamedWithItsOption) {
  TlsFiles files = FilesOf("user");
  files.ca.clear();
  EXPECT_EQ(Mistake(files), "mutual TLS needs all three of --tls-ca, --tls-cert and --tls-key");
  files = FilesOf("user");
  files.certificate = directory_ + "/none.pem";
  EXPECT_EQ(Mistake(files), "--tls-cert: " + files.certificate + ": No such file or directory");
  files = FilesOf("user");
  files.key = directory_ + "/none.key";
  EXPECT_EQ(Mistake(files), "--tls-key: " + files.key + ": No such file or directory");
}

TEST_F(TlsCheckTest, AKeyThatOthersMayReadIsRefusedAsSshDoes) {
  const TlsFiles files = FilesOf("user");
  ASSERT_EQ(::chmod(files.key.c_str(), 0640), 0);
  EXPECT_EQ(Mistake(files), "--tls-key " + files.key +
                                ": others may use this private key (mode 0640); chmod 600 " +
                                files.key);
}

TEST_F(TlsCheckTest, AFileThatOthersMayChangeIsRefused) {
  const TlsFiles files = FilesOf("user");
  for (const auto& [option, path] :
       {std::pair("--tls-ca", files.ca), std::pair("--tls-cert", files.certificate)}) {
    ASSERT_EQ(::chmod(path.c_str(), 0646), 0);
    EXPECT_EQ(Mistake(files), std::string(option) + " " + path +
                                  ": others may change this file (mode 0646); chmod go-w " + path);
    ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  }
  EXPECT_TRUE(LoadTlsFiles(files, Role::kUser).ok());
}

TEST_F(TlsCheckTest, AKeyOfAnotherCertificateIsRefused) {
  TlsFiles files = FilesOf("user");
  files.key = FilesOf("agent").key;
  EXPECT_EQ(Mistake(files), "--tls-key " + files.key + ": is not the key of --tls-cert " +
                                files.certificate + "; give the two that were made together");
}

TEST_F(TlsCheckTest, AnExpiredCertificateSaysSinceWhenAndHowToMakeANewOne) {
  const TlsFiles files = FilesOf("old");
  const std::string day =
      absl::FormatTime("%Y-%m-%d", absl::Now() - absl::Hours(72), absl::UTCTimeZone());
  EXPECT_EQ(Error(files, absl::StatusCode::kUnauthenticated),
            "--tls-cert " + files.certificate + ": expired 3 days ago (" + day +
                "); make a new one with `megascale certs issue DIR user NAME`");
}

TEST_F(TlsCheckTest, ACertificateOfAnotherRoleIsRefused) {
  const TlsFiles files = FilesOf("agent");
  EXPECT_EQ(Mistake(files),
            "--tls-cert " + files.certificate +
                ": is the certificate of a megascale agent, expected one with the organizational "
                "unit 'megascale user'; make one with `megascale certs issue DIR user NAME`");
  TlsFiles authority = FilesOf("ca");
  EXPECT_THAT(Mistake(authority), HasSubstr("is the certificate of no megascale role"));
}

TEST_F(TlsCheckTest, FilesThatHoldSomethingElseAreRefused) {
  const std::string text = directory_ + "/text";
  ASSERT_TRUE(base::WriteFileDurably(text, "hello").ok());
  ASSERT_EQ(::chmod(text.c_str(), 0600), 0);
  TlsFiles files = FilesOf("user");
  files.ca = text;
  EXPECT_EQ(Mistake(files), "--tls-ca " + text +
                                ": holds no readable certificate; expected PEM (-----BEGIN "
                                "CERTIFICATE-----)");
  files = FilesOf("user");
  files.key = text;
  EXPECT_EQ(Mistake(files), "--tls-key " + text +
                                ": holds no readable private key; expected PEM (-----BEGIN PRIVATE "
                                "KEY-----) without a passphrase");
}

TEST_F(TlsCheckTest, WarnsAMonthBeforeTheEnd) {
  EXPECT_THAT(ExpiryWarning(FilesOf("user"), absl::Now()), IsEmpty());
  EXPECT_THAT(ExpiryWarning(FilesOf("user"), absl::Now() + absl::Hours(24 * 80 + 1)),
              HasSubstr("user.pem: this certificate expires in 9 days"));
}

}  // namespace
}  // namespace megascale::security
