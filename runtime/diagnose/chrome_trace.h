// Reads the complete events ("ph":"X") of a trace in Chrome's JSON format, plain or compressed with
// gzip. Streams: neither the file nor its JSON is ever in memory, only the events. A pure function
// of the bytes. Source: "Trace Event Format", JSON array and JSON object formats; RFC 1952.
//
//   ASSIGN_OR_RETURN(const ChromeTrace trace, ReadChromeTrace(read_from_file));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace megascale::diagnose {

inline constexpr int64_t kNoNumber = -1;

// A complete event of a training step. Numbers that the trace does not give are kNoNumber.
struct TraceEvent {
  int name = 0;  // index
  int64_t pid = 0;
  int64_t tid = 0;
  double begin_seconds = 0;
  double seconds = 0;
  int64_t step = kNoNumber;         // args.step
  int64_t model_chunk = kNoNumber;  // args.model_chunk
  int64_t microbatch = kNoNumber;   // args.mb_id
  int64_t sequence = kNoNumber;     // args.seq_id
};

struct ChromeTrace {
  std::vector<std::string> names;
  std::vector<TraceEvent> events;  // in the file's order
  int64_t num_without_step = 0;    // complete events that name no step; left out
  // Events that end before they begin, since a clock was adjusted meanwhile: they last 0 s here.
  int64_t num_negative = 0;
  double most_negative_seconds = 0;  // of the worst of them; <= 0
  int64_t num_bad = 0;               // other events with a value out of range; left out
  std::string first_bad = "";        // what is wrong with the first of them
};

// A trace is refused if more than this share of the events of steps is negative or bad.
inline constexpr double kBadEventsMax = 0.01;

// The largest trace that is read.
struct ChromeTraceLimits {
  int64_t events_max = 4'000'000;              // 72 bytes each
  int64_t bytes_max = int64_t{1} << 30;        // of JSON, uncompressed
  int64_t token_bytes_max = int64_t{1} << 16;  // between two parts of the JSON, such as a string
  int names_max = 1000;                        // different names of events
};

// Writes at most `size` bytes of the file to `buffer` and returns how many; 0: the file has ended.
using ReadBytes = std::function<absl::StatusOr<size_t>(char* buffer, size_t size)>;

// Events that are not complete ones, and fields that TraceEvent lacks, are ignored. Errors:
// InvalidArgument - the file is no such trace, is damaged or too large, or too many of its events
// are bad; the message says where. Those of `read`.
absl::StatusOr<ChromeTrace> ReadChromeTrace(const ReadBytes& read,
                                            const ChromeTraceLimits& limits = {});

}  // namespace megascale::diagnose
