// Controls gRPC's own lines on standard error, where a failed handshake is a line of C++ file
// names. gRPC's log is process-wide, so call one of these functions once, before any channel or
// server is made. They do nothing if the environment sets GRPC_VERBOSITY, which is for debugging
// gRPC.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megascale::security {

// Turns gRPC's log off. For clients, whose errors name the reason (probe.h).
void SilenceGrpc();

// Turns failed handshakes into warnings, "refused a connection: <why>", at most one a minute for
// each reason, and gRPC's other errors into warnings with unchanged text. For the driver. gRPC does
// not tell who tried to connect.
void LogRefusals();

// Returns the reason why a connection was refused, from a line of gRPC's log; "" for any other
// line.
std::string RefusalReason(absl::string_view grpc_line);

// Admits at most one line a minute for each text; the next line says how many were left out.
// Threads: one at a time.
class LineLimiter {
 public:
  // Returns the line to log for `text` at `now`; "": log nothing.
  std::string Admit(const std::string& text, absl::Duration now);

 private:
  struct Seen {
    absl::Duration logged_at;
    int64_t num_left_out = 0;
  };
  std::map<std::string, Seen> seen_;
};

// Logs a refusal as a warning, at most once a minute for each text. Threads: any.
void LogRefusal(const std::string& text);

}  // namespace megascale::security
