// What gRPC writes to standard error by itself: a failed handshake is a line of C++ file names
// there. Programs that say it better take that over. Process-wide, as gRPC's log is; call once,
// before channels or servers are made. Nothing changes where the environment has GRPC_VERBOSITY,
// which is for looking into gRPC itself.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megascale::security {

// For clients: nothing is written; their errors name the reason (probe.h).
void SilenceGrpc();

// For the driver: handshakes that failed become warnings, "refused a connection: <why>", at most
// one a minute for each reason; gRPC's other errors become warnings as they are. gRPC does not tell
// whose connection it was.
void LogRefusals();

// Of a line of gRPC's log, why a connection was refused; "" for another line.
std::string RefusalReason(absl::string_view grpc_line);

// At most one line a minute for each text; the next one says how many were left out.
// Threads: one at a time.
class LineLimiter {
 public:
  // What to log for `text` at `now`; "": nothing.
  std::string Admit(const std::string& text, absl::Duration now);

 private:
  struct Seen {
    absl::Duration logged_at;
    int64_t num_left_out = 0;
  };
  std::map<std::string, Seen> seen_;
};

}  // namespace megascale::security
