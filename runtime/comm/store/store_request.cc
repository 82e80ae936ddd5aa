#include "runtime/comm/store/store_request.h"

#include "absl/strings/str_cat.h"

namespace megascale::comm {

using megascale::agent::v1::StoreReply;
using megascale::agent::v1::StoreRequest;

size_t NumKeys(const StoreRequest& request) {
  return request.keys().empty() ? 1 : static_cast<size_t>(request.keys_size());
}

const std::string& KeyOf(const StoreRequest& request, size_t index) {
  return request.keys().empty() ? request.key() : request.keys(static_cast<int>(index));
}

absl::Status CheckSizes(const StoreRequest& request, size_t key_bytes_max, size_t value_bytes_max) {
  if (!request.keys().empty() && request.operation() != StoreRequest::OPERATION_WAIT) {
    return absl::InvalidArgumentError("only a WAIT may have several keys");
  }
  const std::string* key = &request.key();
  for (size_t i = 0; i < NumKeys(request) && key->size() <= key_bytes_max; ++i) {
    key = &KeyOf(request, i);
  }
  if (key->size() > key_bytes_max || request.request_id().size() > key_bytes_max ||
      request.value().size() > value_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a store request for key ", key->substr(0, 64), " is too large: at most ",
                     key_bytes_max, " bytes of key and ", value_bytes_max, " of value"));
  }
  return absl::OkStatus();
}

absl::Status CheckReplySize(size_t num_keys, size_t bytes, size_t bytes_max) {
  if (bytes <= bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the values of ", num_keys, " keys take ", bytes,
                                                   " bytes, and a reply at most ", bytes_max,
                                                   "; ask for fewer"));
}

StoreReply MakeReply(const std::string& request_id, const absl::Status& status) {
  StoreReply reply;
  reply.set_request_id(request_id);
  reply.set_code(static_cast<int>(status.code()));
  reply.set_message(std::string(status.message()));
  return reply;
}

}  // namespace megascale::comm
