#include "runtime/comm/store/redis/reply.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/check.h"

namespace megascale::comm {
namespace {

constexpr size_t kReplyShownMax = 160;

struct Meaning {
  absl::string_view words;  // beginning of the reply
  absl::StatusCode code;
  absl::string_view advice;
};

constexpr Meaning kMeanings[] = {
    {"LOADING", absl::StatusCode::kUnavailable, "it reads its data and answers when it has"},
    {"READONLY", absl::StatusCode::kUnavailable,
     "it is a replica: let the job's `store` name the primary"},
    {"MASTERDOWN", absl::StatusCode::kUnavailable,
     "it is a replica: let the job's `store` name the primary"},
    {"CLUSTERDOWN", absl::StatusCode::kUnavailable, "repair the cluster"},
    {"TRYAGAIN", absl::StatusCode::kUnavailable, "the cluster moves its slots"},
    {"BUSY", absl::StatusCode::kUnavailable, "a script of somebody else runs on it"},
    {"MISCONF", absl::StatusCode::kUnavailable, "it cannot save its data: look at its disk"},
    {"ERR max number of clients", absl::StatusCode::kUnavailable, "raise its maxclients"},
    {"OOM", absl::StatusCode::kResourceExhausted, "raise its maxmemory, or free some"},
    {"NOAUTH", absl::StatusCode::kFailedPrecondition,
     "it wants a password: start agents with --store-passwords FILE, which must have a line for "
     "it"},
    {"ERR AUTH", absl::StatusCode::kFailedPrecondition,
     "it has no password: take its line out of the file of --store-passwords"},
    {"ERR Client sent AUTH", absl::StatusCode::kFailedPrecondition,
     "it has no password: take its line out of the file of --store-passwords"},
    {"WRONGPASS", absl::StatusCode::kFailedPrecondition,
     "the user of the job's `store` and the password of its line in the file of "
     "--store-passwords must be those of the server"},
    {"NOPERM", absl::StatusCode::kFailedPrecondition,
     "its user needs the commands get, mget, set, incrby, expire, select, ping and eval on keys "
     "megascale:*"},
    {"MOVED", absl::StatusCode::kFailedPrecondition,
     "it is a node of a Redis Cluster: let the job's `store` name a single server"},
    {"ASK", absl::StatusCode::kFailedPrecondition,
     "it is a node of a Redis Cluster: let the job's `store` name a single server"},
    {"DENIED", absl::StatusCode::kFailedPrecondition,
     "it runs in protected mode: give it a password or the addresses that it may listen at"},
    {"ERR DB index", absl::StatusCode::kFailedPrecondition,
     "let the job's `store` name a database that it has"},
    {"ERR invalid DB index", absl::StatusCode::kFailedPrecondition,
     "let the job's `store` name a database that it has"},
    {"ERR value is not an integer", absl::StatusCode::kInvalidArgument,
     "only a number can be added to"},
    {"ERR increment or decrement would overflow", absl::StatusCode::kInvalidArgument,
     "a sum has 64 bits"},
    {"WRONGTYPE", absl::StatusCode::kFailedPrecondition,
     "somebody else writes keys megascale:* there"},
};

}  // namespace

absl::Status StatusOfError(const RedisReply& reply) {
  MEGASCALE_CHECK(reply.kind == RedisReply::Kind::kError);
  std::string shown = reply.text.substr(0, kReplyShownMax);
  for (char& c : shown) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  for (const Meaning& meaning : kMeanings) {
    if (!absl::StartsWith(reply.text, meaning.words)) continue;
    return absl::Status(meaning.code, absl::StrCat("answers \"", shown, "\"; ", meaning.advice));
  }
  return absl::InternalError(absl::StrCat("answers \"", shown, "\"; see its log"));
}

}  // namespace megascale::comm
