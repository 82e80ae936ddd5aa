// The reader of traces on good and on hostile files.
#include "runtime/diagnose/chrome_trace.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/diagnose/traced_job.h"

namespace megascale::diagnose {
namespace {

constexpr char kEvent[] =
    R"({"name":"optimizer","ph":"X","pid":1,"tid":20,"ts":1.5e6,"dur":250000.0,)"
    R"("args":{"step":7,"model_chunk":-1,"mb_id":null,"seq_id":0}})";

// Gives `text` in pieces of `piece` bytes.
absl::StatusOr<ChromeTrace> Read(const std::string& text, size_t piece = 1 << 20,
                                 const ChromeTraceLimits& limits = {}) {
  size_t done = 0;
  const auto read = [&](char* buffer, size_t size) -> absl::StatusOr<size_t> {
    const size_t count = std::min({size, piece, text.size() - done});
    std::copy_n(text.data() + done, count, buffer);
    done += count;
    return count;
  };
  return ReadChromeTrace(read, limits);
}

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string compressed(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  compressed.resize(compressed.size() - stream.avail_out);
  deflateEnd(&stream);
  return compressed;
}

// Checks that a file is refused with one line that has `words`.
void ExpectRefused(const std::string& text, const std::string& words,
                   const ChromeTraceLimits& limits = {}) {
  const auto trace = Read(text, 1 << 20, limits);
  ASSERT_FALSE(trace.ok()) << words;
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(trace.status().message());
  EXPECT_NE(message.find(words), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 300u);
}

TEST(ChromeTraceTest, ReadsEventsOfBothFormsPlainAndCompressedInPiecesOfAnySize) {
  const std::string list =
      absl::StrCat("[", kEvent, ",{\"ph\":\"M\",\"name\":\"x\"},", kEvent, "]");
  const std::string object =
      absl::StrCat("{\"other\":[{\"a\":[1]}],\"traceEvents\":", list, ",\"more\":{}}");
  for (const std::string& text :
       {list, object, Gzip(list), Gzip(object), Gzip(list.substr(0, 40)) + Gzip(list.substr(40))}) {
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{100000}}) {
      const auto trace = Read(text, piece);
      ASSERT_TRUE(trace.ok()) << trace.status();
      ASSERT_EQ(trace->events.size(), 2u);
      EXPECT_EQ(trace->names, std::vector<std::string>{"optimizer"});
      const TraceEvent& event = trace->events[1];
      EXPECT_EQ(event.pid, 1);
      EXPECT_EQ(event.tid, 20);
      EXPECT_DOUBLE_EQ(event.begin_seconds, 1.5);
      EXPECT_DOUBLE_EQ(event.seconds, 0.25);
      EXPECT_EQ(event.step, 7);
      EXPECT_EQ(event.microbatch, kNoNumber);
      EXPECT_EQ(event.sequence, 0);
    }
  }
}

TEST(ChromeTraceTest, RefusesFilesThatAreNoTrace) {
  ExpectRefused("", "not JSON");
  ExpectRefused("hello", "not JSON");
  ExpectRefused("[1,2", "not JSON");
  ExpectRefused("17", "no list of events");
  ExpectRefused("{\"a\":1}", "no list of events");
  ExpectRefused(absl::StrCat("[", kEvent, "]x"), "not JSON");
}

TEST(ChromeTraceTest, RefusesValuesOutOfRange) {
  const auto with = [](const std::string& field, const std::string& args) {
    return absl::StrCat(R"([{"ph":"X","name":"gc",)", field, R"("args":{"step":1)", args, "}}]");
  };
  ExpectRefused(with("\"dur\":-1,", ""), "dur is -1");
  ExpectRefused(with("\"ts\":1e300,", ""), "ts is");
  ExpectRefused(with("\"pid\":0.5,", ""), "pid is 0.5");
  ExpectRefused(with("\"tid\":-2,", ""), "tid is -2");
  ExpectRefused(with("", ",\"seq_id\":1e18"), "seq_id is");
  ExpectRefused(R"([{"ph":"X","name":"gc","args":{"step":0.5}}])", "step is 0.5");
}

// Clocks are adjusted while a job is traced, and a few events may be damaged.
TEST(ChromeTraceTest, AFewFaultsAreCountedAndMoreAreRefused) {
  const auto text = [](int num_negative, int num_bad) {
    std::string list = "[";
    for (int i = 0; i < 400; ++i) {
      const std::string dur = i < num_negative ? absl::StrCat(-27 - i) : "5";
      const std::string number = i >= 400 - num_bad ? "0.5" : absl::StrCat(i);
      absl::StrAppend(&list, i > 0 ? "," : "", R"({"ph":"X","name":"gc","ts":3,"dur":)", dur,
                      R"(,"args":{"step":1,"seq_id":)", number, "}}");
    }
    return list + "]";
  };
  const auto trace = Read(text(3, 1));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->events.size(), 399u);
  EXPECT_EQ(trace->num_negative, 3);
  EXPECT_DOUBLE_EQ(trace->most_negative_seconds, -29e-6);
  EXPECT_EQ(trace->events[0].seconds, 0);
  EXPECT_DOUBLE_EQ(trace->events[3].seconds, 5e-6);
  EXPECT_EQ(trace->num_bad, 1);
  EXPECT_NE(trace->first_bad.find("event 399: seq_id is 0.5"), std::string::npos);
  ExpectRefused(text(3, 2),
                "event 0: dur is -27; expected 0 or more microseconds; 5 of 400 events");
  ExpectRefused(text(0, 5), "event 395: seq_id is 0.5");
}

// Profilers write threads with large or negative ids, text for ids, and counters beside the steps.
TEST(ChromeTraceTest, OddFieldsOfEventsThatDoNotCountAreIgnored) {
  const auto trace = Read(absl::StrCat(
      R"([{"ph":"C","name":"memory","pid":-7,"tid":1e300,"ts":-1e300,"args":{"step":0.5}},)",
      R"({"ph":"X","name":"a kernel","tid":-2,"dur":-1,"args":{"seq_id":1e18}},)",
      R"({"ph":"X","name":"no time","pid":0,"tid":0,"ts":null,"dur":null,"args":{"step":7}},)",
      R"({"ts":0.5,"tid":-9,"args":{"step":-5},"ph":"M","name":"last"},)", kEvent, "]"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->events.size(), 2u);
  EXPECT_EQ(trace->num_without_step, 1);
  EXPECT_EQ(trace->events[0].seconds, 0);
  EXPECT_EQ(trace->names[1], "optimizer");
}

TEST(ChromeTraceTest, ReadsTimesSince1970) {
  const auto trace =
      Read(R"([{"ph":"X","name":"gc","ts":1764000000000000,"dur":5e5,"args":{"step":1}}])");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_DOUBLE_EQ(trace->events[0].begin_seconds, 1764000000);
  EXPECT_DOUBLE_EQ(trace->events[0].seconds, 0.5);
}

TEST(ChromeTraceTest, RefusesDamagedAndTruncatedGzip) {
  const std::string whole = Gzip(absl::StrCat("[", kEvent, "]"));
  ExpectRefused(whole.substr(0, whole.size() - 9), "gzip data end in the middle");
  std::string damaged = whole;
  damaged[15] = static_cast<char>(damaged[15] ^ 0x55);
  damaged[30] = static_cast<char>(damaged[30] ^ 0x55);
  EXPECT_FALSE(Read(damaged).ok());
  ExpectRefused(whole + "trailing", "damaged");
}

// The reader's memory stays bounded: it stops before a long string, a long gap, deep brackets, too
// many events and a small file that decompresses to a large one.
TEST(ChromeTraceTest, RefusesWhatIsTooLarge) {
  ExpectRefused(absl::StrCat("[{\"name\":\"", std::string(200'000, 'x'), "\"}]"), "longer than");
  ExpectRefused(absl::StrCat("[", std::string(200'000, ' '), "]"), "longer than");
  ExpectRefused(std::string(100'000, '['), "brackets inside each other");
  ExpectRefused(absl::StrCat("[", kEvent, ",", kEvent, "]"), "more than 1 events",
                {.events_max = 1});
  ExpectRefused(Gzip("[" + std::string(40'000, ' ') + "]"), "more than 30000 bytes",
                {.bytes_max = 30'000});
  std::string many = "[";
  for (int i = 0; i < 3; ++i) {
    absl::StrAppend(&many, i > 0 ? "," : "", R"({"ph":"X","name":"n)", i,
                    R"(","args":{"step":1}})");
  }
  ExpectRefused(many + "]", "different names", {.names_max = 2});
}

TEST(ChromeTraceTest, AnErrorOfTheFileIsReturnedAsItIs) {
  const auto trace = ReadChromeTrace(
      [](char*, size_t) -> absl::StatusOr<size_t> { return absl::UnavailableError("disk"); });
  EXPECT_EQ(trace.status(), absl::UnavailableError("disk"));
}

// --- a job from a trace -----------------------------------------------------------------------

struct Event {
  std::string name;
  int replica = 0;
  int rank = 0;
  double begin = 0;
  double seconds = 1;
  int64_t step = 1;
  int64_t sequence = 0;
  int64_t chunk = 0;
};

ChromeTrace TraceOf(const std::vector<Event>& events) {
  ChromeTrace trace;
  for (const Event& event : events) {
    const auto found = std::find(trace.names.begin(), trace.names.end(), event.name);
    trace.events.push_back({.name = static_cast<int>(found - trace.names.begin()),
                            .pid = event.replica,
                            .tid = event.rank * 5,
                            .begin_seconds = event.begin,
                            .seconds = event.seconds,
                            .step = event.step,
                            .model_chunk = event.chunk,
                            .microbatch = kNoNumber,
                            .sequence = event.sequence});
    if (found == trace.names.end()) trace.names.push_back(event.name);
  }
  return trace;
}

void ExpectNoJob(const std::vector<Event>& events, const std::string& words) {
  const auto job = JobOfTrace(TraceOf(events));
  ASSERT_FALSE(job.ok()) << words;
  EXPECT_NE(job.status().message().find(words), std::string::npos) << job.status();
}

TEST(TracedJobTest, RefusesTracesThatAreNoTrainingSteps) {
  ExpectNoJob({}, "no operation of a training step");
  ExpectNoJob({{.name = "matmul"}}, "no event has the name of an operation");
  ExpectNoJob({{.name = "gc"}}, "no forward-compute");
  ExpectNoJob({{.name = "forward-compute", .chunk = 1}}, "interleaved");
  ExpectNoJob({{.name = "forward-compute"}, {.name = "forward-compute"}}, "occurs twice");
  ExpectNoJob({{.name = "forward-compute"},
               {.name = "forward-send"},
               {.name = "forward-compute", .rank = 1}},
              "the stage that receives has 0");
  ExpectNoJob({{.name = "forward-compute"},
               {.name = "forward-compute", .sequence = 1},
               {.name = "forward-recv"}},
              "expected one for each pass or none");
  ExpectNoJob({{.name = "forward-compute"},
               {.name = "forward-compute", .rank = 1},
               {.name = "forward-compute", .replica = 1, .rank = 2}},
              "as many stages");
}

// A replay for each of many stages would take hours.
TEST(TracedJobTest, RefusesMoreStagesThanItCanReplay) {
  std::vector<Event> events;
  for (int rank = 0; rank < 50'000; ++rank) {
    events.push_back({.name = "forward-compute", .rank = rank});
  }
  ExpectNoJob(events, "1 data-parallel ranks and 50000 stages take too long");
}

TEST(TracedJobTest, LeavesOutAFewOperationsThatOccurTwice) {
  std::vector<Event> events;
  for (int64_t sequence = 0; sequence < 99; ++sequence) {
    events.push_back({.name = "forward-compute", .sequence = sequence});
  }
  events.push_back({.name = "forward-compute", .seconds = 7, .sequence = 4});
  const auto job = JobOfTrace(TraceOf(events));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->num_twice, 1);
  EXPECT_DOUBLE_EQ(job->graph.Replay(job->steps[0].times), 99);
  events.push_back({.name = "forward-compute", .sequence = 5});
  ExpectNoJob(events, "forward-compute 5 occurs twice");
}

TEST(TracedJobTest, LeavesOutStepsThatLackAnOperationAndNamesUnknownOnes) {
  std::vector<Event> events;
  for (int64_t step = 1; step <= 3; ++step) {
    events.push_back({.name = "forward-compute", .step = step});
    if (step != 2) events.push_back({.name = "optimizer", .begin = 1, .step = step});
    events.push_back({.name = "coffee", .step = step});
  }
  const auto job = JobOfTrace(TraceOf(events));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->steps.size(), 2u);
  EXPECT_EQ(job->num_steps_left_out, 1);
  EXPECT_EQ(job->ignored_names, std::vector<std::string>{"coffee"});
  EXPECT_DOUBLE_EQ(job->graph.Replay(job->steps[0].times), 2);
}

}  // namespace
}  // namespace megascale::diagnose
