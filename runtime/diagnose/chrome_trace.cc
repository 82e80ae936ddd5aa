#include "runtime/diagnose/chrome_trace.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/base/text/printable.h"
#include "runtime/diagnose/byte_stream.h"

namespace megascale::diagnose {

// --- byte_stream.h -------------------------------------------------------------------------------

namespace {

constexpr size_t kBufferBytes = size_t{1} << 16;
constexpr size_t kMagicBytes = 2;         // by which gzip is known
constexpr int kGzipWindowBits = 15 + 16;  // the largest window; +16: gzip's header and trailer

bool IsGzip(const std::vector<char>& file, size_t size) {
  return size >= kMagicBytes && file[0] == '\x1f' && file[1] == '\x8b';
}

}  // namespace

struct ByteStream::Inflater {
  z_stream stream = {};
  bool is_open = false;    // inflateInit2 succeeded
  bool in_member = false;  // a member of the file has begun and not ended
  bool file_ended = false;

  ~Inflater() {
    if (is_open) inflateEnd(&stream);
  }
};

ByteStream::ByteStream(const ReadBytes& read, int64_t bytes_max)
    : read_(read), bytes_max_(bytes_max), file_(kBufferBytes), text_(kBufferBytes) {}

ByteStream::~ByteStream() = default;

size_t ByteStream::ReadFile(size_t offset) {
  const size_t free = file_.size() - offset;
  absl::StatusOr<size_t> size = read_(file_.data() + offset, free);
  if (size.ok()) return std::min(*size, free);
  status_ = std::move(size).status();
  return 0;
}

size_t ByteStream::ReadBeginning() {
  size_t size = 0;
  while (size < kMagicBytes) {
    const size_t more = ReadFile(size);
    if (more == 0) break;
    size += more;
  }
  return size;
}

bool ByteStream::Refill() {
  if (!status_.ok()) return false;
  num_before_ += static_cast<int64_t>(text_end_);
  next_ = 0;
  text_end_ = 0;
  if (!has_begun_) {
    has_begun_ = true;
    const size_t size = ReadBeginning();
    if (IsGzip(file_, size)) {
      inflater_ = std::make_unique<Inflater>();
      inflater_->is_open = inflateInit2(&inflater_->stream, kGzipWindowBits) == Z_OK;
      inflater_->stream.next_in = reinterpret_cast<Bytef*>(file_.data());
      inflater_->stream.avail_in = static_cast<uInt>(size);
      text_end_ = Inflate();
    } else {
      text_.swap(file_);
      text_end_ = size;
    }
  } else if (inflater_ != nullptr) {
    text_end_ = Inflate();
  } else {
    text_end_ = ReadFile();
    text_.swap(file_);
  }
  if (text_end_ > 0 && num_before_ + static_cast<int64_t>(text_end_) > bytes_max_) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("the trace has more than ", bytes_max_, " bytes of JSON; record fewer steps"));
  }
  return status_.ok() && text_end_ > 0;
}

size_t ByteStream::Inflate() {
  z_stream& stream = inflater_->stream;
  if (!inflater_->is_open) {
    status_ = absl::ResourceExhaustedError("no memory to decompress the trace");
    return 0;
  }
  stream.next_out = reinterpret_cast<Bytef*>(text_.data());
  stream.avail_out = static_cast<uInt>(text_.size());
  while (stream.avail_out == text_.size()) {
    if (stream.avail_in == 0 && !inflater_->file_ended) {
      stream.next_in = reinterpret_cast<Bytef*>(file_.data());
      stream.avail_in = static_cast<uInt>(ReadFile());
      inflater_->file_ended = stream.avail_in == 0;
      if (!status_.ok()) return 0;
    }
    if (inflater_->file_ended) {
      if (inflater_->in_member) {
        status_ = absl::InvalidArgumentError(
            "the gzip data end in the middle; expected a whole file: copy it again");
      }
      return 0;
    }
    inflater_->in_member = true;
    const int result = inflate(&stream, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      inflater_->in_member = false;
      inflateReset(&stream);  // a file may have several members
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("the gzip data are damaged after ", num_before_,
                       " bytes of JSON; expected a whole file: copy it again"));
      return 0;
    }
  }
  return text_.size() - stream.avail_out;
}

// --- chrome_trace.h ------------------------------------------------------------------------------

namespace {

constexpr size_t kDepthMax = 16;
constexpr size_t kNameBytesMax = 128;
constexpr double kMicrosecondsMax = 1e17;         // 3170 years; times may count from 1970
constexpr int64_t kNumberMax = int64_t{1} << 40;  // of ids and steps

// What an open bracket of the JSON holds.
enum class Part : uint8_t { kFile, kEvents, kEvent, kArguments, kIgnored };

absl::Status Invalid(absl::string_view what) { return absl::InvalidArgumentError(what); }

// Fills a ChromeTrace from the parts of the JSON. A method returns false to stop.
class Handler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Handler(const ChromeTraceLimits& limits, int64_t* last_part, const ByteStream& bytes)
      : limits_(limits), last_part_(*last_part), bytes_(bytes) {}

  bool null() override { return Advance(); }  // as if the field were absent
  bool boolean(bool /*value*/) override { return Advance(); }
  bool number_integer(number_integer_t value) override {
    return Advance() && Number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Advance() && Number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return Advance() && Number(value);
  }
  bool string(string_t& value) override {
    if (!Advance()) return false;
    if (InPart() == Part::kEvent && key_ == "ph") is_complete_ = value == "X";
    if (InPart() == Part::kEvent && key_ == "name") name_ = value.substr(0, kNameBytesMax);
    return true;
  }
  bool binary(binary_t& /*value*/) override { return true; }
  bool key(string_t& value) override {
    key_ = value.substr(0, kNameBytesMax);
    return Advance();
  }

  bool start_object(size_t /*size*/) override {
    if (depth_ == 0) return Open(Part::kFile);
    if (InPart() == Part::kEvents) {
      event_ = {};
      names_step_ = false;
      mistake_.clear();
      is_complete_ = false;
      name_.clear();
      return Open(Part::kEvent);
    }
    const bool is_arguments = InPart() == Part::kEvent && key_ == "args";
    return Open(is_arguments ? Part::kArguments : Part::kIgnored);
  }
  bool end_object() override {
    if (!Advance()) return false;
    const Part ended = InPart();
    --depth_;
    return ended != Part::kEvent || AddEvent();
  }
  bool start_array(size_t /*size*/) override {
    const bool is_events = depth_ == 0 || (InPart() == Part::kFile && key_ == "traceEvents");
    has_events_ = has_events_ || is_events;
    return Open(is_events ? Part::kEvents : Part::kIgnored);
  }
  bool end_array() override {
    --depth_;
    return Advance();
  }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::json::exception& /*error*/) override {
    return Fail(absl::StrCat("not JSON at byte ", position, ", at '",
                             base::Printable(token.substr(0, 40)),
                             "'; expected a trace as chrome://tracing and Perfetto read it"));
  }

  absl::Status status() const { return status_; }
  bool has_events() const { return has_events_; }
  // Errors: InvalidArgument - too many events are bad.
  absl::StatusOr<ChromeTrace> Take() && {
    const int64_t num_faults = trace_.num_negative + trace_.num_bad;
    const auto num_events = static_cast<int64_t>(trace_.events.size()) + trace_.num_bad;
    if (static_cast<double>(num_faults) > kBadEventsMax * static_cast<double>(num_events)) {
      return Invalid(absl::StrCat(first_fault_, "; ", num_faults, " of ", num_events,
                                  " events of steps are bad, and at most ", kBadEventsMax * 100,
                                  " % may be"));
    }
    return std::move(trace_);
  }

 private:
  Part InPart() const { return depth_ == 0 ? Part::kIgnored : parts_[depth_ - 1]; }

  bool Advance() {
    last_part_ = bytes_.num_taken();
    return true;
  }

  bool Fail(const std::string& what) {
    if (status_.ok()) status_ = Invalid(what);
    return false;
  }

  bool Open(Part part) {
    if (depth_ == kDepthMax) {
      return Fail(absl::StrCat("byte ", bytes_.num_taken(), ": more than ", kDepthMax,
                               " brackets inside each other; a trace has at most 4"));
    }
    parts_[depth_++] = part;
    return Advance();
  }

  bool Number(double value) {
    if (InPart() == Part::kEvent) {
      if (key_ == "ts") Time(value, &event_.begin_seconds);
      if (key_ == "dur") Time(value, &event_.seconds);
      if (key_ == "pid") Integer(value, &event_.pid);
      if (key_ == "tid") Integer(value, &event_.tid);
    } else if (InPart() == Part::kArguments) {
      if (key_ == "step") {
        names_step_ = value != kNoNumber;
        Integer(value, &event_.step);
      }
      if (key_ == "model_chunk") Integer(value, &event_.model_chunk);
      if (key_ == "mb_id") Integer(value, &event_.microbatch);
      if (key_ == "seq_id") Integer(value, &event_.sequence);
    }
    return true;
  }

  // Keeps the first mistake of an event: it matters only if the event counts, which its other
  // fields say.
  void Mistake(double value, const std::string& expected) {
    if (!mistake_.empty()) return;
    mistake_ =
        absl::StrCat("event ", num_events_, ": ", key_, " is ", value, "; expected ", expected);
  }

  void Time(double microseconds, double* seconds) {
    if (!(std::abs(microseconds) <= kMicrosecondsMax)) {
      Mistake(microseconds, absl::StrCat("at most ", kMicrosecondsMax, " microseconds"));
      return;
    }
    *seconds = microseconds / 1e6;
  }

  void Integer(double value, int64_t* number) {
    if (!(value >= kNoNumber && value <= static_cast<double>(kNumberMax)) ||
        value != std::floor(value)) {
      Mistake(value, absl::StrCat("an integer from -1 to ", kNumberMax));
      return;
    }
    *number = static_cast<int64_t>(value);
  }

  bool AddEvent() {
    const int64_t number = num_events_++;
    if (!is_complete_) return true;
    if (!names_step_) {
      ++trace_.num_without_step;
      return true;
    }
    if (!mistake_.empty()) {
      if (trace_.num_bad++ == 0) trace_.first_bad = mistake_;
      if (first_fault_.empty()) first_fault_ = mistake_;
      return true;
    }
    if (event_.seconds < 0) {
      ++trace_.num_negative;
      trace_.most_negative_seconds = std::min(trace_.most_negative_seconds, event_.seconds);
      if (first_fault_.empty()) {
        first_fault_ = absl::StrCat("event ", number, ": dur is ", event_.seconds * 1e6,
                                    "; expected 0 or more microseconds");
      }
      event_.seconds = 0;
    }
    if (static_cast<int64_t>(trace_.events.size()) >= limits_.events_max) {
      return Fail(absl::StrCat("the trace has more than ", limits_.events_max,
                               " events of steps; record fewer steps"));
    }
    const auto [found, is_new] = numbers_.try_emplace(name_, static_cast<int>(numbers_.size()));
    if (is_new) {
      if (static_cast<int>(trace_.names.size()) >= limits_.names_max) {
        return Fail(absl::StrCat("events have more than ", limits_.names_max,
                                 " different names; expected names of operations"));
      }
      trace_.names.push_back(name_);
    }
    event_.name = found->second;
    trace_.events.push_back(event_);
    return true;
  }

  const ChromeTraceLimits& limits_;
  int64_t& last_part_;
  const ByteStream& bytes_;
  absl::Status status_;
  std::array<Part, kDepthMax> parts_ = {};
  size_t depth_ = 0;
  std::string key_;
  bool has_events_ = false;
  TraceEvent event_;
  std::string mistake_;      // of the event; empty: there is none
  std::string first_fault_;  // of all events that count
  bool is_complete_ = false;
  bool names_step_ = false;
  std::string name_;
  int64_t num_events_ = 0;
  ChromeTrace trace_;
  absl::flat_hash_map<std::string, int> numbers_;  // of names
};

// What the JSON parser reads. Ends the text early where a part of the JSON, such as a string, is
// longer than a trace needs: the parser keeps such a part in memory.
struct Input {
  ByteStream* bytes = nullptr;
  const ChromeTraceLimits* limits = nullptr;
  int64_t last_part = 0;  // where the last part ended
  bool is_cut = false;

  int Peek() {
    if (bytes->num_taken() - last_part > limits->token_bytes_max) is_cut = true;
    return is_cut ? ByteStream::kEnd : bytes->Peek();
  }
};

// An input iterator over an Input; the default-made one is the end.
class Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  explicit Iterator(Input* input = nullptr) : input_(input) {}
  char operator*() const { return static_cast<char>(input_->Peek()); }
  Iterator& operator++() {
    input_->bytes->Take();
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Iterator& other) const { return AtEnd() == other.AtEnd(); }
  bool operator!=(const Iterator& other) const { return !(*this == other); }

 private:
  bool AtEnd() const { return input_ == nullptr || input_->Peek() == ByteStream::kEnd; }

  Input* input_;
};

}  // namespace

absl::StatusOr<ChromeTrace> ReadChromeTrace(const ReadBytes& read,
                                            const ChromeTraceLimits& limits) {
  ByteStream bytes(read, limits.bytes_max);
  Input input = {.bytes = &bytes, .limits = &limits};
  Handler handler(limits, &input.last_part, bytes);
  const bool parsed = nlohmann::json::sax_parse(Iterator(&input), Iterator(), &handler);
  if (!bytes.status().ok()) return bytes.status();
  if (input.is_cut) {
    return Invalid(absl::StrCat("a string or a gap after byte ", input.last_part,
                                " is longer than ", limits.token_bytes_max,
                                " bytes; a trace has none of that length"));
  }
  if (!handler.status().ok()) return handler.status();
  if (!parsed || !handler.has_events()) {
    return Invalid(
        "no list of events; expected a JSON array of events, or an object with 'traceEvents'");
  }
  return std::move(handler).Take();
}

}  // namespace megascale::diagnose
