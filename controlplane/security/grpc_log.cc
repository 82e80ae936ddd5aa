#include "controlplane/security/grpc_log.h"

#include <grpc/support/log.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"

namespace megascale::security {
namespace {

constexpr absl::Duration kLineInterval = absl::Minutes(1);
// The maximum number of different texts. Reasons come from a short list, but other lines of gRPC
// contain addresses and are unbounded.
constexpr size_t kTextsMax = 64;
constexpr absl::string_view kHandshakeFailed = "Handshake failed with fatal error";

// Reasons in OpenSSL's words, and in this program's.
constexpr std::array<std::pair<absl::string_view, absl::string_view>, 5> kReasons = {{
    {"peer did not return a certificate", "it showed no certificate"},
    {"certificate verify failed",
     "its certificate has expired, or --tls-ca does not hold its "
     "authority, or it is no client's"},
    {"wrong version number", "it spoke no TLS"},
    {"http request", "it spoke no TLS"},
    {" alert ", "it refuses this driver's certificate"},
}};

bool IsLeftToGrpc() { return std::getenv("GRPC_VERBOSITY") != nullptr; }

void Drop(gpr_log_func_args*) {}

void LogLine(gpr_log_func_args* line) {
  const std::string reason = RefusalReason(line->message);
  if (reason.empty() && line->severity < GPR_LOG_SEVERITY_ERROR) return;
  const std::string text = reason.empty() ? absl::StrCat("gRPC: ", line->message)
                                          : absl::StrCat("refused a connection: ", reason);
  LogRefusal(text);
}

}  // namespace

void LogRefusal(const std::string& text) {
  // Made once and never destroyed: gRPC's threads may log until the process is gone.
  static std::mutex* mutex = new std::mutex;
  static LineLimiter* limiter = new LineLimiter;
  std::string admitted;
  {
    std::lock_guard<std::mutex> lock(*mutex);
    admitted = limiter->Admit(text, base::RealClock().Monotonic());
  }
  if (!admitted.empty()) base::LogWarning(admitted);
}

void SilenceGrpc() {
  if (!IsLeftToGrpc()) gpr_set_log_function(Drop);
}

void LogRefusals() {
  if (!IsLeftToGrpc()) gpr_set_log_function(LogLine);
}

std::string RefusalReason(absl::string_view grpc_line) {
  if (!absl::StrContains(grpc_line, kHandshakeFailed)) return "";
  for (const auto& [theirs, ours] : kReasons) {
    if (absl::StrContains(grpc_line, theirs)) return std::string(ours);
  }
  const size_t at = grpc_line.rfind(':');
  return absl::StrCat("the TLS handshake failed: ",
                      at == absl::string_view::npos ? grpc_line : grpc_line.substr(at + 1));
}

std::string LineLimiter::Admit(const std::string& text, absl::Duration now) {
  const auto found = seen_.find(text);
  if (found == seen_.end()) {
    if (seen_.size() >= kTextsMax) seen_.clear();
    seen_[text].logged_at = now;
    return text;
  }
  Seen& seen = found->second;
  if (now - seen.logged_at < kLineInterval) {
    ++seen.num_left_out;
    return "";
  }
  seen.logged_at = now;
  const int64_t num_left_out = std::exchange(seen.num_left_out, 0);
  return num_left_out == 0 ? text : absl::StrCat(text, " (and ", num_left_out, " more like it)");
}

}  // namespace megascale::security
