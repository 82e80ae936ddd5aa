#include "tests/fuzz/engine.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "runtime/base/clock.h"

namespace megascale::fuzz {
namespace {

constexpr unsigned kHangSeconds = 30;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Shadow memory, and freed memory that is kept for a while.
constexpr int64_t kSanitizerBytes = int64_t{2} << 30;
#else
constexpr int64_t kSanitizerBytes = 0;
#endif
constexpr size_t kPoolMax = 512;

// Global state for the signal handler, which takes no arguments.
struct Running {
  absl::string_view input;
  char path[512];
  char command[1024];
  int64_t before_bytes = 0;  // of memory, when the run began
};
Running running;

void Print(const char* text) {
  size_t size = 0;
  while (text[size] != '\0') ++size;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, size);
}

void WriteInput() {
  const int fd = ::open(running.path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd >= 0) {
    [[maybe_unused]] const ssize_t written =
        ::write(fd, running.input.data(), running.input.size());
    ::close(fd);
  }
  Print("fuzz: the input is in ");
  Print(running.path);
  Print("\nfuzz: run it again: ");
  Print(running.command);
  Print("\n");
}

void OnSignal(int signal) {
  Print(signal == SIGALRM ? "fuzz: an input takes longer than 30 s\n" : "fuzz: an input crashes\n");
  WriteInput();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

int64_t PeakBytes() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

// Makes what the process has now its peak, so that targets do not hide in each other's. Where the
// kernel does not allow it, the peak so far counts as what it has.
int64_t ForgetPeak() {
  ::malloc_trim(0);
  constexpr char kResetPeak[] = "5";
  const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd >= 0) {
    [[maybe_unused]] const ssize_t written = ::write(fd, kResetPeak, 1);
    ::close(fd);
  }
  return PeakBytes();
}

void Prepare(const Target& target, const FuzzOptions& options) {
  google::protobuf::SetLogHandler(nullptr);  // a line for every text that is no UTF-8
  std::snprintf(running.path, sizeof(running.path), "%s/crash-%s-%d",
                options.crash_directory.c_str(), target.name.c_str(), ::getpid());
  std::snprintf(running.command, sizeof(running.command), "./dev fuzz %s %s", target.name.c_str(),
                running.path);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM, SIGTRAP}) {
    ::signal(signal, OnSignal);
  }
  running.before_bytes = ForgetPeak();
}

void Execute(const Target& target, absl::string_view input) {
  running.input = input;
  ::alarm(kHangSeconds);
  target.run(input);
  ::alarm(0);
  const int64_t bytes_max = target.memory_bytes_max + kSanitizerBytes;
  if (PeakBytes() - running.before_bytes <= bytes_max) return;
  Print(
      absl::StrCat("fuzz: an input takes more than ", bytes_max >> 20, " MiB of memory\n").c_str());
  WriteInput();
  ::_exit(1);
}

uint64_t Hash(absl::string_view text, uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// The inputs to mutate: the corpus, and some of its mutations.
class Pool {
 public:
  Pool(const std::vector<std::string>& corpus, Random* random)
      : inputs_(corpus), num_fixed_(corpus.size()), random_(*random) {
    if (inputs_.empty()) inputs_.emplace_back();
  }
  const std::string& Any() const { return inputs_[random_.Below(inputs_.size())]; }
  void Offer(const std::string& input) {
    if (!random_.OneIn(32)) return;
    if (inputs_.size() < num_fixed_ + kPoolMax) {
      inputs_.push_back(input);
    } else {
      inputs_[num_fixed_ + random_.Below(kPoolMax)] = input;
    }
  }

 private:
  std::vector<std::string> inputs_;
  size_t num_fixed_;
  Random& random_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadCorpus(const std::string& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    paths.push_back(entry.path());
  }
  if (error) return absl::NotFoundError(absl::StrCat(directory, ": ", error.message()));
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

void RunOne(const Target& target, absl::string_view input, const FuzzOptions& options) {
  Prepare(target, options);
  Execute(target, input);
}

FuzzStatistics Fuzz(const Target& target, const std::vector<std::string>& corpus,
                    const FuzzOptions& options) {
  Prepare(target, options);
  Random random(options.seed);
  Pool pool(corpus, &random);
  FuzzStatistics statistics;
  const absl::Duration begin = base::RealClock().Monotonic();
  absl::Duration now = begin;
  const auto execute = [&](const std::string& input) {
    const absl::Duration start = now;
    Execute(target, input);
    now = base::RealClock().Monotonic();
    statistics.longest = std::max(statistics.longest, now - start);
    statistics.digest = Hash(input, statistics.digest + 1);
    ++statistics.num_executions;
  };
  for (const std::string& input : corpus) execute(input);
  while (statistics.num_executions < options.executions_max && now - begin < options.time_max) {
    const std::string other = pool.Any();
    std::string input = pool.Any();
    const bool structured = target.mutate != nullptr && !random.OneIn(3);
    for (size_t left = 1 + random.Below(3); structured && left > 0; --left) {
      input = target.mutate(input, &random);
    }
    if (!structured) {
      input = MutateBytes(std::move(input), {&target.dictionary, &other, options.input_bytes_max},
                          &random);
    }
    if (input.size() > options.input_bytes_max) input.resize(options.input_bytes_max);
    execute(input);
    pool.Offer(input);
  }
  statistics.time = now - begin;
  statistics.peak_bytes = PeakBytes() - running.before_bytes;
  return statistics;
}

}  // namespace megascale::fuzz
