#include "actors/link.h"

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/frame.h"
#include "runtime/base/serialize.h"
#include "runtime/base/status.h"

namespace megascale::actors {

absl::Status CheckDescriptors(size_t num_received, size_t num_expected) {
  if (num_received == num_expected) return absl::OkStatus();
  const std::string what =
      absl::StrCat("the assignment came with ", num_received, " of ", num_expected, " descriptors");
  if (num_received < num_expected) return base::ErrnoStatus(EMFILE, what);
  return absl::InternalError(what);
}

absl::Status Link::Send(const google::protobuf::MessageLite& message) {
  ASSIGN_OR_RETURN(const std::string bytes, base::Serialize(message, base::kFrameBytesMax));
  const std::lock_guard<std::mutex> lock(send_mutex_);
  return base::SendFrame(socket_.get(), bytes, {}, absl::Seconds(30));
}

absl::StatusOr<std::vector<base::UniqueFd>> Link::Receive(google::protobuf::MessageLite* message,
                                                          absl::Duration timeout) {
  ASSIGN_OR_RETURN(base::Frame frame, base::ReceiveFrame(socket_.get(), timeout));
  if (!message->ParseFromString(frame.payload)) {
    return absl::DataLossError(absl::StrCat("link: ", frame.payload.size(),
                                            " bytes are not a message of type ",
                                            message->GetTypeName()));
  }
  return std::move(frame.fds);
}

void Link::StopReceiving() { ::shutdown(socket_.get(), SHUT_RD); }

}  // namespace megascale::actors
