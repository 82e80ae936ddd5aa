// The child process of this folder's tests. It also replaces `megascale driver`, which
// refuses to start with --machine-tests refused, or "refused twice", and `megascale agent`, which
// cannot start with more than 90 slots: it ends with an error, with 99 slots by abort().
//   exit N | pause | linger | family | write FD TEXT | environment NAME | driver … | agent …
#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace {

void WaitForEver() {
  for (;;) ::pause();
}

// The main thread ends, another one stays.
void* Linger(void*) {
  WaitForEver();
  return nullptr;
}

int RunLinger() {
  pthread_t thread;
  if (::pthread_create(&thread, nullptr, &Linger, nullptr) != 0) return 1;
  std::printf("lingers\n");
  std::fflush(stdout);
  ::pthread_exit(nullptr);
}

// Starts a child in its own session, which no signal to a process group reaches; it prints its
// process id.
int RunFamily() {
  if (::fork() == 0) {
    ::setsid();
    std::printf("%d\n", ::getpid());
    std::fflush(stdout);
    WaitForEver();
  }
  WaitForEver();
  return 0;
}

std::string Option(int argc, char** argv, absl::string_view name) {
  for (int i = 2; i + 1 < argc; ++i) {
    if (name == argv[i]) return argv[i + 1];
  }
  return "";
}

void WritePid(const std::string& path) {
  std::ofstream(path + ".new") << ::getpid();
  std::rename((path + ".new").c_str(), path.c_str());
}

// Ends on the given signal: the driver ends on SIGTERM; the agent ends at once on SIGINT.
void WaitForTermination(int ends_on) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, ends_on);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  int signal = 0;
  sigwait(&set, &signal);
}

int CountAgents(const std::string& directory) {
  int count = 0;
  DIR* const entries = ::opendir(directory.c_str());
  while (const dirent* entry = ::readdir(entries)) {
    count += ::access((directory + "/" + entry->d_name + "/pid").c_str(), F_OK) == 0;
  }
  ::closedir(entries);
  return count;
}

// Returns how often it was called for this directory, this time included.
int CountStarts(const std::string& directory) {
  std::ofstream starts(directory + "/driver.starts", std::ios::app);
  starts << '.' << std::flush;
  return static_cast<int>(starts.tellp());
}

int RunDriver(int argc, char** argv) {
  const std::string socket = Option(argc, argv, "--listen").substr(5);
  const std::string directory = socket.substr(0, socket.rfind('/'));
  const std::string tests = Option(argc, argv, "--machine-tests");
  const int start = CountStarts(directory);
  if (tests == "refused" || (tests == "refused twice" && start <= 2)) {
    std::printf("I driver: starts\nmegascale: start %d: the log is damaged\n  what to do\n", start);
    return 1;
  }
  WritePid(directory + "/driver.pid");
  std::ofstream(socket.c_str());
  WaitForTermination(SIGTERM);
  std::printf("%d agents are left\n", CountAgents(directory));
  return 0;
}

int RunAgent(int argc, char** argv) {
  const int slots = std::atoi(Option(argc, argv, "--slots").c_str());
  if (slots > 90) std::printf("I agent: starts\nmegascale: too many slots\n  what to do\n");
  std::fflush(stdout);
  if (slots == 99) std::abort();
  if (slots > 90) return 1;
  const std::string directory = Option(argc, argv, "--run-dir");
  ::mkdir(directory.c_str(), 0700);
  WritePid(directory + "/pid");
  WaitForTermination(SIGINT);
  ::unlink((directory + "/pid").c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const absl::string_view mode = argv[1];
  if (mode == "exit") return std::atoi(argv[2]);
  if (mode == "linger") return RunLinger();
  if (mode == "family") return RunFamily();
  if (mode == "driver") return RunDriver(argc, argv);
  if (mode == "agent") return RunAgent(argc, argv);
  if (mode == "write") {
    return ::dprintf(std::atoi(argv[2]), "%s", argv[3]) < 0 ? 1 : 0;
  }
  if (mode == "environment") {
    const char* const value = std::getenv(argv[2]);
    std::printf("%s", value == nullptr ? "unset" : value);
    return 0;
  }
  WaitForEver();
}
