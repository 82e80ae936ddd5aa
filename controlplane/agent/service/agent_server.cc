#include "controlplane/agent/service/agent_server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controlplane/agent/service/agent_key.h"
#include "controlplane/agent/service/agent_loop.h"
#include "controlplane/agent/service/driver_stream.h"
#include "controlplane/agent/service/kept_logs.h"
#include "controlplane/agent/service/local_address.h"
#include "controlplane/launch/process_keeper.h"
#include "controlplane/protocol/protocol.h"
#include "controlplane/security/grpc_log.h"
#include "controlplane/security/probe.h"
#include "controlplane/security/tls_check.h"
#include "runtime/base/fd.h"
#include "runtime/base/frame.h"
#include "runtime/base/log.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/ops/ops.h"

namespace megascale::agent {
namespace {

// Socket paths have 107 bytes; "/t12345-12345/" and a socket's name follow.
constexpr size_t kRunDirectoryBytesMax = 75;
// What the agent opens for itself, and for each slot: a link, output, a log, snapshot memory.
constexpr int64_t kDescriptorsOfAgent = 128;
constexpr int64_t kDescriptorsPerSlot = 4;

std::string Hostname() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string RandomWord() {
  uint64_t word = 0;
  while (::getrandom(&word, sizeof(word), 0) != sizeof(word)) {
  }
  return absl::StrCat(absl::Hex(word, absl::kZeroPad16));
}

// Says before the start what would fail only when a job fills the machine.
absl::Status CheckSlots(int num_slots) {
  if (num_slots < 1 || num_slots > kSlotsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slots ", num_slots, ": expected 1 to ", kSlotsMax));
  }
  const int64_t needed = kDescriptorsOfAgent + kDescriptorsPerSlot * num_slots;
  const int64_t limit = base::RaiseDescriptorLimit();
  if (limit >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--slots ", num_slots, ": needs ", needed, " open descriptors, and the limit is ", limit,
      "; raise it (ulimit -Hn, or LimitNOFILE of the unit), or give fewer slots"));
}

absl::StatusOr<AgentOptions> Resolve(AgentOptions options) {
  RETURN_IF_ERROR(CheckSlots(options.num_slots));
  if (options.drain_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--drain-timeout ", absl::FormatDuration(options.drain_timeout), ": expected at least 0s"));
  }
  if (options.node_id.empty()) options.node_id = Hostname();
  if (options.run_directory.empty()) {
    return absl::InvalidArgumentError("--run-dir: expected a directory for sockets");
  }
  std::error_code error;
  options.run_directory = std::filesystem::absolute(options.run_directory, error).string();
  if (error || options.run_directory.size() > kRunDirectoryBytesMax) {
    return absl::FailedPreconditionError(
        absl::StrCat("run directory ", options.run_directory, ": its path has ",
                     options.run_directory.size(), " bytes, at most ", kRunDirectoryBytesMax,
                     " leave room for socket names; choose a shorter one"));
  }
  if (options.state_directory.empty()) options.state_directory = options.run_directory;
  options.state_directory = std::filesystem::absolute(options.state_directory, error).string();
  if (options.log_directory.empty()) {
    options.log_directory = absl::StrCat(options.run_directory, "/logs");
  }
  return options;
}

// Locks a folder that only one agent may use. `what`: the name of its option without the dashes.
absl::StatusOr<base::UniqueFd> LockDirectory(const std::string& directory, absl::string_view what) {
  const std::string path = absl::StrCat(directory, "/agent.lock");
  base::UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return base::ErrnoStatus(errno, absl::StrCat("open ", path));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("another agent runs in ", directory,
                                                      ": end it, or give this one another --", what,
                                                      " and --node-id"));
  }
  return lock;
}

// The fingerprint of the key in the state directory, and the lock of that directory; no lock if it
// is the run directory, which is already locked.
struct AgentKey {
  std::string fingerprint;
  base::UniqueFd lock;
};
absl::StatusOr<AgentKey> TakeKey(const AgentOptions& options) {
  AgentKey key;
  if (const auto made = base::MakeDirectories(options.state_directory); !made.ok()) {
    return absl::Status(made.code(), absl::StrCat(made.message(), "; give another --state-dir"));
  }
  RETURN_IF_ERROR(base::CheckTrustedFolder(options.state_directory, "give another --state-dir"));
  std::error_code error;
  if (!std::filesystem::equivalent(options.state_directory, options.run_directory, error)) {
    ASSIGN_OR_RETURN(key.lock, LockDirectory(options.state_directory, "state-dir"));
  }
  ASSIGN_OR_RETURN(key.fingerprint, LoadOrMakeKey(options.state_directory));
  return key;
}

// Makes the run directory owner-only, locks it and removes the files of an agent that died.
absl::StatusOr<base::UniqueFd> TakeRunDirectory(const std::string& directory) {
  RETURN_IF_ERROR(base::TakeOwnFolder(directory, "give another --run-dir"));
  ASSIGN_OR_RETURN(base::UniqueFd lock, LockDirectory(directory, "run-dir"));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > 1 && name[0] == 't' && absl::ascii_isdigit(name[1])) {
      std::error_code ignored;
      std::filesystem::remove_all(entry.path(), ignored);
    }
  }
  return lock;
}

v1::Resources MakeResources() {
  const base::CpuLimit cpu = base::SmallestCpuLimit();
  const std::optional<base::MemoryLimit> memory = base::SmallestMemoryLimit();
  v1::Resources resources;
  resources.set_cores(cpu.cores);
  resources.set_cores_source(cpu.source);
  if (memory.has_value()) {
    resources.set_memory_bytes(memory->limit_bytes);
    resources.set_memory_source(memory->source);
  }
  resources.set_descriptors(base::RaiseDescriptorLimit());
  return resources;
}

v1::Hello MakeHello(const AgentOptions& options, const AgentKey& key) {
  const std::string boot =
      base::ReadFile("/proc/sys/kernel/random/boot_id", 1 << 10).value_or("unknown");
  v1::Hello hello;
  protocol::SetVersions(&hello);
  hello.set_tests_machine(true);
  hello.set_tests_exchange(true);
  hello.set_data_digests(true);
  hello.set_binds_address(true);
  hello.set_evaluates(true);
  hello.set_node_id(options.node_id);
  hello.set_incarnation(RandomWord());
  hello.set_key(key.fingerprint);
  hello.set_num_slots(options.num_slots);
  hello.set_hostname(Hostname());
  hello.set_machine_id(absl::StrCat(absl::StripAsciiWhitespace(boot), "/", hello.hostname()));
  hello.set_instruction_set(ops::InstructionSet());
  hello.set_numerics_version(std::string(checkpoint::kNumericsVersion));
  *hello.mutable_resources() = MakeResources();
  return hello;
}

// Returns an error if the driver would never accept this agent. OK if the driver is away, because
// it may come back.
absl::Status CheckRefusal(const DriverStreamOptions& options) {
  // Does not connect, but refuses options that can never work.
  ASSIGN_OR_RETURN(const std::unique_ptr<DriverStream> stream, DriverStream::Create(options));
  if (options.address.is_unix()) return stream->CheckAddress();
  absl::Status status =
      security::ProbeDriver(options.address, options.tls, security::Role::kAgent, kProbeTimeout);
  if (absl::IsUnauthenticated(status)) return status;
  const std::string expiry =
      options.tls.any() ? security::ExpiryWarning(options.tls, absl::Now()) : "";
  if (!expiry.empty()) base::LogWarning(expiry);
  return absl::OkStatus();
}

// Makes SIGTERM and SIGINT readable from a descriptor. Call it before any thread starts, because
// threads inherit the mask.
base::UniqueFd BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return base::UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

}  // namespace

absl::Status RunAgent(const AgentOptions& given) {
  security::SilenceGrpc();
  ::umask(077);  // logs, sockets, checkpoints: of this process and of all that it starts
  ASSIGN_OR_RETURN(const AgentOptions options, Resolve(given));
  ASSIGN_OR_RETURN(const client::Address address, client::ParseAddress(options.driver_address));
  ASSIGN_OR_RETURN(const std::unique_ptr<launch::ProcessKeeper> keeper,
                   launch::ProcessKeeper::Start({}));
  const base::UniqueFd signals = BlockSignals();
  if (!signals.valid()) return base::ErrnoStatus(errno, "signalfd");

  DriverStreamOptions stream_options;
  stream_options.address = address;
  stream_options.tls = options.tls;
  stream_options.insecure = options.insecure;
  RETURN_IF_ERROR(CheckRefusal(stream_options));
  // All checks come first, so that a refusal leaves nothing behind.
  ASSIGN_OR_RETURN(const base::UniqueFd lock, TakeRunDirectory(options.run_directory));
  ASSIGN_OR_RETURN(const AgentKey key, TakeKey(options));
  RETURN_IF_ERROR(base::MakeDirectories(options.log_directory));
  PruneJobLogs(options.log_directory, /*present=*/{});
  stream_options.hello = MakeHello(options, key);
  ASSIGN_OR_RETURN(const std::unique_ptr<DriverStream> stream,
                   DriverStream::Create(stream_options));
  AgentLoopOptions loop_options;
  loop_options.node_id = options.node_id;
  loop_options.incarnation = stream_options.hello.incarnation();
  loop_options.run_directory = options.run_directory;
  loop_options.log_directory = options.log_directory;
  loop_options.interface = options.interface;
  loop_options.store = options.store;
  if (loop_options.interface.empty() && !address.is_unix()) {
    ASSIGN_OR_RETURN(loop_options.interface, LocalAddressTowards(address.host));
  }
  loop_options.signals_fd = signals.get();
  loop_options.drain_timeout = options.drain_timeout;
  loop_options.read_gpus = options.read_gpus;
  base::LogInfo(absl::StrCat("agent ", options.node_id, ": ", options.num_slots, " slots, ",
                             stream_options.hello.instruction_set(), ", driver ", address.text));
  if (options.insecure && !address.is_unix()) {
    base::LogWarning("--insecure: the connection to the driver is neither secret nor authentic");
  }
  AgentLoop loop(std::move(loop_options), keeper.get(), stream.get());
  absl::Status ended = loop.Run();
  keeper->Stop();  // before memory and socket directories go
  if (ended.ok()) base::LogInfo("asked to end; its processes are gone");
  return ended;
}

}  // namespace megascale::agent
