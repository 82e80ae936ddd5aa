// Access control: mutual TLS between real processes, one line for every refusal, no unexpected
// listening sockets, and no files that others can read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "controlplane/security/authority.h"
#include "runtime/base/fd.h"
#include "runtime/base/socket/testing/test_user.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::vector<pid_t> WithDescendants(pid_t pid) {
  std::vector<pid_t> all = DescendantsOf(pid, "");
  all.push_back(pid);
  return all;
}

std::set<std::string> SocketInodesOf(const std::vector<pid_t>& processes) {
  std::set<std::string> inodes;
  for (const pid_t pid : processes) {
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      if (target.rfind("socket:[", 0) == 0) inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  return inodes;
}

// Returns the local addresses, as /proc/net writes them, of those sockets of these processes that
// accept connections or datagrams.
std::vector<std::string> ListeningAddresses(const std::vector<pid_t>& processes) {
  const std::set<std::string> inodes = SocketInodesOf(processes);
  std::vector<std::string> addresses;
  for (const char* table : {"tcp", "tcp6", "udp", "udp6"}) {
    std::ifstream file(absl::StrCat("/proc/", getpid(), "/net/", table));
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      const bool listens = table[0] == 'u' || words[3] == "0A";
      if (listens && inodes.count(words[9]) != 0) addresses.push_back(words[1]);
    }
  }
  return addresses;
}

// Returns the files and folders under `directory` to which group or others have any permission,
// without symbolic links.
std::vector<std::string> OpenToOthers(const std::string& directory) {
  std::vector<std::string> open;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory, error)) {
    struct stat info;
    if (::lstat(entry.path().c_str(), &info) != 0 || S_ISLNK(info.st_mode)) continue;
    if ((info.st_mode & 077) != 0) {
      open.push_back(absl::StrCat(entry.path().string(), " ", absl::Hex(info.st_mode & 0777)));
    }
  }
  return open;
}

class SecurityTest : public ::testing::Test {
 protected:
  // Makes a folder of certificates of another authority, or with another lifetime.
  std::string MakeCertificates(const std::string& name, absl::Duration lifetime) {
    const std::string folder = absl::StrCat(cluster_.directory(), "/", name);
    const absl::Time end = absl::Now() + lifetime;
    const auto made = security::MakeAuthority(
        folder, absl::Hours(240),
        {{security::Role::kUser, "user", {}, end}, {security::Role::kAgent, "agent", {}, end}});
    EXPECT_TRUE(made.ok()) << made.status();
    return folder;
  }
  CommandResult List(const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {Program(), "list", "--address", cluster_.address()};
    command.insert(command.end(), flags.begin(), flags.end());
    CommandResult result = e2e::Run(command);
    EXPECT_LE(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result;
  }
  std::string DriverLog() const {
    return base::ReadFile(cluster_.directory() + "/driver.log", 1 << 20).value_or("");
  }
  std::vector<std::string> UserFlags() const {
    return Cluster::TlsFlags(cluster_.certificates(), "user");
  }
  std::string TheDriver() const {
    return absl::StrCat("megascale: the driver at ", cluster_.address(), ": ");
  }

  Cluster cluster_;
};

TEST_F(SecurityTest, AJobTrainsOverMutualTls) {
  cluster_.UseTls();
  cluster_.StartDriver();
  cluster_.StartAgent(0, 2);
  cluster_.StartAgent(1, 2);
  cluster_.Submit("job", {"train.steps=20"});
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const CommandResult logs = cluster_.Megascale({"logs", "job", "--rank", "1"});
  EXPECT_THAT(logs.out, HasSubstr("worker 1")) << logs.err;
  std::vector<pid_t> processes = WithDescendants(cluster_.driver_pid());
  for (const int agent : {0, 1}) {
    for (const pid_t pid : WithDescendants(cluster_.agent_pid(agent))) processes.push_back(pid);
  }
  EXPECT_THAT(ListeningAddresses(processes), SizeIs(1)) << "the driver's port, asked for";
  EXPECT_THAT(ListeningAddresses(processes),
              Each(AnyOf(StartsWith("0100007F:"), StartsWith("0000000000000000FFFF00000100007F:"))))
      << "127.0.0.1, over IPv4 or IPv6";
}

TEST_F(SecurityTest, EveryRefusalIsOneLineThatSaysWhoRefusesWhyAndWhatToDo) {
  cluster_.UseTls();
  cluster_.StartDriver();
  const std::string foreign = MakeCertificates("foreign", absl::Hours(24));
  const std::vector<std::string> good = UserFlags();

  std::vector<std::string> flags = Cluster::TlsFlags(foreign, "user");
  CommandResult refused = List(flags);
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, StartsWith(TheDriver() + "its certificate ('driver') is signed by "));
  EXPECT_THAT(refused.err, HasSubstr("which --tls-ca " + foreign + "/ca.pem does not hold"));

  flags[1] = good[1];  // trusts the driver, who does not trust it
  refused = List(flags);
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, StartsWith(TheDriver() + "it refuses --tls-cert " + foreign +
                                      "/user.pem, signed by"));

  refused = List({"--insecure"});
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, StartsWith(TheDriver() + "it speaks TLS, and this program plaintext"));

  refused = List({});
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_THAT(refused.err,
              HasSubstr("is a TCP address: it needs --tls-ca, --tls-cert and --tls-key"));

  refused = List(Cluster::TlsFlags(cluster_.certificates(), "agent"));
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("is the certificate of a megascale agent"));

  EXPECT_EQ(List(good).exit_code, 0);
  EXPECT_THAT(DriverLog(), HasSubstr("refused a connection: it refuses this driver's certificate"));
  EXPECT_THAT(DriverLog(), HasSubstr("refused a connection: its certificate has expired, or "
                                     "--tls-ca does not hold its authority"));
  EXPECT_THAT(DriverLog(), HasSubstr("refused a connection: it spoke no TLS"));
}

TEST_F(SecurityTest, ExpiredMismatchedAndUnprotectedFilesAreRefusedBeforeAnythingIsSent) {
  cluster_.UseTls();
  cluster_.StartDriver();
  const std::string old = MakeCertificates("old", -absl::Hours(72));
  CommandResult refused = List(Cluster::TlsFlags(old, "user"));
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err,
              StartsWith("megascale: --tls-cert " + old + "/user.pem: expired 3 days"));

  std::vector<std::string> flags = UserFlags();
  flags[5] = cluster_.certificates() + "/agent.key";
  refused = List(flags);
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("agent.key: is not the key of --tls-cert"));

  flags = UserFlags();
  ASSERT_EQ(::chmod(flags[5].c_str(), 0644), 0);
  refused = List(flags);
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("others may use this private key (mode 0644); chmod 600"));
}

TEST_F(SecurityTest, AnAgentThatTheDriverWouldNeverTakeEndsAndSaysSo) {
  cluster_.UseTls();
  cluster_.StartDriver();
  const std::string foreign = MakeCertificates("foreign", absl::Hours(24));
  std::vector<std::string> command = {Program(),   "agent",
                                      "--driver",  cluster_.address(),
                                      "--run-dir", cluster_.directory() + "/n9"};
  std::vector<std::string> flags = Cluster::TlsFlags(foreign, "agent");
  flags[1] = cluster_.certificates() + "/ca.pem";
  command.insert(command.end(), flags.begin(), flags.end());
  const CommandResult refused = e2e::Run(command);
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr(TheDriver() + "it refuses --tls-cert " + foreign));
}

// Whoever reads an error can run the command in it as it is printed.
TEST_F(SecurityTest, ACommandInAnErrorReachesTheDriverOverTlsAsItIsPrinted) {
  cluster_.UseTls();
  cluster_.StartDriver();
  std::vector<std::string> command = {Program(), "status", "nobody", "--address",
                                      cluster_.address()};
  for (const std::string& flag : UserFlags()) command.push_back(flag);
  const CommandResult refused = e2e::Run(command);
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  const std::vector<std::string> parts = absl::StrSplit(refused.err, '`');
  ASSERT_THAT(parts, SizeIs(3)) << refused.err;
  const std::string search = std::filesystem::path(Program()).parent_path().string();
  const CommandResult typed =
      e2e::Run({"/bin/sh", "-c", parts[1]}, {{"PATH", search}, {"NO_COLOR", "1"}});
  EXPECT_EQ(typed.exit_code, 0) << parts[1] << ": " << typed.err;
  EXPECT_THAT(typed.out, StartsWith("JOB"));
}

TEST_F(SecurityTest, ANodeIdIsBoundToTheCertificateThatItsAgentShowedFirst) {
  cluster_.UseTls();
  const std::string certificates = cluster_.certificates();
  ASSERT_EQ(e2e::Run({Program(), "certs", "issue", certificates, "agent", "other"}).exit_code, 0);
  cluster_.StartDriver();
  cluster_.StartAgent(0, 1);
  const auto n0_is = [&](const std::string& state) {
    return WaitUntil(
        [&] {
          return cluster_.Megascale({"status"}).out.find("n0    " + state) != std::string::npos;
        },
        30);
  };
  ASSERT_TRUE(n0_is("alive"));
  cluster_.KillAgent(0);
  ASSERT_TRUE(n0_is("lost"));
  std::vector<std::string> command = {
      Program(),   "agent", "--driver",  cluster_.address(),
      "--node-id", "n0",    "--run-dir", cluster_.directory() + "/other"};
  for (const std::string& flag : Cluster::TlsFlags(certificates, "other")) command.push_back(flag);
  const CommandResult refused = e2e::Run(command);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("node n0: is bound to the certificate 'agent', and this agent "
                                     "shows 'other' and another key"));
  EXPECT_EQ(cluster_.Megascale({"evict", "n0"}).exit_code, 0);
  const pid_t taken = Spawn(command, cluster_.directory() + "/other.log");
  EXPECT_TRUE(n0_is("evicted "));
  EXPECT_EQ(cluster_.Megascale({"uncordon", "n0"}).exit_code, 0);
  EXPECT_TRUE(n0_is("alive"));
  EXPECT_THAT(DriverLog(), HasSubstr("refused an agent: node n0: is bound to"));
  KillAndReap(taken);
}

TEST_F(SecurityTest, ALocalClusterOpensNoPortAndItsFilesAreItsOwnersAlone) {
  const mode_t before = ::umask(0);
  cluster_.StartDriver();
  cluster_.StartAgent(0, 2);
  cluster_.StartAgent(1, 2);
  ::umask(before);
  cluster_.Submit("job");
  ASSERT_TRUE(cluster_.WaitForStep("job", 25));
  std::vector<pid_t> processes = WithDescendants(cluster_.driver_pid());
  for (const int agent : {0, 1}) {
    for (const pid_t pid : WithDescendants(cluster_.agent_pid(agent))) processes.push_back(pid);
  }
  EXPECT_GE(processes.size(), 7u);
  EXPECT_THAT(ListeningAddresses(processes), IsEmpty());
  EXPECT_THAT(OpenToOthers(cluster_.state_directory()), IsEmpty());
  EXPECT_THAT(OpenToOthers(cluster_.directory() + "/n0"), IsEmpty());
  EXPECT_THAT(OpenToOthers(cluster_.directory() + "/n1"), IsEmpty());
  struct stat info;
  ASSERT_EQ(::lstat((cluster_.directory() + "/driver.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(cluster_.Megascale({"cancel", "job"}).exit_code, 0);
}

// Another user has already made the folder for the driver's or an agent's socket.
TEST_F(SecurityTest, NoProgramJoinsAnotherUserOnThisMachine) {
  const std::string open = cluster_.directory() + "/open";  // as /tmp is
  ASSERT_EQ(::chmod(cluster_.directory().c_str(), 0711), 0);
  ASSERT_EQ(::mkdir(open.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(open.c_str(), 01777), 0);
  const std::string theirs = open + "/megascale-0";
  base::OtherUsersListener listener(theirs + "/driver.sock", /*as_root=*/false);
  const std::string address = "unix:" + theirs + "/driver.sock";
  const std::string says =
      theirs + ": belongs to nobody (uid 65534), expected root (uid 0), this " + "process's user; ";
  const auto expect = [](const CommandResult& result, int exit_code, const std::string& line) {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr("megascale: " + line));
  };
  expect(e2e::Run({Program(), "status", "--address", address}), 3,
         says +
             "run this as the user who runs the driver, or name another driver with --address "
             "or MEGASCALE_ADDRESS\n");
  expect(e2e::Run(
             {Program(), "agent", "--driver", address, "--run-dir", cluster_.directory() + "/n0"}),
         3,
         says +
             "run the agent as the user who runs its driver, or name another driver with "
             "--driver or MEGASCALE_ADDRESS\n");
  expect(e2e::Run({Program(), "driver", "--listen", address, "--state-dir",
                   cluster_.directory() + "/other"}),
         1, says + "give another address with --listen\n");
  // The default address is there too where nothing else is set; `open` stands for /tmp.
  const auto by_default = [&](std::vector<std::string> command) {
    command.insert(
        command.begin(),
        {"/usr/bin/unshare", "--mount", "/bin/sh", "-c",
         "mount --bind " + open + " /tmp && unset XDG_RUNTIME_DIR MEGASCALE_ADDRESS && exec \"$@\"",
         "sh", Program()});
    return e2e::Run(command);
  };
  const std::string belongs = "/tmp/megascale-0: belongs to nobody (uid 65534), expected root";
  expect(by_default({"status"}), 3, belongs);
  expect(by_default({"agent", "--run-dir", "/tmp/n0"}), 3, belongs);
  expect(by_default({"driver", "--state-dir", "/tmp/other"}), 1, belongs);
  EXPECT_EQ(listener.Stop(), 0) << "bytes were sent to another user";
  // The place of an agent's own sockets belongs to the other user. Its driver is not there yet.
  const std::string closed = cluster_.directory() + "/closed";
  ASSERT_EQ(::mkdir(closed.c_str(), 0700), 0);
  const std::string absent = "unix:" + closed + "/driver.sock";
  expect(e2e::Run({Program(), "agent", "--driver", absent, "--run-dir", theirs}), 1,
         says + "give another --run-dir\n");
  expect(e2e::Run({Program(), "agent", "--driver", absent, "--run-dir", theirs + "/n0"}), 1,
         theirs + "/n0: " + theirs + ", a folder above it, belongs to nobody (uid 65534)");
  ASSERT_EQ(::chmod(cluster_.directory().c_str(), 0700), 0);
}

TEST_F(SecurityTest, LocalOpensNoPortAndWritesForItsOwnerAlone) {
  ::setenv("XDG_RUNTIME_DIR", cluster_.directory().c_str(), 1);  // sockets are made below it
  const std::string log = cluster_.directory() + "/local.log";
  const mode_t before = ::umask(0);
  const pid_t pid =
      Spawn({Program(), "local", cluster_.directory() + "/job.yaml", "--agents", "2", "--slots",
             "2", "--state-dir", cluster_.state_directory(), "--set", "train.steps=1000000"},
            log);
  ::umask(before);
  ::unsetenv("XDG_RUNTIME_DIR");
  ASSERT_TRUE(WaitUntil(
      [&] { return base::ReadFile(log, 1 << 20).value_or("").find("step ") != std::string::npos; },
      60));
  const std::vector<pid_t> processes = WithDescendants(pid);
  EXPECT_GE(processes.size(), 8u);
  EXPECT_THAT(ListeningAddresses(processes), IsEmpty());
  EXPECT_THAT(OpenToOthers(cluster_.state_directory()), IsEmpty());
  int num_run_directories = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cluster_.directory())) {
    if (entry.path().filename().string().rfind("megascale-", 0) != 0) continue;
    ++num_run_directories;
    struct stat info;
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    EXPECT_THAT(OpenToOthers(entry.path()), IsEmpty());
  }
  EXPECT_EQ(num_run_directories, 1);
  KillAndReap(pid);
  for (const pid_t child : processes) {
    EXPECT_TRUE(WaitUntil([child] { return !IsAlive(child); }, 20)) << "process " << child;
  }
}

TEST_F(SecurityTest, CertsShowTellsWhoseItIsAndExitsByItsValidity) {
  cluster_.UseTls();
  const std::string folder = cluster_.certificates();
  const CommandResult user = e2e::Run({Program(), "certs", "show", folder + "/user.pem"});
  EXPECT_EQ(user.exit_code, 0);
  EXPECT_THAT(user.out, HasSubstr("role         user\n"));
  EXPECT_THAT(user.out, HasSubstr("expires in 36"));
  const CommandResult json =
      e2e::Run({Program(), "certs", "show", folder + "/driver.pem", "-o", "json"});
  EXPECT_THAT(json.out, HasSubstr("\"role\": \"driver\""));
  EXPECT_THAT(json.out, HasSubstr("localhost,127.0.0.1,::1"));
  const std::string old = MakeCertificates("old", -absl::Hours(72));
  EXPECT_EQ(e2e::Run({Program(), "certs", "show", old + "/user.pem"}).exit_code, 1);
  const CommandResult again = e2e::Run({Program(), "certs", "init", folder});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_EQ(again.err, "megascale: " + folder +
                           "/ca.key: exists and is not overwritten; remove it, or choose another "
                           "name or directory\n");
  EXPECT_EQ(e2e::Run({Program(), "certs", "issue", folder, "king", "x"}).err,
            "megascale: role 'king': expected driver, agent or user\n");
  EXPECT_EQ(e2e::Run({Program(), "certs", "init", folder + "2", "--days", "0"}).exit_code, 2);
}

}  // namespace
}  // namespace megascale::e2e
