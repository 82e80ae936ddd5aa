#include "runtime/telemetry/stack/process_stacks.h"

#include <cxxabi.h>
#include <libunwind-ptrace.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/frame.h"
#include "runtime/base/log.h"
#include "runtime/base/serialize.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"

namespace megascale::telemetry {
namespace {

constexpr absl::Duration kStopTimeout = absl::Milliseconds(300);
constexpr absl::Duration kStopPoll = absl::Milliseconds(1);
constexpr absl::Duration kLinkTimeout = absl::Seconds(2);
constexpr size_t kThreadsMax = 256;
constexpr int kFramesMax = 64;
constexpr size_t kFunctionBytesMax = 400;
constexpr size_t kSmallFileBytesMax = 64 << 10;
constexpr size_t kMapsBytesMax = 8 << 20;

absl::Duration Now() { return base::RealClock().Monotonic(); }

// Returns the contents of a file of /proc; "": it cannot be read.
std::string TextOf(const std::string& path, size_t bytes_max = kSmallFileBytesMax) {
  return base::ReadFile(path, bytes_max).value_or("");
}

// The mappings of a process, by the end of each.
class Mappings {
 public:
  explicit Mappings(pid_t pid) {
    const std::string maps = TextOf(absl::StrCat("/proc/", pid, "/maps"), kMapsBytesMax);
    for (const absl::string_view line : absl::StrSplit(maps, '\n', absl::SkipEmpty())) {
      // begin-end rights offset device inode path
      const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 5));
      const std::vector<absl::string_view> range = absl::StrSplit(words[0], '-');
      uint64_t begin = 0;
      uint64_t end = 0;
      if (words.size() < 6 || range.size() != 2 || !absl::SimpleHexAtoi(range[0], &begin) ||
          !absl::SimpleHexAtoi(range[1], &end)) {
        continue;
      }
      by_end_[end] = {begin, std::string(absl::StripLeadingAsciiWhitespace(words[5])),
                      absl::StrContains(words[1], 'x')};
      const Mapping& mapping = by_end_[end];
      if (!mapping.path.empty()) first_.try_emplace(mapping.path, begin);
    }
  }

  // Whether code can run at the address.
  bool IsCode(uint64_t address) const {
    const Mapping* mapping = Find(address);
    return mapping != nullptr && mapping->is_code;
  }

  // Sets the module and the offset of the frame.
  void Place(uint64_t address, v1::StackFrame* frame) const {
    const Mapping* mapping = Find(address);
    if (mapping == nullptr || mapping->path.empty()) {
      frame->set_offset(address);
      return;
    }
    const std::string& path = mapping->path;
    frame->set_module(base::Printable(path.substr(path.rfind('/') + 1), kFunctionBytesMax));
    frame->set_offset(address - first_.at(path));
  }

 private:
  struct Mapping {
    uint64_t begin = 0;
    std::string path;
    bool is_code = false;
  };
  // Returns the mapping that has the address; null: there is none.
  const Mapping* Find(uint64_t address) const {
    const auto found = by_end_.upper_bound(address);
    return found == by_end_.end() || address < found->second.begin ? nullptr : &found->second;
  }

  std::map<uint64_t, Mapping> by_end_;
  std::map<std::string, uint64_t> first_;  // where a file's first mapping begins
};

// A thread that this one has seized. It goes on when the object ends.
class SeizedThread {
 public:
  explicit SeizedThread(pid_t thread) : thread_(thread) {
    if (::ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0) {
      error_ = errno;
    } else {
      is_stopped_ = Stop();
    }
  }
  ~SeizedThread() {
    if (is_stopped_) ::ptrace(PTRACE_DETACH, thread_, nullptr, signal_);
  }
  SeizedThread(const SeizedThread&) = delete;
  SeizedThread& operator=(const SeizedThread&) = delete;

  int error() const { return error_; }  // errno of the seizing; 0: it is seized
  bool is_stopped() const { return is_stopped_; }

 private:
  bool Stop() {
    if (::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) != 0) return false;
    const absl::Duration end = Now() + kStopTimeout;
    do {
      int status = 0;
      const pid_t waited = ::waitpid(thread_, &status, __WALL | WNOHANG);
      if (waited == thread_) {
        // A signal came first: the thread gets it when it goes on.
        if (WIFSTOPPED(status) && status >> 16 != PTRACE_EVENT_STOP) signal_ = WSTOPSIG(status);
        return WIFSTOPPED(status);
      }
      if (waited < 0 && errno != EINTR) return false;
      absl::SleepFor(kStopPoll);
    } while (Now() < end);
    return false;
  }

  const pid_t thread_;
  int error_ = 0;
  int64_t signal_ = 0;
  bool is_stopped_ = false;
};

std::string Demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  return base::Printable(status == 0 ? name.get() : symbol, kFunctionBytesMax);
}

void Unwind(pid_t thread, unw_addr_space_t space, const Mappings& mappings,
            v1::ThreadStack* stack) {
  const std::unique_ptr<void, decltype(&_UPT_destroy)> context(_UPT_create(thread), &_UPT_destroy);
  unw_cursor_t cursor;
  if (context == nullptr || unw_init_remote(&cursor, space, context.get()) != 0) {
    stack->set_error("its registers cannot be read");
    return;
  }
  for (int i = 0; i < kFramesMax; ++i) {
    unw_word_t address = 0;
    if (unw_get_reg(&cursor, UNW_REG_IP, &address) != 0 || address == 0) return;
    if (!mappings.IsCode(address)) {  // a thread that is just being made has no frames before
      stack->set_error("the frames before these cannot be read");
      return;
    }
    v1::StackFrame* frame = stack->add_frames();
    mappings.Place(address, frame);
    std::vector<char> symbol(4096);
    unw_word_t offset = 0;
    const int named = unw_get_proc_name(&cursor, symbol.data(), symbol.size(), &offset);
    if (named == 0) frame->set_function(Demangled(symbol.data()));
    const int more = unw_step(&cursor);
    if (more < 0) stack->set_error("the frames before these cannot be read");
    if (more <= 0) return;
  }
  stack->set_error(absl::StrCat("it has more frames than ", kFramesMax));
}

// Returns the state of a thread: the letter after its name in parentheses, which may hold others.
std::string StateOf(const std::string& stat) {
  const size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? "" : stat.substr(end + 2, 1);
}

// Says that a thread did not stop, and where the kernel holds it if the system tells.
std::string WhyNotStopped(const std::string& folder) {
  const std::string place = TextOf(folder + "/wchan");
  const bool is_told = !place.empty() && place != "0";
  return absl::StrCat("did not stop within ", absl::FormatDuration(kStopTimeout),
                      ": it is in the kernel",
                      is_told ? absl::StrCat(", in ", base::Printable(place, 100)) : "");
}

// Says why a thread could not be seized. A thread has one tracer at a time.
std::string WhyRefused(const std::string& folder, int error) {
  if (error != EPERM) return std::strerror(error);
  for (const absl::string_view line : absl::StrSplit(TextOf(folder + "/status"), '\n')) {
    absl::string_view rest = line;
    pid_t tracer = 0;
    if (!absl::ConsumePrefix(&rest, "TracerPid:") ||
        !absl::SimpleAtoi(absl::StripAsciiWhitespace(rest), &tracer) || tracer == 0) {
      continue;
    }
    const std::string name = TextOf(absl::StrCat("/proc/", tracer, "/comm"));
    return absl::StrCat("process ", tracer, " (",
                        base::Printable(absl::StripTrailingAsciiWhitespace(name), 64),
                        ") traces it already");
  }
  return "not permitted here: see /proc/sys/kernel/yama/ptrace_scope and the container's "
         "capabilities";
}

absl::StatusOr<std::vector<pid_t>> ThreadsOf(pid_t pid) {
  std::vector<pid_t> threads;
  std::error_code error;
  const std::string folder = absl::StrCat("/proc/", pid, "/task");
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    pid_t thread = 0;
    if (absl::SimpleAtoi(it->path().filename().string(), &thread)) threads.push_back(thread);
  }
  if (threads.empty()) {
    return absl::NotFoundError(absl::StrCat("process ", pid, ": there is no such process"));
  }
  std::sort(threads.begin(), threads.end());
  if (threads.size() > kThreadsMax) threads.resize(kThreadsMax);
  return threads;
}

}  // namespace

absl::StatusOr<v1::Evidence> ReadStacks(pid_t pid, absl::Duration budget) {
  const absl::Duration end = Now() + budget;
  ASSIGN_OR_RETURN(const std::vector<pid_t> threads, ThreadsOf(pid));
  const std::unique_ptr<std::remove_pointer_t<unw_addr_space_t>, decltype(&unw_destroy_addr_space)>
      space(unw_create_addr_space(&_UPT_accessors, 0), &unw_destroy_addr_space);
  if (space == nullptr) return absl::InternalError("libunwind made no address space");
  unw_set_caching_policy(space.get(), UNW_CACHE_GLOBAL);
  const Mappings mappings(pid);
  v1::Evidence evidence;
  int num_refused = 0;
  std::string refusal;
  for (const pid_t thread : threads) {
    const std::string folder = absl::StrCat("/proc/", pid, "/task/", thread);
    v1::ThreadStack* stack = evidence.add_stacks();
    stack->set_thread(thread);
    stack->set_name(
        base::Printable(absl::StripTrailingAsciiWhitespace(TextOf(folder + "/comm")), 64));
    stack->set_state(StateOf(TextOf(folder + "/stat")));  // before it is stopped
    if (Now() >= end) {
      stack->set_error("not read: no time was left");
      continue;
    }
    const SeizedThread seized(thread);
    if (seized.error() == ESRCH) {  // it has ended since
      evidence.mutable_stacks()->RemoveLast();
    } else if (seized.error() != 0) {
      ++num_refused;
      refusal = WhyRefused(folder, seized.error());
      stack->set_error(refusal);
    } else if (!seized.is_stopped()) {
      stack->set_error(WhyNotStopped(folder));
    } else {
      Unwind(thread, space.get(), mappings, stack);
    }
  }
  if (num_refused == 0 || num_refused < evidence.stacks_size()) return evidence;
  if (StateOf(TextOf(absl::StrCat("/proc/", pid, "/stat"))) == "Z") {
    return absl::NotFoundError(absl::StrCat("process ", pid, ": it has ended"));
  }
  return absl::PermissionDeniedError(absl::StrCat("ptrace of process ", pid, ": ", refusal));
}

// Fails where there is no Yama, which then needs no permission.
void AllowStacks() { ::prctl(PR_SET_PTRACER, ::getppid(), 0, 0, 0); }

int RunStackProcess(int link_fd) {
  ::prctl(PR_SET_NAME, "megascale-stk");  // what ps shows
  base::InitLog("stacks", base::LogLevel::kInfo);
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(static_cast<unsigned>(absl::ToInt64Seconds(kStackTimeout)));
  const base::UniqueFd link(link_fd);
  const absl::StatusOr<base::Frame> frame = base::ReceiveFrame(link.get(), kLinkTimeout);
  megascale::link::v1::StackAssignment assignment;
  if (!frame.ok() || !assignment.ParseFromString(frame->payload)) {
    base::LogError(frame.ok() ? "malformed assignment" : frame.status().message());
    return 1;
  }
  absl::StatusOr<v1::Evidence> evidence = ReadStacks(assignment.pid());
  megascale::agent::v1::EvidenceChunk chunk;
  chunk.set_code(static_cast<int>(evidence.status().code()));
  if (evidence.ok()) {
    *chunk.mutable_evidence() = *std::move(evidence);
  } else {
    chunk.set_message(std::string(evidence.status().message()));
  }
  const auto bytes = base::Serialize(chunk, base::kFrameBytesMax);
  if (!bytes.ok()) return 1;
  return base::SendFrame(link.get(), *bytes, {}, kLinkTimeout).ok() ? 0 : 1;
}

}  // namespace megascale::telemetry
