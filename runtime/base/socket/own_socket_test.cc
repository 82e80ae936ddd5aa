#include "runtime/base/socket/own_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/socket/testing/test_user.h"
#include "runtime/base/socket/without_sigpipe.h"

namespace megascale::base {
namespace {

using ::testing::HasSubstr;

constexpr char kAdvice[] = "use another one";

class OwnSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = "/tmp/ms-XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Folder(mode_t mode = 0700) const {
    const std::string folder = directory_ + "/f";
    EXPECT_EQ(::mkdir(folder.c_str(), mode), 0);
    EXPECT_EQ(::chmod(folder.c_str(), mode), 0);
    return folder;
  }
  static void GiveAway(const std::string& path) {
    ASSERT_EQ(::geteuid(), 0u) << "this test needs a second user: run it as root";
    ASSERT_EQ(::lchown(path.c_str(), kOtherUser, kOtherUser), 0);
  }
  static void ExpectRefused(const absl::Status& status, const std::string& message) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_EQ(std::string(status.message()), message);
  }

  std::string directory_;
  const std::string other_ = DescribeUser(kOtherUser);
  const std::string self_ = DescribeUser(::geteuid());
};

TEST_F(OwnSocketTest, TakesAFolderThatIsTheUsersAlone) {
  EXPECT_EQ(CheckOwnFolder(Folder(), kAdvice), absl::OkStatus());
  EXPECT_EQ(CheckOwnFolder(directory_ + "/f/", kAdvice), absl::OkStatus());
  EXPECT_EQ(MakeOwnFolder(directory_ + "/a/b", kAdvice), absl::OkStatus());
  EXPECT_EQ(CheckOwnFolder(directory_ + "/a/b/../b", kAdvice), absl::OkStatus());
}

TEST_F(OwnSocketTest, SaysThatThereIsNoFolderOrSocket) {
  EXPECT_EQ(CheckOwnFolder(directory_ + "/none", kAdvice).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CheckOwnSocket(directory_ + "/none", kAdvice).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(
      ConnectOwnSocket(directory_ + "/none/d.sock", absl::ZeroDuration(), kAdvice).status().code(),
      absl::StatusCode::kUnavailable);
}

TEST_F(OwnSocketTest, RefusesAFolderOfAnotherUser) {
  const std::string folder = Folder();
  GiveAway(folder);
  const std::string expected = absl::StrCat(folder, ": belongs to ", other_, ", expected ", self_,
                                            ", this process's user; use another one");
  ExpectRefused(CheckOwnFolder(folder, kAdvice), expected);
  ExpectRefused(MakeOwnFolder(folder, kAdvice), expected);
  ExpectRefused(TakeOwnFolder(folder, kAdvice), expected);
  ExpectRefused(CheckOwnSocket(folder + "/d.sock", kAdvice), expected);
  ExpectRefused(ConnectOwnSocket(folder + "/d.sock", absl::ZeroDuration(), kAdvice).status(),
                expected);
}

TEST_F(OwnSocketTest, RefusesAFolderThatOthersCanEnter) {
  for (const mode_t mode : {0710, 0701, 0755, 0770, 01777}) {
    const std::string folder = Folder(mode);
    const absl::Status status = CheckOwnFolder(folder, kAdvice);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << mode;
    EXPECT_TRUE(absl::StrContains(
        status.message(),
        absl::StrCat(", expected 0700, closed to others: ",
                     mode == 01777 ? "make a folder inside it" : "chmod 700 " + folder,
                     "; or use")))
        << status;
    EXPECT_EQ(TakeOwnFolder(folder, kAdvice), absl::OkStatus());
    EXPECT_EQ(CheckOwnFolder(folder, kAdvice), absl::OkStatus());
    std::filesystem::remove(folder);
  }
}

TEST_F(OwnSocketTest, TrustsAFolderThatOthersMayReadButNotWrite) {
  const std::string folder = directory_ + "/state";
  ASSERT_EQ(::mkdir(folder.c_str(), 0755), 0);
  EXPECT_TRUE(CheckTrustedFolder(folder, "advice").ok());
  for (const mode_t mode : {0777, 0757, 01777}) {
    ASSERT_EQ(::chmod(folder.c_str(), mode), 0);
    const absl::Status refused = CheckTrustedFolder(folder, "give another --state-dir");
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(refused.message()),
                ::testing::AllOf(HasSubstr(folder + ": has mode "),
                                 HasSubstr("; or give another --state-dir")));
  }
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  ASSERT_TRUE(WriteFileDurably(folder + "/planted", "x").ok());
  ASSERT_EQ(::chmod((folder + "/planted").c_str(), 0666), 0);
  EXPECT_THAT(std::string(CheckTrustedFolder(folder, "advice").message()),
              HasSubstr("/planted: has mode 0666, expected that only its owner may write to it"));
  ASSERT_EQ(::chmod((folder + "/planted").c_str(), 0644), 0);
  EXPECT_TRUE(CheckTrustedFolder(folder, "advice").ok());
}

TEST_F(OwnSocketTest, TrustsALinkInAFolderOnlyIfItLeadsToWhatOthersCannotWrite) {
  const std::string folder = directory_ + "/state";
  const std::string disk = directory_ + "/disk";
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(::mkdir(disk.c_str(), 0755), 0);
  ASSERT_EQ(::symlink(disk.c_str(), (folder + "/log").c_str()), 0);
  EXPECT_EQ(CheckTrustedFolder(folder, "advice"), absl::OkStatus());
  ASSERT_EQ(::chmod(disk.c_str(), 0777), 0);
  EXPECT_THAT(std::string(CheckTrustedFolder(folder, "advice").message()),
              HasSubstr("/disk: has mode 0777, expected that only its owner may write to it"));
  ASSERT_EQ(::rmdir(disk.c_str()), 0);
  EXPECT_EQ(CheckTrustedFolder(folder, "advice"), absl::OkStatus()) << "it leads nowhere";
}

TEST_F(OwnSocketTest, TheGroupOfOneUserIsThatUser) {
  struct stat info = {};
  info.st_uid = info.st_gid = 0;  // root has a group of its own
  for (const auto& [mode, others] : {std::pair(0700, false), std::pair(0755, false),
                                     std::pair(0775, false), std::pair(0777, true)}) {
    info.st_mode = static_cast<mode_t>(mode);
    EXPECT_EQ(OthersMayWrite(info), others) << mode;
  }
  info.st_mode = 0775;
  info.st_gid = 1;  // daemon
  EXPECT_TRUE(OthersMayWrite(info));
}

TEST_F(OwnSocketTest, RefusesAFileThatAnotherUserPlanted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a file of another user";
  const std::string folder = directory_ + "/state";
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  const std::string path = folder + "/http-token";
  ASSERT_TRUE(WriteFileDurably(path, "x").ok());
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(CheckSecretFile(path, "advice").ok());
  if (::chown(path.c_str(), 65534, 65534) != 0) GTEST_SKIP() << "there are no other users here";
  EXPECT_THAT(std::string(CheckTrustedFolder(folder, "advice").message()),
              HasSubstr("http-token: belongs to "));
  EXPECT_THAT(std::string(CheckSecretFile(path, "advice").message()),
              HasSubstr("http-token: belongs to "));
}

TEST_F(OwnSocketTest, RefusesASecretThatOthersMayRead) {
  const std::string path = directory_ + "/secret";
  EXPECT_EQ(CheckSecretFile(path, "advice").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileDurably(path, "x").ok());
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  EXPECT_EQ(CheckSecretFile(path, "remove it"),
            absl::PermissionDeniedError(
                path + ": has mode 0640, expected 0600, closed to others; remove it"));
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(CheckSecretFile(path, "remove it").ok());
  const std::string link = directory_ + "/link";
  ASSERT_EQ(::symlink(path.c_str(), link.c_str()), 0);
  EXPECT_THAT(std::string(CheckSecretFile(link, "remove it").message()),
              HasSubstr("is a symbolic link, expected a regular file"));
}

TEST_F(OwnSocketTest, RefusesALinkInPlaceOfAFolder) {
  const std::string folder = Folder();
  const std::string link = directory_ + "/link";
  ASSERT_EQ(::symlink(folder.c_str(), link.c_str()), 0);
  const std::string expected = absl::StrCat(link, ": is a symbolic link, expected a directory of ",
                                            self_, " with mode 0700; use another one");
  ExpectRefused(CheckOwnFolder(link, kAdvice), expected);
  ExpectRefused(TakeOwnFolder(link + "/", kAdvice), expected);
}

TEST_F(OwnSocketTest, RefusesAFolderThatAnotherUserCouldReplace) {
  const std::string folder = Folder();
  const std::string inner = folder + "/inner";
  ASSERT_EQ(MakeOwnFolder(inner, kAdvice), absl::OkStatus());
  ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
  ExpectRefused(CheckOwnFolder(inner, kAdvice),
                absl::StrCat(inner, ": ", folder,
                             ", a folder above it, has mode 0777, so other users could replace it; "
                             "expected that only its owner may write there, or the sticky bit; use "
                             "another one"));
  ASSERT_EQ(::chmod(folder.c_str(), 01777), 0);
  EXPECT_EQ(CheckOwnFolder(inner, kAdvice), absl::OkStatus());
  GiveAway(folder);
  const std::string expected =
      absl::StrCat(inner, ": ", folder, ", a folder above it, belongs to ", other_,
                   ", who could replace it; expected ", self_, " or root; use another one");
  ExpectRefused(CheckOwnFolder(inner, kAdvice), expected);
  // Our own link to it does not help.
  ASSERT_EQ(::symlink(folder.c_str(), (directory_ + "/link").c_str()), 0);
  ExpectRefused(CheckOwnFolder(directory_ + "/link/inner", kAdvice), expected);
  // Another user's link does not help either.
  ASSERT_EQ(::chown(folder.c_str(), ::geteuid(), ::getegid()), 0);
  GiveAway(directory_ + "/link");
  EXPECT_EQ(CheckOwnFolder(directory_ + "/link/inner", kAdvice).code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(OwnSocketTest, RefusesASocketThatIsNotTheUsersAlone) {
  const std::string path = Folder() + "/d.sock";
  std::ofstream(path).put('x');
  ExpectRefused(CheckOwnSocket(path, kAdvice),
                path + ": is a regular file, expected a socket; use another one");
  ::unlink(path.c_str());
  const auto listener = ListenOwnSocket(path, 4);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ(CheckOwnSocket(path, kAdvice), absl::OkStatus());
  ASSERT_EQ(::chmod(path.c_str(), 0660), 0);
  ExpectRefused(CheckOwnSocket(path, kAdvice),
                path +
                    ": has mode 0660, expected that only its owner may write to it (0600); use "
                    "another one");
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  GiveAway(path);
  ExpectRefused(CheckOwnSocket(path, kAdvice),
                absl::StrCat(path, ": belongs to ", other_, ", expected ", self_,
                             ", this process's user; use another one"));
}

TEST_F(OwnSocketTest, ConnectsToASocketOfTheSameUser) {
  const std::string path = Folder() + "/d.sock";
  const auto listener = ListenOwnSocket(path, 1);
  ASSERT_TRUE(listener.ok()) << listener.status();
  struct stat info;
  ASSERT_EQ(::lstat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto connected = ConnectOwnSocket(path, absl::Seconds(5), kAdvice);
  ASSERT_TRUE(connected.ok()) << connected.status();
  const UniqueFd accepted(::accept(listener->get(), nullptr, nullptr));
  ASSERT_TRUE(accepted.valid());
  EXPECT_EQ(CheckOwnPeer(accepted.get(), path, kAdvice), absl::OkStatus());
  EXPECT_EQ(::send(connected->get(), "x", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(::recv(accepted.get(), &byte, 1, 0), 1);
  EXPECT_EQ(::recv(connected->get(), &byte, 1, 0), -1);  // does not block
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(OwnSocketTest, SaysThatAListenersQueueIsFull) {
  const std::string path = Folder() + "/d.sock";
  const auto listener = ListenOwnSocket(path, 0);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const auto first = ConnectOwnSocket(path, absl::ZeroDuration(), kAdvice);
  ASSERT_TRUE(first.ok()) << first.status();
  for (const absl::Duration timeout : {absl::ZeroDuration(), absl::Milliseconds(5)}) {
    EXPECT_EQ(ConnectOwnSocket(path, timeout, kAdvice).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
}

TEST_F(OwnSocketTest, SendsNothingToAFolderOfAnotherUser) {
  ASSERT_EQ(::chmod(directory_.c_str(), 01777), 0);
  const std::string path = directory_ + "/theirs/d.sock";
  OtherUsersListener listener(path, /*as_root=*/false);
  EXPECT_EQ(ConnectOwnSocket(path, absl::Seconds(5), kAdvice).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(listener.Stop(), 0);
}

TEST_F(OwnSocketTest, SendsNothingToAProcessOfAnotherUser) {
  const std::string path = Folder() + "/d.sock";
  OtherUsersListener listener(path, /*as_root=*/true);
  ASSERT_EQ(CheckOwnSocket(path, kAdvice), absl::OkStatus());
  ExpectRefused(ConnectOwnSocket(path, absl::Seconds(5), kAdvice).status(),
                absl::StrCat(path, ": the process at the other end runs as ", other_, ", expected ",
                             self_, ", this process's user; use another one"));
  EXPECT_EQ(listener.Stop(), 0);
}

TEST_F(OwnSocketTest, KnowsAnotherUserWhoConnects) {
  const std::string path = Folder() + "/d.sock";
  const auto listener = ListenOwnSocket(path, 1);
  ASSERT_TRUE(listener.ok()) << listener.status();
  ASSERT_EQ(::chmod((directory_ + "/f").c_str(), 0755), 0);  // another user changes the mode later
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  EXPECT_EQ(ConnectAsOtherUser(path), 0);
  const UniqueFd accepted(::accept(listener->get(), nullptr, nullptr));
  ASSERT_TRUE(accepted.valid());
  EXPECT_EQ(CheckOwnPeer(accepted.get(), path, kAdvice).code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(OwnSocketTest, TakesAServerThatOnlyRootCouldHavePutThere) {
  const std::string folder = Folder(0755);
  const std::string path = folder + "/r.sock";
  EXPECT_EQ(CheckServerSocket(path, kAdvice), absl::OkStatus());  // no listener is there
  {
    OtherUsersListener listener(path, /*as_root=*/true);
    GiveAway(path);
    ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
    EXPECT_EQ(CheckServerSocket(path, kAdvice), absl::OkStatus());
    GiveAway(folder);
    EXPECT_EQ(CheckServerSocket(path, kAdvice), absl::OkStatus());
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(CheckServerPeer(socket.get(), path, kAdvice), absl::OkStatus());
    ASSERT_EQ(::chown(path.c_str(), ::geteuid(), ::getegid()), 0);
    ExpectRefused(CheckServerPeer(socket.get(), path, kAdvice),
                  absl::StrCat(path, ": the process at the other end runs as ", other_,
                               ", expected the socket's owner, ", self_, "; use another one"));
    GiveAway(path);
  }
  // As in /tmp, where any user makes folders and sockets.
  ASSERT_EQ(::chmod(directory_.c_str(), 01777), 0);
  EXPECT_EQ(CheckServerSocket(path, kAdvice).code(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(::chown(folder.c_str(), ::geteuid(), ::getegid()), 0);
  EXPECT_EQ(CheckServerSocket(path, kAdvice), absl::OkStatus());
  ASSERT_EQ(::chmod(folder.c_str(), 01777), 0);
  EXPECT_EQ(CheckServerSocket(path, kAdvice).code(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(::chown(path.c_str(), ::geteuid(), ::getegid()), 0);
  EXPECT_EQ(CheckServerSocket(path, kAdvice), absl::OkStatus());
}

TEST(WithoutSigpipeTest, AWriteToAnEndThatHungUpFailsAndEndsNoProcess) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd writer(ends[0]);
  ::close(ends[1]);
  for (int i = 0; i < 2; ++i) {
    const WithoutSigpipe without_sigpipe;
    EXPECT_EQ(::write(writer.get(), "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
  }
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0) << "it would come later";
}

}  // namespace
}  // namespace megascale::base
